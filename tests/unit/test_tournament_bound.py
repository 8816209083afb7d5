"""The bound of the tournament: never below an exact solution of a tiny case, nor below what a scheduler serves."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from horologe_experiments.tournament.match import play
from horologe_experiments.tournament.traits import FIXED, find_traits
from horologe_experiments.tournament.workload import build_workload
from horologe_sim.comparison.bound import (
    Prices,
    Problem,
    evaluate_prices,
    least_bound,
    measured_requests,
    problem_of,
    resident_bound,
    score_bound,
)

SIZES = (1, 2, 4)


def tiny(seed: int) -> tuple[Problem, list[int]]:
    """Return a case of up to six requests for two models on one or two devices, and the model of each request."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 7))
    models = rng.integers(0, 2, count)
    tables = np.cumsum(rng.integers(1, 4, (2, 3)), axis=1).astype(float)
    arrival = np.sort(rng.integers(0, 8, count)).astype(float)
    deadline = arrival + rng.integers(2, 9, count).astype(float)
    exec_ns = tables[models].T
    holds = np.minimum(np.array(SIZES)[:, None], count) * np.ones(count)
    return Problem(arrival, deadline, exec_ns, holds, np.array([1.0, 2.0][: rng.integers(1, 3)])), models.tolist()


def most_in_time(problem: Problem, models: list[int]) -> int:
    """Return the most requests that any schedule serves in time, by exhaustive search."""

    def search(free: tuple[float, ...], left: frozenset[int]) -> int:
        best = 0
        for device, factor in enumerate(problem.factors):
            for size in range(1, 1 + min(len(left), SIZES[-1])):
                for batch in combinations(sorted(left), size):
                    if len({models[request] for request in batch}) > 1:
                        continue
                    row = next(row for row, fits in enumerate(SIZES) if fits >= size)
                    start = max(free[device], *(problem.arrival_ns[request] for request in batch))
                    end = start + factor * problem.exec_ns[row, batch[0]]
                    if end <= min(problem.deadline_ns[request] for request in batch):
                        after = (*free[:device], end, *free[device + 1 :])
                        best = max(best, size + search(after, left - set(batch)))
        return best

    return search((0.0,) * len(problem.factors), frozenset(range(len(models))))


@pytest.mark.parametrize("seed", range(15))
def test_no_schedule_of_a_tiny_case_serves_more(seed: int) -> None:
    problem, models = tiny(seed)
    assert least_bound(problem) >= most_in_time(problem, models) - 1e-6


@pytest.mark.parametrize("seed", range(10))
def test_the_bound_holds_at_any_prices(seed: int) -> None:
    problem, models = tiny(seed)
    edges = np.linspace(problem.arrival_ns.min(), problem.deadline_ns.max(), 6)
    prices = Prices(edges, np.random.default_rng(seed).uniform(0, 1, 5))
    assert evaluate_prices(problem, prices)[0] >= most_in_time(problem, models) - 1e-6


def test_it_is_tight_where_a_device_has_time_for_half_of_the_requests() -> None:
    count = 40
    zeros = np.zeros(count)
    problem = Problem(zeros, zeros + 20.0, np.ones((1, count)), np.ones((1, count)), np.ones(1))
    assert least_bound(problem) == pytest.approx(20, abs=0.5)


def test_pages_bound_the_requests_of_many_models() -> None:
    traits = FIXED["half-fits"]
    workload = build_workload(traits, 2000)
    chosen = measured_requests(workload)
    assert resident_bound(workload, chosen) == pytest.approx(len(chosen))
    empty = workload._replace(cluster=type(workload.cluster)(pages=0), factors=(1.0,))
    assert resident_bound(empty, chosen) < len(chosen)


@pytest.mark.parametrize("name", ["slo-100ms", "slo-25ms", "2", "4"])
def test_no_scheduler_serves_more_than_the_bound(name: str) -> None:
    workload = build_workload(find_traits(name), 200)
    bound = score_bound(workload)
    if bound is not None:
        assert play(workload, "horologe", {}).value <= bound
        assert problem_of(workload, measured_requests(workload)).exec_ns.shape[1] == len(measured_requests(workload))
