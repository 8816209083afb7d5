"""The gRPC server: a port with or without TLS, the services, limits of connections and messages, and a drain."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from horologe_common.clock import ms
from horologe_common.core.accounts import fair_part
from horologe_common.service.process_limits import at_most
from horologe_common.service.settings import SettingsError
from horologe_frontend.core.access import Scope
from horologe_frontend.grpc.calls import Calls
from horologe_frontend.grpc.health import Health
from horologe_frontend.grpc.messages import POOL, SERVICE, parse
from horologe_frontend.grpc.rpc_server import RpcServer
from horologe_frontend.grpc.service import InferenceService
from horologe_frontend.grpc.status_codes import fail
from horologe_frontend.http.client_accounts import DESCRIPTOR_EIGHTHS
from horologe_frontend.http.timeouts import HEADER_TIMEOUT_NS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from horologe_frontend.gateway import Gateway
    from horologe_frontend.grpc.rpc_server import Handler, Rpc
    from horologe_frontend.grpc.settings import GrpcSettings
    from horologe_frontend.http.client_accounts import ClientAccounts
    from horologe_frontend.http.settings import HttpSettings
    from horologe_frontend.oip.model_documents import ModelDocuments
    from horologe_frontend.tls import Certificates

REFLECTION = ("grpc.reflection.v1alpha.ServerReflection", "grpc.reflection.v1.ServerReflection")
"""Names of the reflection service. Both versions have the same messages."""
KEEPALIVE_MS, KEEPALIVE_TIMEOUT_MS = 60_000, 20_000
"""A connection whose client does not answer a ping is closed, and its calls are cancelled."""
RESERVE_CALLS = 256
"""Calls of health checks beyond `http.max_requests`."""
WATCHERS_S = 0.5
"""Watchers of the health get as much time after the last response."""
POLL_S = 0.01


class GrpcServer:
    """Call `start()` on the running loop, then `stop()` once. `http`, `clients` and `certificates`: of HTTP."""

    def __init__(
        self,
        settings: GrpcSettings,
        http: HttpSettings,
        gateway: Gateway,
        clients: ClientAccounts,
        documents: ModelDocuments,
        certificates: Certificates | None = None,
        *,
        reuse_port: bool = False,
        drain_ns: int,
    ) -> None:
        self._settings = settings
        self._certificates = certificates
        self._drain_ns = drain_ns
        self._is_stopping = False
        self.calls = Calls(gateway.core.access, clients, http)
        self._health = Health(lambda: documents.is_ready() and not self._is_stopping)
        self._service = InferenceService(gateway, documents, self.calls)
        self._options = server_options(http, reuse_port)
        self._max_calls = http.max_requests + RESERVE_CALLS
        self._server: RpcServer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.address = ""
        """host:port, with the real port where the setting is 0."""

    async def start(self) -> None:
        """Listen. Raises `SettingsError` if the address is not available."""
        settings, certificates = self._settings, self._certificates
        host = f"[{settings.host}]" if ":" in settings.host else settings.host or "0.0.0.0"
        handlers = {**self._service.handlers, **self._health.handlers, **self._reflection()}
        server = RpcServer(handlers, self._options, self._max_calls)
        try:
            address = f"{host}:{settings.port}"
            port = server.listen(address, server_credentials(certificates) if certificates else None)
        except OSError as error:
            raise SettingsError(f"settings grpc.host, grpc.port: {error}") from error
        server.start()
        self._server = server
        self.address = f"{host}:{port}"
        work = (self._health.run(), self.calls.end_slow_calls())
        self._tasks = [asyncio.get_running_loop().create_task(run) for run in work]

    def _reflection(self) -> dict[str, Handler]:
        """Return the handlers of reflection, which needs a key."""
        for file in (health_pb2, reflection_pb2):
            POOL.AddSerializedFile(file.DESCRIPTOR.serialized_pb)
        services = (SERVICE, "grpc.health.v1.Health", REFLECTION[0])
        servicer = reflection.aio.ReflectionServicer(services, pool=POOL)

        async def read_requests(rpc: Rpc) -> AsyncIterator[Any]:
            while (message := await rpc.read()) is not None:
                yield parse(reflection_pb2.ServerReflectionRequest, message)

        async def reflect(rpc: Rpc) -> None:
            try:
                with self.calls.begin(rpc, is_awaited=False) as call:
                    call.check(Scope.KEY)
                    async for response in servicer.ServerReflectionInfo(read_requests(rpc), None):
                        await rpc.write(response.SerializeToString())
            except Exception as error:
                fail(rpc, error, "ServerReflectionInfo")

        return {f"/{name}/ServerReflectionInfo": reflect for name in REFLECTION}

    async def stop(self) -> None:
        """Report not serving, accept no call, finish those in progress within `drain_ns`, cancel the others."""
        self._is_stopping = True
        if self._server is None:
            return
        self._health.refresh()
        stopping = asyncio.ensure_future(self._server.stop(self._drain_ns / 1e9))
        for stream in list(self.calls.streams):
            stream.drain()
        while self.calls.count and not stopping.done():  # noqa: ASYNC110 - an event would cost every call
            await asyncio.sleep(POLL_S)
        await self._server.stop(WATCHERS_S)
        await stopping
        for task in self._tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def server_options(http: HttpSettings, reuse_port: bool) -> tuple[tuple[str, int], ...]:
    """Return the options of the server: the limits of HTTP, and timeouts of connections."""
    return (
        ("grpc.so_reuseport", int(reuse_port)),
        ("grpc.max_receive_message_length", http.body_limit_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_concurrent_streams", int(fair_part(http.max_requests, http.client_share))),
        ("grpc.max_allowed_incoming_connections", at_most(http.max_connections, DESCRIPTOR_EIGHTHS)),
        ("grpc.max_connection_idle_ms", max(1, http.idle_timeout_ns // ms(1))),
        ("grpc.server_handshake_timeout_ms", HEADER_TIMEOUT_NS // ms(1)),
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    )


def server_credentials(certificates: Certificates) -> Any:
    """Return credentials that use the present certificates for each new connection."""
    given = certificates.version

    def fetch() -> Any:  # called on gRPC's threads, before each handshake; None: no change
        nonlocal given
        if given == certificates.version:
            return None
        given = certificates.version
        return _configuration(certificates)

    needs_certificate = certificates.client_ca is not None
    return grpc.dynamic_ssl_server_credentials(_configuration(certificates), fetch, needs_certificate)


def _configuration(certificates: Certificates) -> Any:
    return grpc.ssl_server_certificate_configuration([certificates.pair], certificates.client_ca)
