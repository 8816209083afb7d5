"""A Lagrangian upper bound on the number of requests that any schedule finishes in time.

Claim. For any prices u_i >= 0 and any bucket width w > 0, a schedule of one device, which runs batches one after the
other and may know all arrivals and execution times, finishes at most sum(u) + V requests in time. V is the best total
of a *relaxed* schedule, in which request i earns 1 - u_i each time it is in a batch and time is counted in buckets: a
batch of length L that starts in bucket b holds only requests that have arrived before the end of b and whose deadline
is at or after b w + L, and the next one may start in bucket b + floor(L / w), or b + 1 where that is b.

Proof. Take out of each batch what finishes late or not at all: a smaller batch of no longer requests takes no longer,
so times still fit, and every request left is in one batch and in time. Let batch j start at t_j, in bucket
b_j = floor(t_j / w), and take L_j. Its requests have arrived by t_j < (b_j + 1) w, and their deadlines are at or after
t_j + L_j >= b_j w + L_j. As t_(j+1) >= t_j + L_j, b_(j+1) >= floor(b_j + L_j / w) = b_j + floor(L_j / w). Two batches
may start in the same bucket only if L_j < w; w is at most the shortest batch, so b_(j+1) >= b_j + 1 too. So this is a
relaxed schedule, and it finishes sum_i x_i = sum_i u_i x_i + sum_i (1 - u_i) x_i <= sum(u) + V, where x_i is 1 for
what finishes and 0 else. A dynamic programme over the buckets gives V exactly (`relaxation.py`): given start, size and
longest request, the best batch is that of the highest rewards. []

Prices are found by subgradient steps (Polyak's length) and need not be optimal; u = 1 gives the number of requests.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_experiments.orloj.bounds.relaxation import Plan, count_batches, empty_plan, sweep

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_experiments.orloj.bounds.problem import Problem

BUCKETS = 128
"""Buckets from an arrival to the earliest deadline during the search for prices."""
FINE = 8
"""Factor by which the buckets of the final evaluation are narrower. It costs as much as so many steps."""
PATIENCE = 8
SHRINK = 0.6
"""Factor on the step length after `PATIENCE` steps without a gain of a thousandth."""
MOMENTUM = 0.7
"""Weight of the previous direction."""
ROUNDING = 1e-6
"""Larger than the floating point error of a sum of thousands of numbers below 1."""


class Prices(NamedTuple):
    """Price of each request, from 0 to 1: the value for the others of giving it up. And the bound that follows."""

    best: NDArray[np.float64]
    """Prices of the least bound."""
    mean: NDArray[np.float64]
    """Mean over the later half of the steps, which guides a search best."""
    finished: int
    """The bound: no schedule finishes more."""
    bucket_ns: int


def find_bound(problem: Problem, reached: int, steps: int) -> Prices:
    """Return the least bound of `steps` steps. `reached`: requests that some schedule finishes, the more the better."""
    bucket_ns = width_ns(problem, BUCKETS)
    plan = empty_plan(problem, bucket_ns)
    descent = Descent(len(problem.arrival))
    for step in range(steps):
        reward = 1.0 - descent.prices
        total = float(descent.prices.sum()) + sweep(problem, reward, bucket_ns, plan)
        descent.record_bound(total)
        if descent.least < reached + 1 or not descent.move(
            count_batches(problem, reward, bucket_ns, plan), total - reached
        ):
            break
        if step >= steps // 2:
            descent.later_prices.append(descent.prices)
    mean = np.mean(descent.later_prices, axis=0) if descent.later_prices else descent.prices
    least = min(descent.least, evaluate_prices(problem, descent.best, width_ns(problem, BUCKETS * FINE)))
    return Prices(descent.best, mean, math.floor(least + ROUNDING), bucket_ns)


def evaluate_prices(problem: Problem, prices: NDArray[np.float64], bucket_ns: int) -> float:
    """Return the bound at these prices with buckets of this width. Raises ValueError if the proof does not hold."""
    shortest_ns = int(problem.fixed[0] + problem.per[0] * problem.solo.min())
    if not 0 < bucket_ns <= shortest_ns or prices.min() < 0:
        raise ValueError(f"bucket_ns, prices: got {bucket_ns}, {prices.min()}, wanted 1 to {shortest_ns}, 0 or more")
    return float(prices.sum()) + sweep(problem, 1.0 - prices, bucket_ns, empty_plan(problem, bucket_ns))


def make_plan(problem: Problem, prices: NDArray[np.float64], bucket_ns: int) -> Plan:
    """Return the plan at these prices: the value of the remaining time by bucket."""
    plan = empty_plan(problem, bucket_ns)
    sweep(problem, 1.0 - prices, bucket_ns, plan)
    return plan


def width_ns(problem: Problem, buckets: int) -> int:
    """Return the width of a bucket: the shortest budget divided by `buckets`, at most the shortest batch."""
    shortest_ns = int(problem.fixed[0] + problem.per[0] * problem.solo.min())
    return max(1, min(shortest_ns, int((problem.deadline - problem.arrival).min()) // buckets))


class Descent:
    """Subgradient descent on the prices, which start at 1."""

    def __init__(self, requests: int) -> None:
        self.prices = self.best = np.ones(requests)
        self.least = float(requests)
        self.later_prices: list[NDArray[np.float64]] = []
        self._direction = np.zeros(requests)
        self._length = 1.0
        self._stalled = 0

    def record_bound(self, total: float) -> None:
        """Record the bound at the current prices."""
        if total < self.least - 1e-3 * len(self.prices):
            self._stalled = 0
        if total < self.least:
            self.least, self.best = total, self.prices
        self._stalled += 1
        if self._stalled > PATIENCE:
            self._length, self._stalled = self._length * SHRINK, 0

    def move(self, times: NDArray[np.int64] | NDArray[np.float64], gap: float) -> bool:
        """Lower prices of requests in no batch, raise those in several. Return False if no step is possible."""
        self._direction = 1.0 - times + MOMENTUM * self._direction
        stuck = ((self.prices <= 0) & (self._direction > 0)) | ((self.prices >= 1) & (self._direction < 0))
        direction = np.where(stuck, 0.0, self._direction)
        squared = float(direction @ direction)
        if squared > 0:
            self.prices = np.clip(self.prices - self._length * gap / squared * direction, 0.0, 1.0)
        return squared > 0
