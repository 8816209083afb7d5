"""Recent arrivals of a pipeline in bins, from which the planner plans again (InferLine section 3)."""

from __future__ import annotations

from collections import deque

import msgspec

from horologe_common.clock import s

SPAN_NS = s(600)
"""Age beyond which bins are dropped. At 10 ms per bin these are at most 60,000."""


class ArrivalCounts(msgspec.Struct, frozen=True):
    """Queries by bin: `counts[i]` arrived in the bin that starts `i * bin_ns` after the first."""

    bin_ns: int
    counts: tuple[int, ...]
    calls_per_query: float = 1.0
    """The counts are calls of the entry stage; a query makes this many on average."""


class RecentArrivals:
    """Counts of the last `SPAN_NS`. An arrival costs one addition."""

    def __init__(self) -> None:
        self._bins: deque[tuple[int, int]] = deque()
        """(start, count), ascending, only bins with arrivals."""
        self._bin_ns = 0

    def add(self, at_ns: int, bin_ns: int, count: int) -> None:
        """Count arrivals of a bin. Bins come in the order of time. Another width drops all earlier bins."""
        if bin_ns != self._bin_ns:
            self._bins.clear()
            self._bin_ns = bin_ns
        start_ns = at_ns - at_ns % bin_ns
        if self._bins and self._bins[-1][0] >= start_ns:
            start_ns, earlier = self._bins.pop()
            count += earlier
        self._bins.append((start_ns, count))
        while self._bins[0][0] < start_ns - SPAN_NS:
            self._bins.popleft()

    def counts(self, calls_per_query: float) -> ArrivalCounts:
        """Return the counts from the first bin with arrivals to the last one."""
        if not self._bins:
            return ArrivalCounts(0, (), calls_per_query)
        first_ns = self._bins[0][0]
        counts = [0] * ((self._bins[-1][0] - first_ns) // self._bin_ns + 1)
        for start_ns, count in self._bins:
            counts[(start_ns - first_ns) // self._bin_ns] = count
        return ArrivalCounts(self._bin_ns, tuple(counts), calls_per_query)
