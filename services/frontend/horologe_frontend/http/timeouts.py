"""Timeouts of HTTP connections: slow senders, slow readers, idle connections."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS, monotonic_ns, s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_frontend.http.connection import HttpConnection
    from horologe_frontend.http.settings import HttpSettings

HEADER_TIMEOUT_NS = s(10)
"""Longest time from the first byte of a request to the end of its headers."""
LINGER_NS = s(2)
"""Closing a socket with unread bytes resets the connection, and the client may lose the response. So a connection
reads and discards what arrives after its last response, until the client closes it, at most for this long (RFC 9112
9.6)."""
SCANS_PER_TIMEOUT = 4
PAUSE_MIN_S, PAUSE_MAX_S = 0.02, 1.0
CLOSE_S = 0.0005
"""Pause after a connection. The kernel frees up to 6 MB that have arrived and are not read: 64 of them took 22 ms."""


class ConnectionState(Enum):
    """State of a connection. Each state has a timeout."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    HANDLING = "handling"
    WRITING = "writing"
    CLOSING = "closing"


class Timeouts:
    """Expires connections that are in one state for too long."""

    def __init__(self, settings: HttpSettings, connections: Iterable[HttpConnection]) -> None:
        self._connections = connections
        self._since_ns: dict[HttpConnection, tuple[tuple[ConnectionState, int], int]] = {}
        self._limits_ns = {
            ConnectionState.IDLE: settings.idle_timeout_ns,
            ConnectionState.HEAD: min(HEADER_TIMEOUT_NS, settings.body_timeout_ns),
            ConnectionState.BODY: settings.body_timeout_ns,
            ConnectionState.HANDLING: NEVER_NS,
            ConnectionState.WRITING: settings.body_timeout_ns,
            ConnectionState.CLOSING: LINGER_NS,
        }

    async def run(self) -> None:
        """Scan all connections a few times per timeout: cheaper than one timer for each request."""
        shortest_ns = min(self._limits_ns.values())
        pause_s = min(PAUSE_MAX_S, max(PAUSE_MIN_S, shortest_ns / SCANS_PER_TIMEOUT / 1e9))
        while True:
            await asyncio.sleep(pause_s)
            for connection in self._scan(monotonic_ns()):
                connection.expire()
                await asyncio.sleep(CLOSE_S)

    def _scan(self, now_ns: int) -> list[HttpConnection]:
        """Return the connections that expire. A state begins when a scan first finds it."""
        expired = []
        before, self._since_ns = self._since_ns, {}
        for connection in list(self._connections):
            state = connection.state(), connection.responses
            previous, since_ns = before.get(connection, (state, now_ns))
            self._since_ns[connection] = state, since_ns if previous == state else now_ns
            if previous == state and now_ns - since_ns >= self._limits_ns[state[0]]:
                expired.append(connection)
        return expired
