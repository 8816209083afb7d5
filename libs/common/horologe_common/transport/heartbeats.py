"""Heartbeats: both ends of every link send one several times a second. A link on which none arrives is lost.

They are sent on the loop's thread. A process that is stopped, unreachable or stuck is therefore silent, and so is one
whose connection was closed for good by libzmq.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from horologe_common.service.log import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_common.transport.peers import Route

log = logger("links")
BEATS = 4
"""Heartbeats that a peer may miss. Counted in own heartbeats: a process that was stopped does not blame its peers."""


class Heartbeats:
    """The heartbeats of one process. `send` sends one on a link; `on_lost` gets a lost link and the reason."""

    def __init__(self, send: Callable[[Route], object], on_lost: Callable[[Route, str], None]) -> None:
        self._send = send
        self._on_lost = on_lost
        self._missed: dict[Route, int] = {}
        """Own heartbeats since the last one of the peer."""
        self._reasons: dict[Route, str] = {}

    def add(self, route: Route) -> None:
        """Send heartbeats on a link, and expect them."""
        self._missed[route] = 0
        self._reasons.pop(route, None)

    def remove(self, route: Route) -> None:
        self._missed.pop(route, None)
        self._reasons.pop(route, None)

    def record(self, route: Route) -> None:
        """Record that a heartbeat has arrived."""
        if route in self._missed and route not in self._reasons:
            self._missed[route] = 0

    def hasten(self, route: Route) -> None:
        """Lose the link unless a heartbeat arrives soon: its connection has broken, and may be made again."""
        if route in self._missed:
            self._missed[route] = BEATS - 1

    def fail(self, route: Route, reason: str) -> None:
        """Lose the link with the next heartbeat. It may be in use now."""
        if route in self._missed:
            self._missed[route] = BEATS
            self._reasons.setdefault(route, reason)

    async def run(self, silence_ns: int) -> None:
        """Send heartbeats until cancelled. A peer that sends none for `silence_ns` is lost."""
        while True:
            await asyncio.sleep(silence_ns / BEATS / 1e9)
            self.beat()

    def beat(self) -> None:
        """Send a heartbeat on every link, and end those that are lost."""
        for route, missed in list(self._missed.items()):
            try:
                self._beat_link(route, missed)
            except Exception:  # without heartbeats, the other peers would lose this process
                log.exception("heartbeat fault")

    def _beat_link(self, route: Route, missed: int) -> None:
        if missed >= BEATS:
            reason = self._reasons.get(route, "silent")
            self.remove(route)
            self._on_lost(route, reason)
        else:
            self._missed[route] = missed + 1
            self._send(route)
