"""Distribution of what the longest row of a batch adds to its time."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

EXPECTED_QUANTILE = 0.9
"""Quantile of a batch's duration that is sent as expected, as with the estimates of static models."""
HOPELESS_QUANTILE = 0.01
"""A request is refused, and a batch not started, when fewer than 1% of its kind would still finish in time."""


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
        self.high_ns, self.low_ns = np.interp((EXPECTED_QUANTILE, HOPELESS_QUANTILE), cdf, grid_ns).tolist()

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
