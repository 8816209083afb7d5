"""Durations of which quantiles are known: as a histogram, in bounded memory, or as samples, exactly."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

import numpy as np

from horologe_common.clock import ms, us

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FINE_NS, LONGEST_NS = us(10), ms(1000)


class DurationCounts:
    """A histogram of durations with equal buckets up to a second. Longer ones are in the last bucket."""

    __slots__ = ("counts", "last", "max_ns", "total", "width_ns")

    def __init__(self, width_ns: int = FINE_NS) -> None:
        self.width_ns = width_ns
        self.last = LONGEST_NS // width_ns
        self.counts: dict[int, int] = {}
        """Durations by number of the bucket, without empty buckets."""
        self.total = 0
        self.max_ns = 0

    def add(self, took_ns: int) -> None:
        """Add a duration."""
        at = took_ns // self.width_ns
        if at > self.last:
            at = self.last
        counts = self.counts
        counts[at] = counts.get(at, 0) + 1
        self.total += 1
        if took_ns > self.max_ns:
            self.max_ns = took_ns

    def quantile_ms(self, q: float) -> float:
        """Return the upper bound of the bucket of the quantile, at most the maximum; 0 if there are no durations."""
        rank, seen = q * self.total, 0
        for at in sorted(self.counts):
            seen += self.counts[at]
            if seen >= rank:
                return round(min((at + 1) * self.width_ns, self.max_ns) / 1e6, 3)
        return round(self.max_ns / 1e6, 3)


class DurationSamples:
    """All durations, for exact quantiles."""

    __slots__ = ("samples_ns",)

    def __init__(self) -> None:
        self.samples_ns = array("q")

    def add(self, took_ns: int) -> None:
        """Add a duration."""
        self.samples_ns.append(took_ns)


def quantiles_ms(parts: Iterable[DurationSamples], quantiles: Sequence[float]) -> list[float]:
    """Return exact quantiles of the durations of all parts; 0 if there are no durations."""
    samples = np.concatenate([np.empty(0, np.int64), *(np.asarray(part.samples_ns, np.int64) for part in parts)])
    if not samples.size:
        return [0.0] * len(quantiles)
    return [float(value) / 1e6 for value in np.quantile(samples, quantiles, method="inverted_cdf")]
