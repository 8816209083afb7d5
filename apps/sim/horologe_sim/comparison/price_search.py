"""Search for the prices of device time that give the least bound of `bound.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_sim.comparison.bound_problem import BoundProblem, DeviceKind, PageRoom, Period

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

STEPS = 80
MOST_BINS = 2000
BINS_PER_WINDOW = 4
"""Bins of a price in the median time from arrival to deadline."""
FIRST_STEP, LAST_STEP, PATIENCE = 1.0, 0.02, 4
"""Change of the logarithm of a price where all of a device's time is free. It is halved after `PATIENCE` steps without
a gain of a ten-thousandth. Below `LAST_STEP` the search ends."""
MOST_DEMAND = 3.0
"""Demand for the time of a bin, as a multiple of this time, from which on its price rises no faster."""
LEAST_PRICE = 1e-4
"""Part of the highest first price below which no price falls: from 0 it could not rise again."""
QUANTILES = np.linspace(0.02, 0.98, 13)
"""Of the times of a row in the best batches: the first prices that are tried."""
ROUNDING_NS = 2.0
"""A simulated EXEC may be this much shorter: the worker rounds its time down twice."""
MOST_STARTS = 2e7
"""Bins are wider if there would be more starts. They take about 100 bytes each."""


class Starts(NamedTuple):
    """Starts of batches, sorted by request: all at which a request may be worth most.

    The rows of `bins` and `parts` are the start and the end with each factor of the noise: a bin of the prices of all
    kinds of devices, and the part of this bin that is before.
    """

    request: Ints
    served: Floats
    """Probability that the request is in time."""
    holds: Floats
    """Requests that share the batch."""
    bins: Ints
    parts: Floats
    first: Ints
    """Position of the first start of each request that has any."""


class Grid(NamedTuple):
    """Bins of equal width, from the first arrival to the last deadline."""

    begin_ns: float
    width_ns: float
    bins: int

    def places(self, times_ns: Floats) -> tuple[Ints, Floats]:
        """Return the bin of each time, and the part of the bin before it. Times beyond the grid count as its ends."""
        at = np.clip((times_ns - self.begin_ns) / self.width_ns, 0.0, self.bins)
        bins = np.minimum(at.astype(np.int64), self.bins - 1)
        return bins, at - bins

    def edges_within(self, first_ns: Floats, last_ns: Floats, shift_ns: Floats) -> tuple[Ints, Floats]:
        """Return all times from `first_ns` to `last_ns` that are `shift_ns` before an edge, and whose they are."""
        low = np.ceil((first_ns + shift_ns - self.begin_ns) / self.width_ns)
        high = np.floor((last_ns + shift_ns - self.begin_ns) / self.width_ns)
        count = np.maximum(0, high - low + 1).astype(int)
        owner = np.repeat(np.arange(len(low)), count)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        return owner, self.begin_ns + (low[owner] + number) * self.width_ns - shift_ns[owner]


class PriceSearch:
    """The bound at any prices, by kind of device and bin, and a search for the least one."""

    def __init__(self, problem: BoundProblem) -> None:
        self._problem = problem
        self.grid = _make_grid(problem)
        self._starts = _find_starts(problem, self.grid)
        self._whole_ns = np.array([[kind.devices * self.grid.width_ns] for kind in problem.kinds])
        self._free_ns = np.array([kind.devices * _free_ns(kind, self.grid) for kind in problem.kinds])
        self._signs = np.concatenate([[-1.0], problem.weights])

    def evaluate(self, prices: Floats, room: PageRoom | None = None) -> tuple[float, Floats]:
        """Return the bound at these prices, (kinds, bins) per ns, and its slope."""
        starts, width_ns = self._starts, self.grid.width_ns
        flat, before = prices.ravel(), (np.cumsum(prices, axis=1) - prices).ravel()
        cost = np.zeros(len(starts.request))
        for sign, bins, parts in zip(self._signs, starts.bins, starts.parts, strict=True):
            cost += sign * (before[bins] + parts * flat[bins])
        gain = starts.served - width_ns * cost / starts.holds
        values = np.zeros(len(self._problem.arrival_ns))
        if starts.first.size:
            values[starts.request[starts.first]] = np.maximum(0.0, np.maximum.reduceat(gain, starts.first))
        total, kept = room.most_valuable(values) if room else (float(values.sum()), np.ones(len(values)))
        best = np.flatnonzero((gain >= values[starts.request]) & (gain > 0))
        best = best[np.unique(starts.request[best], return_index=True)[1]]
        slope = self._free_ns - self._used_ns(best, kept)
        return float((prices * self._free_ns).sum()) + total + self._problem.repeated, slope

    def _used_ns(self, best: Ints, kept: Floats) -> Floats:
        """Return the device time by kind and bin that these starts take, for their requests' parts of the batches."""
        starts, shape = self._starts, self._free_ns.shape
        share = kept[starts.request[best]] / starts.holds[best]
        inside, beyond = np.zeros(self._free_ns.size), np.zeros(self._free_ns.size)
        for sign, bins, parts in zip(self._signs, starts.bins[:, best], starts.parts[:, best], strict=True):
            inside += np.bincount(bins, sign * share * parts, inside.size)
            beyond += np.bincount(bins, sign * share, inside.size)
        later = np.cumsum(beyond.reshape(shape)[:, ::-1], axis=1)[:, ::-1] - beyond.reshape(shape)
        return self.grid.width_ns * (inside.reshape(shape) + later)

    def least_bound(self, room: PageRoom | None = None, steps: int = STEPS) -> float:
        """Return the least bound found: without prices, at constant ones, and after steps along the slope.

        A step multiplies each price. Where steps gain no more they go back and forth, and shorter ones continue from
        the mean of the last ones: the bound is convex, so its value at the mean is at most the mean value.
        """
        prices, slope, least = self._constant_prices(room)
        lowest, step, stalled, path = LEAST_PRICE * float(prices.max()), FIRST_STEP, 0, [prices]
        for _ in range(steps):
            demand = np.clip(slope / self._whole_ns, -MOST_DEMAND, 1.0)
            prices = np.maximum(prices, lowest) * np.exp(-step * demand)
            bound, slope = self.evaluate(prices, room)
            path.append(prices)
            stalled = 0 if bound < least * (1 - 1e-4) else stalled + 1
            least = min(least, bound)
            if stalled == PATIENCE:
                prices = np.mean(path[-2 * PATIENCE :], axis=0)
                bound, slope = self.evaluate(prices, room)
                least, step, stalled, path = min(least, bound), step / 2, 0, [prices]
            if step < LAST_STEP:
                break
        return least

    def _constant_prices(self, room: PageRoom | None) -> tuple[Floats, Floats, float]:
        """Return the best of some constant prices, inverse to the factors of the devices, its slope, and the bound.

        The bound is that without prices if it is lower. Steps could not leave these.
        """
        kinds = self._problem.kinds
        rows_ns = (self._problem.exec_ns / kinds[0].holds).min(0)
        whole = np.ones(self._free_ns.shape) / np.array([[kind.factor] for kind in kinds])
        trials = np.append(1 / np.quantile(rows_ns, QUANTILES), 0.1 / rows_ns.max())
        options = [(whole * trial, *self.evaluate(whole * trial, room)) for trial in trials]
        prices, bound, slope = min(options, key=lambda option: option[1])
        return prices, slope, min(bound, self.evaluate(0 * whole, room)[0])


