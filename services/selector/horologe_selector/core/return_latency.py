"""How long an answer takes from here to a frontend: the p99 of lately measured ways there and back."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import ms, s
from horologe_common.core.protocol import Out
from horologe_common.latency import RollingQuantile
from horologe_common.wire import Ping, Pong

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.core.protocol import Buffer

WINDOW = 200
EVERY_NS = ms(100)
UNKNOWN_NS = ms(5)


class WayBack:
    """Frontends are pinged while applications are served; both ways together are more than the way back is."""

    def __init__(self) -> None:
        self._ways: dict[str, RollingQuantile] = {}
        self._next_ns = 0

    def joined(self, frontend: str) -> None:
        self._ways[frontend] = RollingQuantile(WINDOW, s(60), 0.99)

    def gone(self, frontend: str) -> None:
        self._ways.pop(frontend, None)

    def told(self, now_ns: int, frontend: str, pong: Pong, buffers: Sequence[Buffer] = ()) -> None:
        if way := self._ways.get(frontend):
            way.observe(now_ns, now_ns - pong.sent_ns)

    def p99_ns(self, now_ns: int, frontend: str) -> int:
        way = self._ways.get(frontend)
        found = None if way is None else way.high_quantile(now_ns)
        return UNKNOWN_NS if found is None else found

    def pings(self, now_ns: int) -> Iterator[Out]:
        """When it is time for them."""
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + EVERY_NS
            for frontend in self._ways:
                yield Out(frontend, Ping(now_ns))

    def next_ns(self) -> int | None:
        return self._next_ns if self._ways else None
