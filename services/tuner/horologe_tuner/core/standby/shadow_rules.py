"""When a stage switches to its shadow, and when it switches back (iGniter section 4.2 and Fig. 17).

A shadow is a standby worker on the device of the stage with a larger share. A violation of the SLO by the 99th
percentile of the recent latencies is confirmed before the switch. The way back is a trial: if the violation returns
soon, the next trial waits for twice as long.
"""

from __future__ import annotations

from collections import deque
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.clock import ms, s
from horologe_common.latency_buckets import bucket_bound_ns

if TYPE_CHECKING:
    from horologe_common.wire import ModelEvents


KEPT_NS = s(2)
"""Time for which counts are kept; the rules look at one second."""
PERMITTED = 0.01
"""Part of the requests that may exceed the SLO: the SLO holds for the 99th percentile."""


class LatencySummary(NamedTuple):
    """Requests of a stretch of time. Refused requests count as beyond the SLO."""

    requests: int = 0
    beyond: int = 0
    p99_ns: int | None = None
    """99th percentile, rounded up to a bucket. None: without requests, or if more than 1% were refused."""

    @property
    def is_violated(self) -> bool:
        """True if the 99th percentile is beyond the SLO."""
        return self.beyond > PERMITTED * self.requests

    def describe(self, slo_ns: int) -> str:
        """Return the percentile for the log."""
        if not self.requests:
            return "no requests"
        if self.p99_ns is None:
            return f"{self.beyond} of {self.requests} requests beyond the SLO or refused"
        return f"P99 {self.p99_ns / 1e6:.3g} ms {'>' if self.is_violated else '<='} {slo_ns / 1e6:g} ms"


class LatencyWindow:
    """Counts of the last `KEPT_NS`, an entry for each message."""

    def __init__(self, slo_ns: int) -> None:
        self._slo_ns = slo_ns
        self._entries: deque[tuple[int, int, int, ModelEvents]] = deque()
        """(time of the message, requests, requests beyond the SLO, the message)."""
        self._from_ns = 0

    def reset(self, from_ns: int) -> None:
        """Drop all counts, and ignore those of messages before `from_ns`."""
        self._entries.clear()
        self._from_ns = from_ns

    def add(self, now_ns: int, events: ModelEvents) -> None:
        """Add the counts since the message before."""
        if now_ns >= self._from_ns:
            beyond = events.refused + sum([number for bucket, number in events.latencies if bucket > 0])
            requests = events.refused + sum([number for _, number in events.latencies])
            self._entries.append((now_ns, requests, beyond, events))
        while self._entries and self._entries[0][0] <= now_ns - KEPT_NS:
            self._entries.popleft()

    def is_violated(self, after_ns: int) -> bool:
        """Return whether more than 1% of the requests counted in messages after a time were beyond the SLO."""
        counts = [(requests, beyond) for at_ns, requests, beyond, _ in self._entries if at_ns > after_ns]
        return sum([beyond for _, beyond in counts]) > PERMITTED * sum([requests for requests, _ in counts])

    def summarize(self, after_ns: int) -> LatencySummary:
        """Return the requests counted in messages after a time."""
        counts: dict[int, int] = {}
        total = total_beyond = refused = 0
        for at_ns, requests, beyond, events in self._entries:
            if at_ns > after_ns:
                total, total_beyond, refused = total + requests, total_beyond + beyond, refused + events.refused
                for bucket, number in events.latencies:
                    counts[bucket] = counts.get(bucket, 0) + number
        above = int(PERMITTED * total) - refused
        return LatencySummary(total, total_beyond, self._percentile_ns(counts, above))

    def _percentile_ns(self, counts: dict[int, int], above: int) -> int | None:
        """Return the bound of the bucket that has at most `above` latencies above it; None for a negative number."""
        if above < 0 or not counts:
            return None
        for bucket in sorted(counts, reverse=True):
            above -= counts[bucket]
            if above < 0:
                return bucket_bound_ns(bucket, self._slo_ns)
        return None


CALM_NS = s(10)
"""Shorter, and more trials of switching back fail; longer, and the larger share is used in vain."""


