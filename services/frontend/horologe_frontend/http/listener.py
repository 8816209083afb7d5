"""The HTTP server of the frontend: listens, lets requests through the gate to the handler, and drains at the end."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING, Protocol

from horologe_common.service.settings import SettingsError
from horologe_frontend.http.limits import Gate
from horologe_frontend.http.server import HttpToolsServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_frontend.http.exchange import Handler
    from horologe_frontend.http.settings import HttpSettings


class Server(Protocol):
    """Speaks HTTP on the connections of a listening socket, inside the running loop."""

    async def open(self, listener: socket.socket) -> None:
        """Begin to accept connections; takes the socket over."""

    async def close(self, drain_ns: int) -> None:
        """Listen no more, finish what is in flight within `drain_ns`, cancel the rest."""


def _uvicorn(gate: Gate) -> Server:
    from horologe_frontend.http.uvicorn_server import UvicornServer

    return UvicornServer(gate)


SERVERS: dict[str, Callable[[Gate], Server]] = {"httptools": HttpToolsServer, "uvicorn": _uvicorn}


class HttpServer:
    """Life cycle: construct, `start` on the loop, `stop`."""

    def __init__(self, settings: HttpSettings, handler: Handler) -> None:
        if settings.server not in SERVERS:
            raise SettingsError(f"setting http.server: got {settings.server!r}, wanted one of {', '.join(SERVERS)}")
        self._settings = settings
        self._handler = handler
        self._listener: socket.socket | None = None
        self.gate = Gate(settings, handler)
        self._server = SERVERS[settings.server](self.gate)

    async def start(self) -> None:
        """Raises `SettingsError` when the address cannot be listened on."""
        settings = self._settings
        try:
            self._listener = await _listen(settings.host, settings.port)
        except OSError as error:
            raise SettingsError(f"settings http.host, http.port: {settings.host}:{settings.port}: {error}") from error
        self._port: int = self._listener.getsockname()[1]
        await self._server.open(self._listener)

    @property
    def url(self) -> str:
        """Where it listens, with the real port."""
        host = f"[{self._settings.host}]" if ":" in self._settings.host else self._settings.host
        return f"http://{host}:{self._port}"

    async def stop(self) -> None:
        """Drain: readiness is false at once; then no new connections; requests in flight get their time."""
        self._handler.draining = True
        if self._listener is not None:
            await self._server.close(self._settings.drain_ns)
            self._listener.close()


async def _listen(host: str, port: int) -> socket.socket:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.setblocking(False)
    except OSError:
        listener.close()
        raise
    return listener
