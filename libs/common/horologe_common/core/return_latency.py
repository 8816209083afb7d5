"""Latency of the links that a request and its outputs travel: round trips to frontends, controller and workers.

Return latency: the 99th percentile of recent round trips to a frontend, an upper bound of the time answers take.

Path latency: the part of a request's budget that the controller cannot see. The budget does not shrink in transit, so
the whole round trip to the frontend belongs to it: the Query, and the Answer. So do the Submit to the controller, and
the Outputs of the worker, as far as they take longer than the Results that the controller measures itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import ms, s
from horologe_common.core.instruments import RollingQuantile
from horologe_common.core.protocol import Out, role
from horologe_common.wire import Ping, Pong

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from horologe_common.core.protocol import Buffer

WINDOW = 200
"""Round trips per frontend; older than 60 s they are dropped."""
PING_INTERVAL_NS = ms(100)
PATH_WINDOW, PATH_AGE_NS = 10, s(1)
"""The path latency is the median of the last second: half a second after a disturbance it is the old one again. The
controller reserves more for answers that take longer than the median."""
PATH_ROLES = ("frontend", "controller", "worker")
DEFAULT_NS = ms(5)
"""Return latency before the first measurement."""


class ReturnLatency:
    """Measured latencies of all peers, which are pinged every `PING_INTERVAL_NS`."""

    def __init__(self) -> None:
        self.path_ns: dict[str, int] = {}
        """Path latency of the requests of each frontend."""
        self.inner_ns = 0
        """Part of the path latency that the frontend has no share in: that of the calls of pipelines."""
        self._round_trips: dict[str, RollingQuantile] = {}
        self._recent: dict[str, RollingQuantile] = {}
        self._answered_ns: dict[str, int] = {}
        """Time of the last ping that each peer has answered. A Pong that comes twice counts once."""
        self._received_ns: dict[str, int] = {}
        """Time of the last Pong of each peer."""
        self._reserved_ns = 0
        """Return latency that the controller reserves."""
        self._next_ns = 0

    def add_peer(self, address: str) -> None:
        if role(address) in PATH_ROLES:
            self._recent[address] = RollingQuantile(PATH_WINDOW, PATH_AGE_NS, 0.5, PING_INTERVAL_NS)
        if role(address) == "frontend":
            self._round_trips[address] = RollingQuantile(WINDOW, s(60), 0.99)

    def remove_peer(self, address: str) -> None:
        for table in (self._recent, self._round_trips, self._answered_ns, self._received_ns, self.path_ns):
            table.pop(address, None)

    def frontends(self) -> Iterable[str]:
        return self._round_trips

    def on_pong(self, now_ns: int, peer: str, pong: Pong, buffers: Sequence[Buffer] = ()) -> None:
        if peer not in self._recent or pong.sent_ns <= self._answered_ns.get(peer, -1):
            return
        self._answered_ns[peer] = pong.sent_ns
        received_ns, self._received_ns[peer] = self._received_ns.get(peer, -PING_INTERVAL_NS), now_ns
        if now_ns - received_ns < PING_INTERVAL_NS // 2:
            return  # these have waited for the end of the same stall as the first one
        for table in (self._recent, self._round_trips):
            if round_trips := table.get(peer):
                round_trips.observe(now_ns, now_ns - pong.sent_ns)
        if role(peer) == "controller":
            self._reserved_ns = pong.reserved_ns

    def p99_ns(self, now_ns: int, frontend: str) -> int:
        round_trips = self._round_trips.get(frontend)
        p99_ns = None if round_trips is None else round_trips.high_quantile(now_ns)
        return DEFAULT_NS if p99_ns is None else p99_ns

    def pings(self, now_ns: int) -> Iterator[Out]:
        """Yield a ping to each peer if the last pings are `PING_INTERVAL_NS` old, and update `path_ns`."""
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + PING_INTERVAL_NS
            self.update_paths(now_ns)
            for peer in self._recent:
                yield Out(peer, Ping(now_ns))

    def next_ns(self) -> int | None:
        return self._next_ns if self._recent else None

    def update_paths(self, now_ns: int) -> None:
        """Compute the path latencies of the last second's round trips. Without any, they stay as they are."""
        recent: dict[str, list[int]] = {kind: [0] for kind in PATH_ROLES}
        for peer, round_trips in self._recent.items():
            if (median_ns := round_trips.high_quantile(now_ns)) is not None:
                recent[role(peer)].append(median_ns)
        if not any(map(any, recent.values())):
            return
        outputs_ns = max(0, max(recent["worker"]) // 2 - self._reserved_ns)
        self.inner_ns = max(recent["controller"]) // 2 + outputs_ns
        for frontend in self._round_trips:
            self.path_ns[frontend] = self.inner_ns + (self._recent[frontend].high_quantile(now_ns) or 0)
