"""Recent latencies of a stage, from the controller's Events, and their 99th percentile."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from horologe_common.clock import s
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
