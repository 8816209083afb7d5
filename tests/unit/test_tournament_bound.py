"""The bound of the tournament: never below an exact solution of a tiny case, nor below what a scheduler serves."""

from __future__ import annotations

from itertools import combinations
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from horologe_common.clock import ms
from horologe_experiments.tournament.match import play
from horologe_experiments.tournament.traits import FIXED, find_traits
from horologe_experiments.tournament.workload import NOISE, build_workload
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
from horologe_sim.engine.noise import Noise
from horologe_sim.fast.traffic import Chunk

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


def a_workload_for_one_page(seed: int) -> SimpleNamespace:
    """Return up to five requests for two models on a device with room for one of them."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 6))
    times = np.sort(rng.integers(0, 400, count)) * ms(1)
    profiles = [
        SimpleNamespace(load_ns=ms(int(rng.integers(20, 200))), exec_ns={1: ms(int(rng.integers(5, 60)))})
        for _ in range(2)
    ]
    reports = [SimpleNamespace(spec=SimpleNamespace(pages=1), profile=profile) for profile in profiles]
    models = [SimpleNamespace(report=report) for report in reports]
    slos = (rng.integers(10, 400, count) * ms(1)).tolist()
    chunk = Chunk(times.tolist(), rng.integers(0, 2, count).tolist(), slos, [0] * count)
    cluster = SimpleNamespace(pages=1, client_ns=0, worker_ns=0, noise=Noise())
    return SimpleNamespace(chunk=chunk, loops=(), models=models, cluster=cluster, factors=(1.0,), warmup_ns=0)


def most_with_one_page(workload: SimpleNamespace) -> int:
    """Return the most requests in time with a LOAD whenever the model changes, by exhaustive search."""
    chunk = workload.chunk
    profiles = [model.report.profile for model in workload.models]

    def search(free_ns: int, resident: int, left: frozenset[int]) -> int:
        best = 0
        for request in left:
            model = chunk.models[request]
            loaded_ns = free_ns + (0 if model == resident else profiles[model].load_ns)
            end_ns = max(loaded_ns, chunk.times_ns[request]) + profiles[model].exec_ns[1]
            if end_ns <= chunk.times_ns[request] + chunk.slos_ns[request]:
                best = max(best, 1 + search(end_ns, model, left - {request}))
        return best

    return max(search(0, resident, frozenset(range(len(chunk.models)))) for resident in range(2))


@pytest.mark.parametrize("seed", range(15))
def test_no_schedule_of_a_tiny_case_with_loads_serves_more(seed: int) -> None:
    workload = a_workload_for_one_page(seed)
    bound = score_bound(workload)
    assert bound is not None
    assert bound * len(workload.chunk.models) >= most_with_one_page(workload) - 1e-6


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


def test_executions_may_be_as_short_as_the_noise_makes_them() -> None:
    traits = FIXED["slo-100ms"]
    bounds = [
        least_bound(problem_of(workload, measured_requests(workload)))
        for workload in (build_workload(msgspec.structs.replace(traits, noise=noise), 500) for noise in NOISE)
    ]
    assert bounds[0] < bounds[1] < bounds[2], "none, measured, lognormal"


@pytest.mark.parametrize("name", ["slo-100ms", "slo-25ms", "2", "4"])
def test_no_scheduler_serves_more_than_the_bound(name: str) -> None:
    workload = build_workload(find_traits(name), 200)
    bound = score_bound(workload)
    if bound is not None:
        assert play(workload, "horologe", {}).value <= bound
        assert problem_of(workload, measured_requests(workload)).exec_ns.shape[1] == len(measured_requests(workload))
