"""The servers of a frontend for clients that do not use the SDK: HTTP, and gRPC if its packages are installed."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from horologe_common.service.log import logger
from horologe_frontend.audit import write_call
from horologe_frontend.auth import check_open, load_keys, read_keys
from horologe_frontend.changed_files import ChangedFiles
from horologe_frontend.core.access import KeysReplaced
from horologe_frontend.gateway import Gateway
from horologe_frontend.http.server import HttpServer
from horologe_frontend.oip.handler import OipHandler
from horologe_frontend.tls import NO_TLS, Certificates

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from horologe_common.transport.reactor import Reactor
    from horologe_frontend.core.frontend import Frontend
    from horologe_frontend.grpc.server import GrpcServer
    from horologe_frontend.grpc.settings import GrpcSettings
    from horologe_frontend.http.settings import HttpSettings
    from horologe_frontend.tls import TlsSettings

GRPC_PACKAGES = ("grpc", "grpc_health", "grpc_reflection", "google.rpc")
"""Packages of the extra `grpc`."""
log = logger("endpoints")


def has_grpc(settings: GrpcSettings) -> bool:
    """Return whether to serve gRPC: it is enabled, and its packages are installed. Imports none of them."""
    return settings.enabled and all(map(_is_installed, GRPC_PACKAGES))


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # of the package that contains it
        return False


def client_endpoint(
    core: Frontend, http: HttpSettings, grpc: GrpcSettings, tls: TlsSettings, *, reuse_port: bool = False
) -> Callable[[Reactor], Coroutine[Any, Any, None]]:
    """Return a coroutine function for `Service.run`: serve HTTP and gRPC until the reactor drains.

    Both use one gateway, the same keys and certificates, and one account for each client. The core gets the keys.
    Raises `SettingsError` for keys and certificates that cannot be used.
    """
    check_open(http, tls)
    if has_grpc(grpc):
        check_open(http, tls, grpc.host, "grpc.host")
    changes: list[tuple[ChangedFiles, Callable[[Reactor], None]]] = []
    if file := http.keys_file:
        changes.append((ChangedFiles([file]), lambda reactor: post_keys(reactor, core.address, file)))
        load_keys(core.access, file)
    if certificates := Certificates(tls) if tls != NO_TLS else None:
        changes.append((ChangedFiles(certificates.files), lambda reactor: certificates.load()))
        certificates.load()
    core.set_audit(write_call)

    async def serve(reactor: Reactor) -> None:
        gateway = Gateway(reactor, core.address.replace("frontend/", "http/"), core)
        gateway.open()
        handler = OipHandler(gateway, http, version("horologe"))
        server = HttpServer(http, handler, certificates, reuse_port=reuse_port, drain_ns=reactor.drain_ns)
        await server.start()
        log.info("http", url=server.url)
        grpc_server = None
        watches = [asyncio.create_task(files.run(partial(reload, reactor))) for files, reload in changes]
        try:
            if has_grpc(grpc):
                kind: type[GrpcServer] = await asyncio.to_thread(_import_server)  # 0.2 s or more
                grpc_server = kind(
                    grpc,
                    http,
                    gateway,
                    server.clients,
                    handler.documents,
                    certificates,
                    reuse_port=reuse_port,
                    drain_ns=reactor.drain_ns,
                )
                await grpc_server.start()
                log.info("grpc", address=grpc_server.address)
            await reactor.draining.wait()
        finally:
            for watch in watches:
                watch.cancel()
            stops = [server.stop(), *([grpc_server.stop()] if grpc_server else [])]
            await asyncio.gather(*stops)
            gateway.report_refused()

    return serve


def post_keys(reactor: Reactor, frontend: str, file: str) -> None:
    """Send the keys of a changed key file to the frontend. Call it in any thread. Raise as `read_keys` does.

    A message, unlike a call, is in recordings.
    """
    reactor.post_threadsafe(frontend, frontend, KeysReplaced(tuple(read_keys(file).items())))


def _import_server() -> type[GrpcServer]:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # grpc writes lines of its own to standard error; read at import
    from horologe_frontend.grpc.server import GrpcServer

    return GrpcServer