class ShadowRules(msgspec.Struct, frozen=True):
    """Times and sizes of shadows. The first three are the paper's."""

    check_ns: int = s(1)
    """Time over which the 99th percentile is taken."""
    confirm_ns: int = ms(500)
    """Time after a violation in which it must occur again before the stage switches."""
    extra_percent: float = 10.0
    """Percent of the device that a shadow has more than its stage, if as much is left. 0: no shadows."""
    unit_percent: float = 2.5
    """Least useful step of a share (r_unit of a V100)."""
    calm_ns: int = CALM_NS
    """Time for which the smaller share must have sufficed before the first trial of switching back."""
    max_calm_ns: int = s(600)
    """Limit of that time, which doubles after each trial that fails."""


DEVIATIONS = 2.33
"""A stage with 1% of its requests beyond the SLO has that many standard deviations more in 1% of cases. Without this
limit, two late requests within 1.5 s were a violation at less than 50 requests/s."""


PATIENCE = 10
"""Multiple of the time before switching back after which the ratio of the shares does not count."""


class Violation(NamedTuple):
    """The percentile of the first second, and of the half second that confirmed it."""

    first: LatencySummary
    second: LatencySummary

    @property
    def is_confirmed(self) -> bool:
        """True if both exceed the SLO, by more requests than chance explains at low rates."""
        permitted = PERMITTED * (self.first.requests + self.second.requests)
        significant = self.first.beyond + self.second.beyond >= permitted + DEVIATIONS * sqrt(permitted)
        return self.first.is_violated and self.second.is_violated and significant

    def describe(self, slo_ns: int, rules: ShadowRules) -> str:
        """Return both percentiles for the log."""
        return (
            f"{self.first.describe(slo_ns)} in {rules.check_ns / 1e9:g} s, "
            f"{self.second.describe(slo_ns)} in the next {rules.confirm_ns / 1e9:g} s"
        )


class ViolationWatch:
    """State of the rules for one stage."""

    def __init__(self, now_ns: int, rules: ShadowRules) -> None:
        self.calm_ns = rules.calm_ns
        """Present length of the time before switching back."""
        self._calm_since_ns = self._within_since_ns = now_ns
        self._suspected: tuple[int, LatencySummary] | None = None
        self._returned_ns: int | None = None
        """Time of the last switch back."""

    def find_violation(self, now_ns: int, window: LatencyWindow, rules: ShadowRules) -> Violation | None:
        """Return the violation that is confirmed now. Call it with every message."""
        if self._suspected is None:
            if window.is_violated(now_ns - rules.check_ns):
                self._suspected = now_ns, window.summarize(now_ns - rules.check_ns)
            return None
        since_ns, first = self._suspected
        if now_ns < since_ns + rules.confirm_ns:
            return None
        self._suspected = None
        violation = Violation(first, window.summarize(since_ns))
        return violation if violation.is_confirmed else None

    def is_calm(self, now_ns: int, summary: LatencySummary, slo_ns: int, growth: float) -> bool:
        """Return whether the smaller share would have met the SLO for long enough.

        `growth`: larger share divided by the smaller one. Times grow by less, because k_act is proportional to
        1 / (r + k4) with k4 >= 0 (Eq. 11). So a stage that only met the SLO, for `PATIENCE` times as long, may also
        try.
        """
        if summary.is_violated:
            self._within_since_ns = now_ns
        if summary.is_violated or (summary.p99_ns is not None and summary.p99_ns * growth > slo_ns):
            self._calm_since_ns = now_ns
        within_ns = now_ns - self._within_since_ns
        return now_ns - self._calm_since_ns >= self.calm_ns or within_ns >= PATIENCE * self.calm_ns

    def on_switched(self, now_ns: int, rules: ShadowRules, *, back: bool) -> None:
        """Start a new observation. A switch soon after the last switch back doubles the time before the next."""
        self._suspected, self._calm_since_ns, self._within_since_ns = None, now_ns, now_ns
        if back:
            self._returned_ns = now_ns
        elif self._returned_ns is not None:
            failed = now_ns < self._returned_ns + 2 * self.calm_ns
            self.calm_ns = min(2 * self.calm_ns, rules.max_calm_ns) if failed else rules.calm_ns

    def reset(self, now_ns: int) -> None:
        """Discard suspected violations: arrivals were not observed."""
        self._suspected, self._calm_since_ns, self._within_since_ns = None, now_ns, now_ns
