"""Return latency: the 99th percentile of recent round trips to a frontend, an upper bound of the time answers take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import ms, s
from horologe_common.core.instruments import RollingQuantile
from horologe_common.core.protocol import Out
from horologe_common.wire import Ping, Pong

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from horologe_common.core.protocol import Buffer

WINDOW = 200
"""Round trips per frontend; older than 60 s they are dropped."""
PING_INTERVAL_NS = ms(100)
DEFAULT_NS = ms(5)
"""Return latency before the first measurement."""


class ReturnLatency:
    """Measured return latencies by frontend. Frontends are pinged while applications are active."""

    def __init__(self) -> None:
        self._round_trips: dict[str, RollingQuantile] = {}
        self._next_ns = 0

    def add_frontend(self, frontend: str) -> None:
        self._round_trips[frontend] = RollingQuantile(WINDOW, s(60), 0.99)

    def remove_frontend(self, frontend: str) -> None:
        self._round_trips.pop(frontend, None)

    def frontends(self) -> Iterable[str]:
        """Return the addresses of the connected frontends."""
        return self._round_trips

    def on_pong(self, now_ns: int, frontend: str, pong: Pong, buffers: Sequence[Buffer] = ()) -> None:
        if round_trips := self._round_trips.get(frontend):
            round_trips.observe(now_ns, now_ns - pong.sent_ns)

    def p99_ns(self, now_ns: int, frontend: str) -> int:
        round_trips = self._round_trips.get(frontend)
        p99_ns = None if round_trips is None else round_trips.high_quantile(now_ns)
        return DEFAULT_NS if p99_ns is None else p99_ns

    def pings(self, now_ns: int) -> Iterator[Out]:
        """Yield a ping to each frontend if the last pings are `PING_INTERVAL_NS` old."""
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + PING_INTERVAL_NS
            for frontend in self._round_trips:
                yield Out(frontend, Ping(now_ns))

    def next_ns(self) -> int | None:
        return self._next_ns if self._round_trips else None
