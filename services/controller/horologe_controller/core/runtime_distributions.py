"""Distributions of execution times: of single requests by application and length, and of batches (ORLOJ 3.2, 4.2).

A request alone takes base + l, a batch of k requests takes base + scale(k) * max(l). `base` is c0 of ORLOJ's eq. 3, and
l is what a row adds (c1 times its length). scale(k) is k in eq. 3, and less on devices that run several rows at once.
Requests with the same distribution are of one *kind*. Example: with base 2 ms and scale(4) = 3, a batch of four rows
that would add 1, 1, 2 and 5 ms takes 2 + 3 * 5 = 17 ms, as every row is padded to the longest.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.core.instruments import HIGH_QUANTILE
from horologe_common.distribution import Distribution, mixture

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from numpy.typing import NDArray

    from horologe_common.wire import Distributions
    from horologe_controller.core.requests.request import Request

    Floats = NDArray[np.float64]

HOPELESS_QUANTILE = 0.01
"""A request is refused, and a batch not started, when fewer than 1% of its kind would still finish in time."""
GRID = 96
"""Points of the common grid of all kinds, in even ratios: over a range of 1 to 20 they are 3% apart."""
SLOW_STEP, MOST_STEPS = 1.05, 110
"""Slowness of a device is distinguished in powers of 1.05, up to 200 times."""


class LongestRow:
    """Distribution of what the longest of rows adds: CDF on a grid, mean, standard deviation, and two quantiles."""

    __slots__ = ("_cdf", "_grid_ns", "deviation_ns", "high_ns", "low_ns", "mean_ns")

    def __init__(self, grid_ns: list[float], cdf: Floats) -> None:
        """`cdf` (GRID,): at the times `grid_ns`."""
        self._grid_ns = grid_ns
        self._cdf: list[float] = cdf.tolist()
        below = (cdf[1:] + cdf[:-1]) / 2
        grid = np.array(grid_ns)
        self.mean_ns = float(grid_ns[-1] - below @ np.diff(grid))
        square = float(grid_ns[-1] ** 2 - below @ np.diff(grid * grid))
        self.deviation_ns = math.sqrt(max(0.0, square - self.mean_ns**2))
        self.high_ns, self.low_ns = np.interp((HIGH_QUANTILE, HOPELESS_QUANTILE), cdf, grid_ns).tolist()

    def part_within(self, row_ns: float) -> float:
        """Return the probability that the longest row adds at most `row_ns`."""
        grid_ns, cdf = self._grid_ns, self._cdf
        if row_ns >= grid_ns[-1]:
            return cdf[-1]
        if row_ns < grid_ns[0]:
            return 0.0
        at = bisect_right(grid_ns, row_ns)
        low_ns, below = grid_ns[at - 1], cdf[at - 1]
        return below + (row_ns - low_ns) / (grid_ns[at] - low_ns) * (cdf[at] - below)


class SoloDistribution:
    """Distribution of solo times of an application's requests of up to `length`; `length` 0: of any length.

    `samples`: how many it is of, its weight in mixtures.
    """

    __slots__ = ("application", "length", "samples", "solo")

    def __init__(self, application: str, length: int, solo: Distribution, samples: float = 1.0) -> None:
        self.application = application
        self.length = length
        self.solo = solo
        self.samples = samples


class RuntimeDistributions:
    """Distributions of one model. Kinds are numbered by mean, shortest first; rows of every array are kinds."""

    def __init__(
        self, base_ns: int, parts: Sequence[SoloDistribution], batch_scales: Sequence[tuple[int, float]] = ()
    ) -> None:
        """Build from the published distributions. Raises ValueError if there are none."""
        if not parts:
            raise ValueError("parts: got none, wanted at least one distribution")
        self.base_ns = base_ns
        self._batch_scales = tuple(batch_scales)
        self.parts = sorted(_with_marginals(parts), key=lambda part: (part.solo.mean_ns, part.application, part.length))
        rows = [part.solo.excess_over(base_ns) for part in self.parts]
        self.row_mean_ns: list[float] = [row.mean_ns for row in rows]
        """Mean of what a row adds, by kind."""
        self.least_ns: list[int] = [int(base_ns + row.quantile_ns(HOPELESS_QUANTILE)) for row in rows]
        mixed = mixture([part.solo for part in parts], [part.samples for part in parts])
        self.mean_ns = mixed.mean_ns
        self.spread = (mixed.quantile_ns(0.95) - mixed.quantile_ns(0.05)) / mixed.mean_ns
        least_ns = max(1.0, min(row.quantile_ns(1e-3) for row in rows) * 0.99)
        most_ns = max(row.edges_ns[-1] for row in rows)
        self.grid_ns: Floats = np.geomspace(least_ns, max(most_ns, 1.01 * least_ns), GRID)
        """Time that a row adds (GRID,)."""
        self.log_cdf: Floats = np.log(np.maximum(1e-9, [row.cdf(self.grid_ns) for row in rows]))
        """(kinds, GRID). A probability of 0 has no logarithm."""
        self.most_ns: list[float] = np.maximum.accumulate([row.edges_ns[-1] for row in rows]).tolist()
        """The most that a row of the kind, or of a kind before it, adds."""
        self._grid: list[float] = self.grid_ns.tolist()
        self._rows = rows
        self.scale = cache(self._find_scale)
        """Return how often what the longest row adds counts in a batch of the size."""
        self.kind_of = lru_cache(4096)(self._find_kind)
        """Return the kind of an application and a length."""
        self.longest_row = lru_cache(1024)(self._find_longest_row)
        """Return the distribution of what the longest of rows of these kinds, ascending, adds."""
        self.needed_ns = cache(self._find_needed_ns)
        """Return the median of what a batch (kind, size) takes beside `base_ns`."""
        self.most_per_ns = cache(self._find_most_per_ns)
        """Return the most requests per ns that a batch (kind, count, size) serves if its longest row is of the kind."""
        self._slowed = cache(self._slow_down)
        self._kind_of_part: dict[tuple[str, int], int] = {}
        self._lengths: dict[str, list[int]] = {}
        for kind, part in enumerate(self.parts):
            self._kind_of_part[part.application, part.length] = kind
            if part.length:
                self._lengths.setdefault(part.application, []).append(part.length)
        for lengths in self._lengths.values():
            lengths.sort()

    def __reduce__(self) -> tuple[Any, ...]:
        return RuntimeDistributions, (self.base_ns, self.parts, self._batch_scales)

    def __len__(self) -> int:
        """Return the number of kinds."""
        return len(self.parts)

    def slowed(self, slowness: float) -> RuntimeDistributions:
        """Return the distributions on a device that takes `slowness` times as long, to the nearest `SLOW_STEP`."""
        step = min(MOST_STEPS, round(math.log(slowness) / math.log(SLOW_STEP)))
        if step <= 0:
            return self
        return self._slowed(step)

    def _slow_down(self, step: int) -> RuntimeDistributions:
        return self.scaled(SLOW_STEP**step)

    def scaled(self, factor: float) -> RuntimeDistributions:
        """Return these distributions with all times multiplied by the factor."""
        parts = [
            SoloDistribution(part.application, part.length, part.solo.affine(0, factor), part.samples)
            for part in self.parts
        ]
        return RuntimeDistributions(int(factor * self.base_ns), parts, self._batch_scales)

    def batch_moments(self, requests: Sequence[Request], size: int) -> tuple[float, float]:
        """Return the mean duration of a batch of these requests, and its standard deviation as a part of the mean.

        Zeros for a batch of the profiler, of copies of one row: they take the same time, not independent times.
        """
        if any(one.solo and one.rows > 1 for one in requests):
            return 0.0, 0.0
        row, scale = self.longest_row(self.kinds_of_rows(requests)), self.scale(size)
        mean_ns = self.base_ns + scale * row.mean_ns
        return mean_ns, scale * row.deviation_ns / mean_ns

    def kinds_of_rows(self, requests: Sequence[Request]) -> tuple[int, ...]:
        """Return the kind of each row of the requests, ascending."""
        kind_of = self.kind_of
        return tuple(sorted([kind_of(one.application, one.length) for one in requests for _ in range(one.rows)]))

    def least_exec_ns(self, request: Request) -> int:
        """Return the time that all but 1% of the requests of this kind take at least, alone (`HOPELESS_QUANTILE`)."""
        least_ns = self.least_ns[self.kind_of(request.application, request.length)]
        if request.rows == 1:
            return least_ns
        scale = self.scale(request.spec.compiled_batch_size(request.rows))
        return int(self.base_ns + scale * (least_ns - self.base_ns))

    def _find_needed_ns(self, kind: int, size: int) -> float:
        return self.scale(size) * self._rows[kind].quantile_ns(0.5 ** (1 / size))

    def _find_most_per_ns(self, kind: int, count: int, size: int) -> float:
        return count / int(self.base_ns + self.scale(size) * self.longest_row((kind,)).high_ns)

    def _find_longest_row(self, kinds: tuple[int, ...]) -> LongestRow:
        """Return the product of the CDFs of independent rows (ORLOJ section 4.2), as a sum of logs."""
        return LongestRow(self._grid, np.exp(self.log_cdf[list(kinds)].sum(axis=0)))

    def _find_scale(self, size: int) -> float:
        """Return the scale of a batch of `size`; `size` if no batch was measured.

        Between measured sizes it is interpolated. Beyond them a row costs as much as in the largest measured batch: a
        gain that was not measured is not assumed.
        """
        if not self._batch_scales:
            return float(size)
        sizes = [measured for measured, _ in self._batch_scales]
        scale = float(np.interp(size, sizes, [scale for _, scale in self._batch_scales]))
        return scale * max(1.0, size / sizes[-1])

    def _find_kind(self, application: str, length: int) -> int:
        """Return the most specific kind for a request: its own bucket of lengths, or the nearest above."""
        for name in (application, ""):
            lengths = self._lengths.get(name, [])
            if length and lengths:
                return self._kind_of_part[name, lengths[min(bisect_left(lengths, length), len(lengths) - 1)]]
            if (name, 0) in self._kind_of_part:
                return self._kind_of_part[name, 0]
        return self._kind_of_part["", 0]


def store_distributions(stored: MutableMapping[str, RuntimeDistributions], message: Distributions) -> None:
    """Replace a dynamic model's distributions, or remove those of a model that turns out to be static.

    Raises ValueError for invalid histograms.
    """
    if not (message.dynamic and message.histograms):
        stored.pop(message.model, None)
        return
    parts = [
        SoloDistribution(
            part.application, part.length, Distribution.from_counts(part.edges_ns, part.counts), sum(part.counts)
        )
        for part in message.histograms
    ]
    stored[message.model] = RuntimeDistributions(message.base_ns, parts, message.batch_scales)


def _with_marginals(parts: Sequence[SoloDistribution]) -> list[SoloDistribution]:
    """Add mixtures for requests whose application, length or both have no distribution of their own."""
    by_key = {(part.application, part.length): part for part in parts}
    wider = [(part.application, 0) for part in parts] + [("", part.length) for part in parts] + [("", 0)]
    for application, length in wider:
        if (application, length) not in by_key:
            included = [
                part
                for part in parts
                if (not application or part.application == application) and (not length or part.length == length)
            ]
            samples = [part.samples for part in included]
            solo = mixture([part.solo for part in included], samples)
            by_key[application, length] = SoloDistribution(application, length, solo, sum(samples))
    return list(by_key.values())
