"""Measured times: rolling estimates and histograms with fixed buckets."""

from __future__ import annotations

import bisect
import math
from collections import deque
from typing import TYPE_CHECKING

from horologe_common.clock import s

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WINDOW = 10
"""Clockwork section 5.3: the last ten measurements of each action."""
AGE_NS = s(2)
"""A measurement older than this says nothing about now: one stall must not refuse a model for ever."""


class Rolling:
    """The last `window` measurements, none older than `age_ns`, and a high quantile of them.

    By default the second largest of ten (p90): one stalled action among ten does not move the estimate.
    """

    def __init__(self, window: int = WINDOW, age_ns: int = AGE_NS, quantile: float = 0.9) -> None:
        self._samples: deque[tuple[int, int]] = deque()
        self._ordered: list[int] = []
        self._window = window
        self._age_ns = age_ns
        self._quantile = quantile

    def observe(self, now_ns: int, value: int) -> None:
        if len(self._samples) == self._window:
            self._forget()
        self._samples.append((now_ns, value))
        bisect.insort(self._ordered, value)

    def high(self, now_ns: int) -> int | None:
        """The high quantile, or None without a recent measurement."""
        return self._at(now_ns, self._quantile)

    def median(self, now_ns: int) -> int | None:
        """The median, or None without a recent measurement."""
        return self._at(now_ns, 0.5)

    def _at(self, now_ns: int, quantile: float) -> int | None:
        while self._samples and self._samples[0][0] < now_ns - self._age_ns:
            self._forget()
        if not self._ordered:
            return None
        return self._ordered[math.ceil(quantile * len(self._ordered)) - 1]

    def _forget(self) -> None:
        """Drop the oldest."""
        _, value = self._samples.popleft()
        del self._ordered[bisect.bisect_left(self._ordered, value)]


class Estimate:
    """Predicted durations of one model on one share, by batch size: recent measurements over the profile's seed.

    Size 0 is LOAD. `pace` is the share's: thousandths of the profile's durations that its actions lately took.
    """

    __slots__ = ("_measured", "_pace", "_slowdown", "seed_ns")

    def __init__(self, seed_ns: Mapping[int, int], pace: Rolling) -> None:
        self.seed_ns = seed_ns
        self._pace = pace
        self._measured: dict[int, Rolling] = {}
        self._slowdown: Rolling | None = None

    def observe(self, now_ns: int, size: int, took_ns: int) -> None:
        seed_ns = self.seed_ns.get(size)
        if seed_ns is None:
            return
        if (measured := self._measured.get(size)) is None:
            measured = self._measured[size] = Rolling()
        measured.observe(now_ns, took_ns)
        if size > 0:  # LOAD says nothing about EXEC
            if self._slowdown is None:
                self._slowdown = Rolling(window=2 * WINDOW, quantile=0.5)
            permille = 1000 * took_ns // max(1, seed_ns)
            self._slowdown.observe(now_ns, permille)
            self._pace.observe(now_ns, permille)

    def predict(self, now_ns: int, size: int) -> int:
        """Duration of a batch of `size`. Sizes not run lately are the profile, times how far others are off theirs."""
        if (measured := self._measured.get(size)) is not None and (high_ns := measured.high(now_ns)) is not None:
            return high_ns
        return self.seed_ns[size] if size == 0 else self.seed_ns[size] * self._permille(now_ns) // 1000

    def typical(self, now_ns: int, size: int) -> int:
        """What a batch of `size` mostly takes: sums of many are estimated by this, not by the high quantile."""
        if (measured := self._measured.get(size)) is not None and (median_ns := measured.median(now_ns)) is not None:
            return median_ns
        return self.predict(now_ns, size)

    def _permille(self, now_ns: int) -> int:
        """The model's own pace, else the share's; never quicker than the profile on hearsay."""
        own = self._slowdown.high(now_ns) if self._slowdown is not None else None
        return max(1000, own or self._pace.high(now_ns) or 1000)


BUCKETS_NS = (
    *(round(step * 10**exponent) for exponent in range(4, 10) for step in (1, 1.5, 2, 3, 5, 7)),
    s(10),
)
"""10 us to 10 s, six a decade."""


class Histogram:
    """Counts by bucket, a sum, and quantiles good to a bucket."""

    def __init__(self, bounds: Sequence[int] = BUCKETS_NS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0
        self.sum = 0

    def observe(self, value: int) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += 1
        self.sum += value

    def quantile(self, q: float) -> int:
        """Upper bound of the bucket that holds quantile `q`; 0 when empty."""
        wanted, seen = q * self.total, 0
        for count, bound in zip(self.counts, (*self.bounds, self.bounds[-1]), strict=True):
            seen += count
            if seen and seen >= wanted:
                return bound
        return 0
