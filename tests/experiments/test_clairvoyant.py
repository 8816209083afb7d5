"""Schedules and bounds against the optimum of small cases: schedule <= optimum <= bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horologe_common.clock import ms
from horologe_experiments.orloj import cases, critical, llm
from horologe_experiments.orloj.bounds import lagrangian
from horologe_experiments.orloj.bounds.clairvoyant import check, solve
from horologe_experiments.orloj.bounds.problem import problem_of
from horologe_experiments.orloj.workloads import Batching, Workload, build_case, build_row, padded_batching

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.timeout(180)  # compiling takes 9 s of a core, and much longer where others want it too
STATIC = Batching((ms(3), ms(4), ms(6), ms(9), ms(16)), (0,) * 5)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile the searches before the tests, whose time limits are short."""
    solve(small([0, 1, 2], [ms(3)] * 3, ms(7), STATIC))


def optimum(workload: Workload) -> int:
    """Return the largest number that can finish, from the earliest end of every set over all its last batches."""
    arrival, solo = workload.arrival_ns.tolist(), workload.solo_ns.tolist()
    deadline = [one + workload.slo_ns for one in arrival]
    everyone = range(1 << workload.requests)
    members = [[one for one in range(workload.requests) if chosen >> one & 1] for chosen in everyone]
    batches = [
        (
            max(arrival[one] for one in inside),
            min(deadline[one] for one in inside),
            workload.batching.batch_ns(len(inside), max(solo[one] for one in inside)),
        )
        for inside in members[1:]
    ]
    ends: list[int | None] = [0] + [None] * (len(members) - 1)
    for chosen in everyone[1:]:
        batch = chosen
        while batch:
            before = ends[chosen ^ batch]
            released, wanted, takes = batches[batch - 1]
            if before is not None and (end := max(before, released) + takes) <= wanted:
                known = ends[chosen]
                ends[chosen] = end if known is None else min(known, end)
            batch = (batch - 1) & chosen
    return max(len(members[chosen]) for chosen in everyone if ends[chosen] is not None)


def small(arrivals: Sequence[int], solos: Sequence[int], slo_ns: int, batching: Batching) -> Workload:
    requests = len(arrivals)
    nothing = np.zeros(requests, np.int64)
    return Workload(
        "small",
        np.sort(np.array(arrivals, np.int64)),
        np.array(solos, np.int64),
        nothing,
        nothing,
        slo_ns,
        batching,
        (1.0,),
        (np.array(solos, np.int64),),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    requests = draw(st.integers(2, 8))
    arrivals = draw(st.lists(st.integers(0, ms(25)), min_size=requests, max_size=requests))
    slo_ns = draw(st.integers(ms(5), ms(20)))
    if draw(st.booleans()):
        return small(arrivals, [ms(3)] * requests, slo_ns, STATIC)
    solos = draw(st.lists(st.integers(ms(2.1), ms(5)), min_size=requests, max_size=requests))
    return small(arrivals, solos, slo_ns, padded_batching(ms(2)))


@settings(max_examples=60, deadline=None)
@given(workloads())
def test_the_optimum_is_between_the_schedule_and_the_bound(workload: Workload) -> None:
    found = solve(workload, steps=30, width=20)
    best = optimum(workload)
    assert found.finished <= best <= found.bound
    assert best - found.finished <= 1


@settings(max_examples=30, deadline=None)
@given(workloads(), st.data())
def test_any_prices_give_a_bound(workload: Workload, data: st.DataObject) -> None:
    prices = np.array(data.draw(st.lists(st.floats(0, 1), min_size=workload.requests, max_size=workload.requests)))
    problem = problem_of(workload)
    bucket_ns = data.draw(st.integers(ms(0.1), ms(2)))
    assert optimum(workload) <= lagrangian.evaluate_prices(problem, prices, bucket_ns) + 1e-6


def test_invalid_prices_are_rejected() -> None:
    problem = problem_of(small([0, 1], [ms(3)] * 2, ms(9), STATIC))
    with pytest.raises(ValueError, match="bucket_ns"):
        lagrangian.evaluate_prices(problem, np.ones(2), ms(4))
    with pytest.raises(ValueError, match="prices"):
        lagrangian.evaluate_prices(problem, np.array([1.0, -0.5]), ms(1))


def test_a_larger_batch_that_takes_less_time_is_rejected() -> None:
    odd = Batching((ms(3), ms(4), ms(6), ms(9), ms(8)), (0,) * 5)
    with pytest.raises(ValueError, match="batching"):
        problem_of(small([0, 1], [ms(3)] * 2, ms(9), odd))


def test_the_schedule_waits_for_a_future_request() -> None:
    """If the first request started at once, the second would be late. Both in one batch are in time."""
    workload = small([0, ms(0.5)], [ms(3), ms(3)], ms(5), STATIC)
    found = solve(workload)
    assert (found.finished, found.bound) == (2, 2)
    assert found.start_ns.tolist() == [ms(0.5), ms(0.5)]


@pytest.mark.parametrize("row", cases.table_rows()[::17], ids=lambda row: row.name)
def test_the_gap_is_small_on_rows_of_every_table(row: cases.TableRow) -> None:
    workload = build_row(row, 1.1 / (row.case.mean_ms / 1e3), 200, 3)
    found = solve(workload, steps=60, width=20)
    check(workload, found)
    assert found.bound_rate - found.rate <= 0.05


def test_the_same_workload_has_the_same_schedule() -> None:
    workload = llm.build_llm(2.0, 1.1, 200, 0)
    one, other = solve(workload, 30, 10), solve(workload, 30, 10)
    assert (one.end_ns == other.end_ns).all()
    assert one.bound == other.bound


def test_a_committed_critical_rate_is_critical() -> None:
    """Check the fastest case. `python -m horologe_experiments.orloj.critical` computes all cases."""
    (case,) = [one for one in cases.all_cases() if one.name == "resnet-imagenet"]

    def build_it(rate: float, seed: int) -> Workload:
        return build_case(case, critical.SLO_X_P99, rate, critical.REQUESTS, seed)

    rate = critical.critical_rates()[case.name]
    assert critical.mean_finish_rate(build_it, 0.999 * rate) >= critical.TARGET - 0.002
    assert critical.mean_finish_rate(build_it, 1.05 * rate) < critical.TARGET
