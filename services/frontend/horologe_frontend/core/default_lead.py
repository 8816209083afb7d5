"""The lead of default answers: how long before its deadline a default is sent."""

from __future__ import annotations

from horologe_common.clock import ms, s
from horologe_common.core.instruments import RollingQuantile

INTERVAL_NS = ms(50)
WINDOW = 400
"""Number of delays kept: those of 20 s with requests."""


class DefaultLead:
    """The 99th percentile of recent timer delays, and `minimum_ns` at least.

    If the loop stalls for longer than the lead, defaults are sent LATE. The delays are those of a separate timer, which
    runs while requests with a default arrive. The timers of the requests themselves expire at times that clients
    choose: many requests with short deadlines would hide a stall.
    """

    def __init__(self, minimum_ns: int) -> None:
        self.timer_ns: int | None = None
        """When to call `measure_delay`. None: no recent request needed the lead."""
        self._minimum_ns = minimum_ns
        self._delays = RollingQuantile(WINDOW, s(60), 0.99)
        self._used = False

    def lead_ns(self, now_ns: int) -> int:
        """Return the lead for a request that arrives now."""
        self._used = True
        if self.timer_ns is None:
            self.timer_ns = now_ns + INTERVAL_NS
        return max(self._minimum_ns, self._delays.high_quantile(now_ns) or 0)

    def measure_delay(self, now_ns: int) -> None:
        """Record the delay of an expired timer, and restart the timer if the lead was used since."""
        if self.timer_ns is None or now_ns < self.timer_ns:
            return
        self._delays.observe(now_ns, now_ns - self.timer_ns)
        self.timer_ns = now_ns + INTERVAL_NS if self._used else None
        self._used = False
