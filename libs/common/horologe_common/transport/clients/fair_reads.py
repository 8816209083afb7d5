"""Fair reads: connections that send much take turns, and the loop runs other callbacks in between.

libuv reads every readable connection in each iteration of the loop, up to 32 times 256 kB. One client could thus keep
the loop for 8 MB, and 200 clients for as many reads.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection

    from horologe_common.transport.clients.client_connection import ClientConnection

LARGE_READ = 16 << 10
"""Shorter reads do not count: a client that waits for its answers never gets there. It is below a segment of the
loopback interface, 65,483 bytes, in which a client on the same host may send without end."""
READ_TURN, READERS = 512 << 10, 2
"""Bytes of large reads in a turn, and connections that have a turn at the same time: together about 0.5 ms."""
PAUSE_S, CROWDED_PAUSE_S = 0.001, 0.004
"""Pause between turns while other clients send requests, and if more connections wait than have a turn. A loop that
always runs would also lose its processor. Beside 200 connections that send without end on two busy cores, half of the
requests of another client took 28 ms with pauses of 1 ms and 7 to 10 ms with pauses of 4 ms. A turn each 5 ms still
reads 200 MB/s."""


class FairReads:
    """Connections that wait for their turn to be read. `is_contended` gets them: whether others send requests."""

    def __init__(self, is_contended: Callable[[Collection[ClientConnection]], bool]) -> None:
        self.waiting: dict[ClientConnection, bool] = {}
        self._is_contended = is_contended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin to give turns, in this loop."""
        self._loop = loop

    def add(self, connection: ClientConnection) -> None:
        """Call `continue_reading` of a connection when it is its turn."""
        self.waiting[connection] = True
        if not self._scheduled and self._loop is not None:
            self._scheduled = True
            if self._is_contended(self.waiting):
                crowded = len(self.waiting) > READERS
                self._loop.call_later(CROWDED_PAUSE_S if crowded else PAUSE_S, self.resume)
            else:
                self._loop.call_soon(self.resume)

    def discard(self, connection: ClientConnection) -> None:
        """Remove a connection that is lost."""
        self.waiting.pop(connection, None)

    def resume(self) -> None:
        """Let the connections read that have waited longest."""
        self._scheduled = False
        first = list(islice(self.waiting, READERS))
        for connection in first:
            del self.waiting[connection]
            connection.continue_reading()
        if self.waiting:
            self.add(next(iter(self.waiting)))
