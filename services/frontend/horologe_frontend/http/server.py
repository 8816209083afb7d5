"""The HTTP server: a listening socket, its connections and their timeouts, and a shutdown that drains."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from horologe_common.clock import monotonic_ns, s
from horologe_common.service.settings import SettingsError
from horologe_common.transport.clients.acceptor import Acceptor
from horologe_frontend.http.client_accounts import ClientAccounts
from horologe_frontend.http.connection import HttpConnection, KnownHeads, encode_head
from horologe_frontend.http.http_messages import REFUSED, failure
from horologe_frontend.http.timeouts import Timeouts

if TYPE_CHECKING:
    from horologe_frontend.http.client_accounts import ClientAccount
    from horologe_frontend.http.settings import HttpSettings
    from horologe_frontend.oip.handler import OipHandler
    from horologe_frontend.tls import Certificates

BACKLOG = 2048
DRAIN_NS = s(10)
IDLE_S = 0.5
"""A request may be on its way on an idle connection. If the connection closes at once, its client gets no answer."""
IDLE_POLL_S = 0.01
FLUSH_S = 1.0
"""At the end of a drain, connections get this many seconds to send their last responses."""


class HttpServer:
    """Call `start()` on the running loop, then `stop()` once."""

    def __init__(
        self,
        settings: HttpSettings,
        handler: OipHandler,
        certificates: Certificates | None = None,
        *,
        reuse_port: bool = False,
        drain_ns: int = DRAIN_NS,
    ) -> None:
        self.settings = settings
        self.handler = handler
        self.clients = ClientAccounts(settings)
        self.known_heads = KnownHeads()
        self.closing = False
        self._certificates = certificates
        self.loop: asyncio.AbstractEventLoop
        self._reuse_port = reuse_port
        self._drain_ns = drain_ns
        self._listener: socket.socket | None = None
        self._port = 0
        self._connections: dict[HttpConnection, None] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._acceptor: Acceptor[HttpConnection] | None = None
        self._timeouts: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Listen. Raises `SettingsError` if the address is not available."""
        host, port = self.settings.host, self.settings.port
        self.loop = asyncio.get_running_loop()
        try:
            self._listener = await _listen(host, port, self._reuse_port)
        except OSError as error:
            raise SettingsError(f"settings http.host, http.port: {host}:{port}: {error}") from error
        self._port = self._listener.getsockname()[1]
        self._listener.listen(BACKLOG)
        turns = self.clients.turns
        certificates = self._certificates
        self._acceptor = Acceptor(
            self._listener,
            self._admit,
            self._refuse,
            self._abandon,
            lambda: turns.is_contended,
            None if certificates is None else lambda: certificates.context,
        )
        self._acceptor.start()
        self._timeouts = self.loop.create_task(Timeouts(self.settings, self._connections).run())

    @property
    def url(self) -> str:
        """Base URL, with the real port where the setting is 0."""
        host = f"[{self.settings.host}]" if ":" in self.settings.host else self.settings.host
        return f"{'https' if self._certificates else 'http'}://{host}:{self._port}"

    def _admit(self, host: str) -> HttpConnection | None:
        account = self.clients.add_connection(host)
        return HttpConnection(self, account) if account else None

    def _refuse(self, sock: socket.socket) -> None:
        """Send the refusal if the socket takes it at once. With TLS, send nothing: a handshake would take longer."""
        if self._certificates:
            return
        response = failure(REFUSED, "too many connections", ((b"retry-after", b"1"),))
        with suppress(OSError):
            sock.send(encode_head(response, len(response.body), b"close", self.settings.refused_status) + response.body)

    def _abandon(self, connection: HttpConnection) -> None:
        self.clients.remove_connection(connection.account)

    def add_connection(self, connection: HttpConnection) -> None:
        """Register a connection, which its client's account counts already."""
        self._connections[connection] = None
        self._empty.clear()

    def remove_connection(self, connection: HttpConnection, account: ClientAccount) -> None:
        self._connections.pop(connection, None)
        self.clients.remove_connection(account)
        if not self._connections:
            self._empty.set()

    async def stop(self) -> None:
        """Report not ready, stop listening, finish requests in flight within `drain_ns`, cancel the others.

        A connection closes behind its next response, which says so. One without a request for `IDLE_S` closes too.
        """
        self.handler.draining = self.closing = True
        if self._listener is None:
            return
        if self._acceptor is not None:
            self._acceptor.stop()
        if self._connections:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._empty.wait(), IDLE_S)
        for connection in list(self._connections):
            connection.drain()
        await self._wait_until_idle()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._empty.wait()
        for connection in list(self._connections):
            connection.abort()
        if self._timeouts is not None:
            self._timeouts.cancel()
            with suppress(asyncio.CancelledError):
                await self._timeouts
        await asyncio.sleep(0)
        self._listener.close()

    async def _wait_until_idle(self) -> None:
        end_ns = monotonic_ns() + self._drain_ns
        while self.clients.total.requests and monotonic_ns() < end_ns:  # noqa: ASYNC110 - an event would cost every request
            await asyncio.sleep(IDLE_POLL_S)


async def _listen(host: str, port: int, reuse_port: bool) -> socket.socket:
    addresses = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    family, kind, protocol, _, address = addresses[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
