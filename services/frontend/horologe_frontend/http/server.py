"""The server around `http_protocol`: listening, time-outs, drain."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from horologe_common.clock import monotonic_ns
from horologe_frontend.http.connection import Connection
from horologe_frontend.http.responses import Date

if TYPE_CHECKING:
    import socket

    from horologe_frontend.http.limits import Gate

BACKLOG = 2048
CLOSING_S = 1.0
"""At the end of a drain: for answers already given to reach their clients."""


class HttpToolsServer:
    """Serves connections of a listening socket until it is closed."""

    def __init__(self, gate: Gate) -> None:
        self.gate = gate
        self.date = Date()
        self.closing = False
        self._connections: dict[Connection, None] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.Task[None] | None = None

    async def open(self, listener: socket.socket) -> None:
        self.loop = asyncio.get_running_loop()
        self._server = await self.loop.create_server(lambda: Connection(self), sock=listener, backlog=BACKLOG)
        self._sweep = self.loop.create_task(self._watch())

    def join(self, connection: Connection) -> bool:
        """False when there are too many: the connection is kept all the same until it has had its answer."""
        self._connections[connection] = None
        self._empty.clear()
        return len(self._connections) <= self.gate.settings.max_connections

    def part(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        if not self._connections:
            self._empty.set()

    async def close(self, drain_ns: int) -> None:
        """Listen no more, finish what is in flight within `drain_ns`, cancel the rest."""
        self.closing = True
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections):
            connection.drain()
        await self.gate.idle(drain_ns)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSING_S):
                await self._empty.wait()
        for connection in list(self._connections):
            connection.abort()
        if self._sweep is not None:
            self._sweep.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweep
        await asyncio.sleep(0)

    async def _watch(self) -> None:
        """One look at all connections now and then is cheaper than a timer for every request."""
        settings = self.gate.settings
        shortest_ns = min(
            settings.header_timeout_ns, settings.body_timeout_ns, settings.write_timeout_ns, settings.idle_timeout_ns
        )
        pause = min(1.0, max(0.02, shortest_ns / 4e9))
        while True:
            await asyncio.sleep(pause)
            now_ns = monotonic_ns()
            for connection in list(self._connections):
                if connection.expires_ns <= now_ns:
                    connection.expire()