def _make_grid(problem: BoundProblem) -> Grid:
    begin_ns, end_ns = float(problem.arrival_ns.min()), float(problem.deadline_ns.max())
    windows_ns, sizes = problem.deadline_ns - problem.arrival_ns, len(problem.exec_ns)
    edges_ns = float(windows_ns.sum()) * sizes * len(problem.kinds) * (1 + len(problem.factors))
    width_ns = max(float(np.median(windows_ns)) / BINS_PER_WINDOW, edges_ns / MOST_STARTS, 1.0)
    bins = int(min(MOST_BINS, max(1, (end_ns - begin_ns) // width_ns)))
    return Grid(begin_ns, (end_ns - begin_ns) / bins, bins)


def _free_ns(kind: DeviceKind, grid: Grid) -> Floats:
    """Return the time of each bin in which a device of the kind is not lost."""
    edges_ns = grid.begin_ns + grid.width_ns * np.arange(grid.bins + 1)
    free_ns = np.full(grid.bins, grid.width_ns)
    for period, later in zip(kind.periods[:-1], kind.periods[1:], strict=True):
        lost_ns = np.minimum(edges_ns[1:], later.from_ns) - np.maximum(edges_ns[:-1], period.until_ns)
        free_ns -= np.maximum(0.0, lost_ns)
    return free_ns


def _find_starts(problem: BoundProblem, grid: Grid) -> Starts:
    """Return the starts between which the value of a start is linear, for each kind of device, size and request."""
    parts = [
        _starts_in(problem, grid, number, period, row)
        for number, kind in enumerate(problem.kinds)
        for period in kind.periods
        for row in range(len(problem.exec_ns))
    ]
    request, served, holds, bins, before = (np.concatenate(column, axis=-1) for column in zip(*parts, strict=True))
    order = np.argsort(request, kind="stable")
    first = np.unique(request[order], return_index=True)[1]
    return Starts(request[order], served[order], holds[order], bins[:, order], before[:, order], first)


def _starts_in(
    problem: BoundProblem, grid: Grid, number: int, period: Period, row: int
) -> tuple[Ints, Floats, Floats, Ints, Floats]:
    """Return the columns of `Starts` for batches of one size in a period of a kind of device.

    A size that can hold no more requests than the next smaller one takes longer for nothing, and is left out.
    """
    kind, factors = problem.kinds[number], problem.factors
    exec_ns = problem.exec_ns[row] * kind.factor * period.slowness
    due_ns = np.minimum(problem.deadline_ns, period.ends_ns)
    first_ns = np.maximum(problem.arrival_ns, period.from_ns)
    last_ns = np.minimum(due_ns + ROUNDING_NS - factors[0] * exec_ns, period.until_ns)
    larger = kind.holds[row] > (kind.holds[row - 1] if row else 0)
    fits = np.flatnonzero((first_ns <= last_ns) & larger)
    exec_ns, due_ns, first_ns, last_ns = (each[fits] for each in (exec_ns, due_ns, first_ns, last_ns))
    whole = np.arange(len(fits))
    parts = [(whole, first_ns), (whole, last_ns)]
    parts += [(whole, np.clip(due_ns - factor * exec_ns, first_ns, last_ns)) for factor in factors[1:]]
    parts += [grid.edges_within(first_ns, last_ns, factor * exec_ns) for factor in (0.0, *factors)]
    owner, start_ns = (np.concatenate(column) for column in zip(*parts, strict=True))
    times_ns = start_ns + np.concatenate([[0.0], factors])[:, None] * exec_ns[owner]
    served = problem.weights @ (times_ns[1:] <= due_ns[owner] + ROUNDING_NS)
    bins, before = grid.places(np.minimum(times_ns, period.ends_ns))
    return fits[owner], served, kind.holds[row][fits[owner]], bins + number * grid.bins, before
