"""The best schedule found with full knowledge of arrivals and execution times, and an upper bound on any schedule.

One device, no preemption of batches. The objective is the number of requests that finish by their deadlines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_experiments.orloj.bounds.beam import search
from horologe_experiments.orloj.bounds.choices import Guide
from horologe_experiments.orloj.bounds.lagrangian import BUCKETS, find_bound, make_plan, width_ns
from horologe_experiments.orloj.bounds.problem import problem_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_experiments.orloj.bounds.problem import Problem
    from horologe_experiments.orloj.workloads import Workload

STEPS = 120
"""Steps of the search for prices. 1,500 steps lower the bound of a two-modal row by less than a thousandth more."""
NARROW, WIDTH = 10, 60
"""Partial schedules of the first search, without good prices, and of the later ones."""
FACTORS = (0.85, 0.95, 1.0)
"""Value of the remaining time, as factors of its bound. The bound is never reached, so factors below 1 often help."""
FIRST_PRICE = 0.5
"""Price of every request in the first search."""
MARKS = 7
"""Seed of the hashes of sets of requests."""


class Solution(msgspec.Struct, frozen=True):
    """A schedule: start and end of each request's batch, -1 if not served. No schedule finishes more than `bound`."""

    finished: int
    bound: int
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]

    @property
    def rate(self) -> float:
        """Return the share of the requests that finish in time."""
        return self.finished / len(self.end_ns)

    @property
    def bound_rate(self) -> float:
        """Return the bound as a share of the requests."""
        return self.bound / len(self.end_ns)


def solve(workload: Workload, steps: int = STEPS, width: int = WIDTH) -> Solution:
    """Return the best of several beam searches, and the bound. Deterministic. Raises AssertionError for a bug."""
    problem = problem_of(workload)
    best = _search(problem, np.full(workload.requests, FIRST_PRICE), width_ns(problem, BUCKETS), 1.0, NARROW)
    prices = find_bound(problem, best.finished, steps)
    for factor in FACTORS:
        if best.finished < prices.finished:
            solution = _search(problem, prices.mean, prices.bucket_ns, factor, width)
            best = max(best, solution, key=lambda candidate: candidate.finished)
    check(workload, best)
    return msgspec.structs.replace(best, bound=prices.finished)


def check(workload: Workload, solution: Solution) -> None:
    """Check the invariants of a schedule. Raises AssertionError.

    Invariants: the members of a batch have arrived at its start, end together after its execution time and by their
    deadlines, and batches do not overlap.
    """
    served = np.flatnonzero(solution.end_ns >= 0)
    assert len(served) == solution.finished <= solution.bound
    free_ns = 0
    for start_ns in np.unique(solution.start_ns[served]).tolist():
        batch = served[solution.start_ns[served] == start_ns]
        batch_ns = workload.batching.batch_ns(len(batch), int(workload.solo_ns[batch].max()))
        assert start_ns >= max(free_ns, workload.arrival_ns[batch].max())
        free_ns = start_ns + batch_ns
        assert (solution.end_ns[batch] == free_ns).all()
        assert (workload.arrival_ns[batch] + workload.slo_ns >= free_ns).all()


def _search(problem: Problem, prices: NDArray[np.float64], bucket_ns: int, factor: float, width: int) -> Solution:
    marks = np.random.default_rng(MARKS).integers(1 << 62, size=len(prices))
    value = factor * make_plan(problem, prices, bucket_ns).value
    finished, start, end = search(problem, Guide(prices, value, bucket_ns), width, marks)
    return Solution(finished, len(prices), start, end)
