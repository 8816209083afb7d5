"""The servers of a frontend for clients that do not use the SDK: HTTP, and gRPC if its packages are installed."""

from __future__ import annotations

import asyncio
import os
from importlib.metadata import version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from horologe_common.service.log import logger
from horologe_frontend.auth import check_open, read_keys
from horologe_frontend.gateway import Gateway
from horologe_frontend.http.server import HttpServer
from horologe_frontend.oip.handler import OipHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from horologe_common.transport.reactor import Reactor
    from horologe_frontend.core.frontend import Frontend
    from horologe_frontend.grpc.server import GrpcServer
    from horologe_frontend.grpc.settings import GrpcSettings
    from horologe_frontend.http.settings import HttpSettings

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
    core: Frontend, http: HttpSettings, grpc: GrpcSettings, *, reuse_port: bool = False
) -> Callable[[Reactor], Coroutine[Any, Any, None]]:
    """Return a coroutine function for `Service.run`: serve HTTP and gRPC until the reactor drains.

    Both use one gateway, the same keys, and one account for each client.
    """

    async def serve(reactor: Reactor) -> None:
        gateway = Gateway(reactor, core.address.replace("frontend/", "http/"), core)
        gateway.open()
        check_open(http)
        managers = read_keys(http.management_keys_file, "http.management_keys_file")
        handler = OipHandler(gateway, http, read_keys(http.keys_file), version("horologe"), managers)
        server = HttpServer(http, handler, reuse_port=reuse_port, drain_ns=reactor.drain_ns)
        await server.start()
        log.info("http", url=server.url)
        grpc_server = None
        try:
            if has_grpc(grpc):
                grpc_server = await _create_grpc(grpc, server, gateway, reuse_port, reactor.drain_ns)
                await grpc_server.start()
                log.info("grpc", address=grpc_server.address)
            await reactor.draining.wait()
        finally:
            stops = [server.stop(), *([grpc_server.stop()] if grpc_server else [])]
            await asyncio.gather(*stops)

    return serve


async def _create_grpc(
    settings: GrpcSettings, server: HttpServer, gateway: Gateway, reuse_port: bool, drain_ns: int
) -> GrpcServer:
    """Return the gRPC server. Its packages are imported in a thread, because that takes 0.2 s or more."""
    http = server.settings
    check_open(http, settings.host, "grpc.host")
    kind: type[GrpcServer] = await asyncio.to_thread(_import_server)
    access, documents = server.handler.access, server.handler.documents
    return kind(settings, http, gateway, access, server.clients, documents, reuse_port=reuse_port, drain_ns=drain_ns)


def _import_server() -> type[GrpcServer]:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # grpc writes lines of its own to standard error; read at import
    from horologe_frontend.grpc.server import GrpcServer

    return GrpcServer
