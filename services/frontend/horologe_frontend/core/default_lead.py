"""How late this process comes to what is due: the p99 of a timer's delays lately. Pure.

A default leaves that much before its deadline: a loop that stalls for longer than the lead would send it LATE.
"""

from __future__ import annotations

from horologe_common.clock import ms, s
from horologe_common.latency import RollingQuantile

EVERY_NS = ms(50)
WINDOW = 400
"""Of the last 20 s of requests."""


class Lag:
    """A timer of its own goes while requests with a default are asked: those of requests are due as clients want it,
    and many brief ones would hide a stall. `least_ns`: the lead where none is known to be needed."""

    def __init__(self, least_ns: int) -> None:
        self._least_ns = least_ns
        self._delays = RollingQuantile(WINDOW, s(60), 0.99)
        self._at_ns: int | None = None
        self._asked = False

    def lead_ns(self, now_ns: int) -> int:
        """How long before its deadline a default is due."""
        self._asked = True
        if self._at_ns is None:
            self._at_ns = now_ns + EVERY_NS
        return max(self._least_ns, self._delays.high_quantile(now_ns) or 0)

    def tick(self, now_ns: int) -> None:
        """Measure, if it is time."""
        if self._at_ns is None or now_ns < self._at_ns:
            return
        self._delays.observe(now_ns, now_ns - self._at_ns)
        self._at_ns = now_ns + EVERY_NS if self._asked else None
        self._asked = False

    def next_ns(self) -> int | None:
        return self._at_ns
