"""The bound for hidden execution times against the best policy of small cases, by exhaustive search."""

from __future__ import annotations

import functools
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horologe_common.clock import ms
from horologe_experiments.orloj.bounds.hidden import hidden_bound
from horologe_experiments.orloj.workloads import Workload, padded_batching

pytestmark = pytest.mark.timeout(180)  # compiling takes 4 s of a core
SHORT, LONG = (ms(2.2), ms(3)), (ms(3), ms(6))


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile the searches before the tests, whose time limits are short."""
    nothing, solos = np.zeros(1, np.int64), np.array([ms(3)])
    hidden_bound(
        Workload("", nothing, solos, nothing, nothing, ms(4), padded_batching(ms(2)), (1.0,), (solos,)), steps=2
    )


def best_policy(workload: Workload) -> float:
    """Return the expected number of requests that the best scheduler without knowledge of execution times finishes."""
    arrival, slo_ns = workload.arrival_ns.tolist(), workload.slo_ns

    @functools.cache
    def value(now_ns: int, left: tuple[int, ...]) -> float:
        best = max((value(arrival[one], left) for one in left if arrival[one] > now_ns), default=0.0)
        ready = [one for one in left if arrival[one] <= now_ns]
        for count in range(1, len(ready) + 1):
            for batch in combinations(ready, count):
                best = max(best, run(now_ns, batch, tuple(one for one in left if one not in batch)))
        return best

    def run(now_ns: int, batch: tuple[int, ...], left: tuple[int, ...]) -> float:
        solos = [workload.solos_ns[workload.application[one]].tolist() for one in batch]
        total = 0.0
        for drawn in product(*solos):
            end_ns = now_ns + workload.batching.batch_ns(len(batch), max(drawn))
            in_time = sum(arrival[one] + slo_ns >= end_ns for one in batch)
            total += (in_time + value(end_ns, left)) / 2 ** len(batch)
        return total

    return value(0, tuple(range(workload.requests)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, ms(12)), st.integers(0, 1)), min_size=1, max_size=4), st.integers(ms(6.5), ms(16))
)
def test_no_policy_finishes_more(requests: list[tuple[int, int]], slo_ns: int) -> None:
    columns = np.array(sorted(requests), np.int64).T
    workload = Workload(
        "small",
        columns[0].copy(),
        np.full(len(requests), SHORT[0]),
        columns[1].copy(),
        columns[1],
        slo_ns,
        padded_batching(ms(2)),
        (0.5, 0.5),
        (np.array(SHORT, np.int64), np.array(LONG, np.int64)),
    )
    assert best_policy(workload) <= hidden_bound(workload, steps=20) + 1e-6


def test_probabilities_count() -> None:
    """Check that a lone request with a probability of one half to finish in time counts as half."""
    solos = (np.array([ms(3), ms(6)], np.int64),)
    nothing = np.zeros(1, np.int64)
    workload = Workload(
        "one", nothing, np.array([ms(3)]), nothing, nothing, ms(4), padded_batching(ms(2)), (1.0,), solos
    )
    assert best_policy(workload) == 0.5
    assert hidden_bound(workload, steps=100) == pytest.approx(0.5, abs=0.01)
