"""The best schedule found that knows everything, future arrivals and execution times, and a bound on the best there is.

One device, batches not preempted. What is maximised is how many requests finish by their deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_experiments.orloj.bounds.beam import search
from horologe_experiments.orloj.bounds.choices import Guide
from horologe_experiments.orloj.bounds.lagrangian import BUCKETS, bound, guide, width_ns
from horologe_experiments.orloj.bounds.problem import problem_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from horologe_experiments.orloj.bounds.problem import Problem
    from horologe_experiments.orloj.workloads import Workload

STEPS = 120
"""Of the search for prices: 1,500 of them lower the bound of a two-modal row by less than a thousandth."""
NARROW, WIDTH = 10, 60
FACTORS = (0.85, 0.95, 1.0)
"""What the rest of time is taken to be worth, in bounds on it. The bound is never quite reached, so less often pays."""
FIRST_PRICE = 0.5
"""Of each request, before prices are known."""
MARKS = 7


class Solution(msgspec.Struct, frozen=True):
    """`start_ns`, `end_ns`: of each request's batch, -1 where it is not served.

    No schedule finishes more than `bound`.
    """

    finished: int
    bound: int
    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]

    @property
    def rate(self) -> float:
        """Share of the requests that finish in time."""
        return self.finished / len(self.end_ns)

    @property
    def bound_rate(self) -> float:
        return self.bound / len(self.end_ns)


def solve(workload: Workload, steps: int = STEPS, width: int = WIDTH) -> Solution:
    """The best of several beam searches, and the bound. Deterministic; raises AssertionError were a schedule wrong."""
    problem = problem_of(workload)
    best = _search(problem, np.full(workload.requests, FIRST_PRICE), width_ns(problem, BUCKETS), 1.0, NARROW)
    prices = bound(problem, best.finished, steps)
    for factor in FACTORS:
        if best.finished < prices.finished:
            found = _search(problem, prices.mean, prices.bucket_ns, factor, width)
            best = max(best, found, key=lambda one: one.finished)
    check(workload, best)
    return msgspec.structs.replace(best, bound=prices.finished)


def check(workload: Workload, solution: Solution) -> None:
    """The laws of a schedule. Raises AssertionError.

    All of a batch start together, have arrived, and end in time after what the batch takes; batches do not overlap.
    """
    served = np.flatnonzero(solution.end_ns >= 0)
    assert len(served) == solution.finished <= solution.bound
    free_ns = 0
    for start_ns in np.unique(solution.start_ns[served]).tolist():
        batch = served[solution.start_ns[served] == start_ns]
        takes_ns = workload.batching.batch_ns(len(batch), int(workload.solo_ns[batch].max()))
        assert start_ns >= max(free_ns, workload.arrival_ns[batch].max())
        free_ns = start_ns + takes_ns
        assert (solution.end_ns[batch] == free_ns).all()
        assert (workload.arrival_ns[batch] + workload.slo_ns >= free_ns).all()


def _search(problem: Problem, prices: NDArray[np.float64], bucket_ns: int, factor: float, width: int) -> Solution:
    marks = np.random.default_rng(MARKS).integers(1 << 62, size=len(prices))
    value = factor * guide(problem, prices, bucket_ns).value
    return Solution(*_in_order(search(problem, Guide(prices, value, bucket_ns), width, marks), len(prices)))


def _in_order(
    found: tuple[int, NDArray[np.int64], NDArray[np.int64]], requests: int
) -> tuple[int, int, NDArray[np.int64], NDArray[np.int64]]:
    finished, start, end = found
    return finished, requests, start, end
