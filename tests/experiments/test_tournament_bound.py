"""The bound of the tournament: never below an exact solution of a tiny case, nor below what a scheduler serves."""

from __future__ import annotations

import math
from itertools import combinations
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from horologe_common.clock import ms
from horologe_experiments.tournament.match import play
from horologe_experiments.tournament.traits import FIXED, find_traits
from horologe_experiments.tournament.workload import NOISE, build_workload
from horologe_sim.comparison.bound import measured_requests, score_bound
from horologe_sim.comparison.bound_problem import (
    BoundProblem,
    DeviceKind,
    PageRoom,
    Period,
    count_companions,
    make_problem,
)
from horologe_sim.comparison.price_search import PriceSearch
from horologe_sim.controller_only.request_load import Chunk
from horologe_sim.engine.noise import Noise
from horologe_sim.engine.simulated_faults import Fault

SIZES = (1, 2, 4)
ALWAYS, ONE = (Period(),), np.ones(1)
SLOW = (Period(until_ns=3.0), Period(3.0, 9.0, 2.0), Period(from_ns=9.0))
LOST = (Period(until_ns=4.0, ends_ns=4.0), Period(from_ns=7.0))


def tiny(seed: int, periods: tuple[Period, ...] = ALWAYS) -> tuple[BoundProblem, list[int]]:
    """Return a case of up to six requests for two models on one or two devices, and the model of each request.

    The first device has the `periods`.
    """
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, 7))
    models = rng.integers(0, 2, count)
    owners = models.astype(float)
    tables = np.cumsum(rng.integers(1, 4, (2, 3)), axis=1).astype(float)
    arrival = np.sort(rng.integers(0, 8, count)).astype(float)
    deadline = arrival + rng.integers(2, 9, count).astype(float)
    exec_ns = tables[models].T
    kinds = []
    for factor, each in zip([1.0, 2.0][: rng.integers(1, 3)], (periods, ALWAYS), strict=False):
        holds = [
            count_companions(arrival, deadline - factor * row_ns, owners, size)
            for size, row_ns in zip(SIZES, exec_ns, strict=True)
        ]
        kinds.append(DeviceKind(factor, 1, each, np.array(holds)))
    return BoundProblem(arrival, deadline, exec_ns, kinds, ONE, ONE), models.tolist()


def in_ms(problem: BoundProblem) -> BoundProblem:
    """Return the problem with its times taken as milliseconds: beside them, the rounding of nanoseconds is nothing."""
    kinds = [
        kind._replace(
            periods=tuple(
                Period(ms(1) * each.from_ns, ms(1) * each.until_ns, each.slowness, ms(1) * each.ends_ns)
                for each in kind.periods
            )
        )
        for kind in problem.kinds
    ]
    arrival_ns, deadline_ns = ms(1) * problem.arrival_ns, ms(1) * problem.deadline_ns
    return problem._replace(
        arrival_ns=arrival_ns, deadline_ns=deadline_ns, exec_ns=ms(1) * problem.exec_ns, kinds=kinds
    )


def end_of(kind: DeviceKind, start: float, exec_ns: float) -> float:
    """Return when a batch that starts then ends in time for its device, or infinity."""
    for period in kind.periods:
        if period.from_ns <= start < period.until_ns:
            end = start + kind.factor * period.slowness * exec_ns
            return end if end <= period.ends_ns else math.inf
    return math.inf


def most_in_time(problem: BoundProblem, models: list[int]) -> int:
    """Return the most requests that any schedule with whole start times serves in time, by exhaustive search."""
    last = int(problem.deadline_ns.max())

    def search(free: tuple[float, ...], left: frozenset[int]) -> int:
        best = 0
        for device, kind in enumerate(problem.kinds):
            for size in range(1, 1 + min(len(left), SIZES[-1])):
                for batch in combinations(sorted(left), size):
                    if len({models[request] for request in batch}) > 1:
                        continue
                    row = next(row for row, fits in enumerate(SIZES) if fits >= size)
                    first = int(max(free[device], *(problem.arrival_ns[request] for request in batch)))
                    ends = [end_of(kind, start, problem.exec_ns[row, batch[0]]) for start in range(first, last)]
                    end = min(ends, default=math.inf)
                    if end <= min(problem.deadline_ns[request] for request in batch):
                        after = (*free[:device], end, *free[device + 1 :])
                        best = max(best, size + search(after, left - set(batch)))
        return best

    return search((0.0,) * len(problem.kinds), frozenset(range(len(models))))


@pytest.mark.parametrize("periods", [ALWAYS, SLOW, LOST])
@pytest.mark.parametrize("seed", range(15))
def test_no_schedule_of_a_tiny_case_serves_more(seed: int, periods: tuple[Period, ...]) -> None:
    problem, models = tiny(seed, periods)
    assert PriceSearch(in_ms(problem)).least_bound() >= most_in_time(problem, models) - 1e-6


@pytest.mark.parametrize("periods", [ALWAYS, SLOW, LOST])
@pytest.mark.parametrize("seed", range(10))
def test_the_bound_holds_at_any_prices(seed: int, periods: tuple[Period, ...]) -> None:
    problem, models = tiny(seed, periods)
    search = PriceSearch(in_ms(problem))
    prices = np.random.default_rng(seed).uniform(0, 1 / ms(1), (len(problem.kinds), search.grid.bins))
    assert search.evaluate(prices)[0] >= most_in_time(problem, models) - 1e-6


@pytest.mark.parametrize("seed", range(10))
def test_the_slope_is_that_of_the_bound(seed: int) -> None:
    """The bound is convex: it is nowhere below the plane with its slope."""
    problem, _ = tiny(seed, SLOW)
    search = PriceSearch(in_ms(problem))
    here, there = np.random.default_rng(seed).uniform(0, 1 / ms(1), (2, len(problem.kinds), search.grid.bins))
    bound, slope = search.evaluate(here)
    assert search.evaluate(there)[0] >= bound + float(((there - here) * slope).sum()) - 1e-6


def on_average(problem: BoundProblem, factors: tuple[float, ...]) -> float:
    """Return the most requests of one each that a device serves on average if it knows a factor only at the end.

    By exhaustive search over which request starts next, and when: at once or at the next arrivals.
    """

    def search(free: float, left: frozenset[int]) -> float:
        best = 0.0
        for request in left:
            for start in {max(free, problem.arrival_ns[request]), *(at for at in problem.arrival_ns if at > free)}:
                if start < problem.arrival_ns[request]:
                    continue
                total = 0.0
                for factor in factors:
                    end = start + factor * problem.exec_ns[0, request]
                    total += (end <= problem.deadline_ns[request]) + search(end, left - {request})
                best = max(best, total / len(factors))
        return best

    return search(0.0, frozenset(range(len(problem.arrival_ns))))


@pytest.mark.parametrize("seed", range(10))
def test_no_schedule_that_does_not_know_the_noise_serves_more_on_average(seed: int) -> None:
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.integers(0, 6, 4)).astype(float)
    deadline = arrival + rng.integers(2, 8, 4).astype(float)
    exec_ns = rng.integers(1, 5, (1, 4)).astype(float)
    kind = DeviceKind(1.0, 1, ALWAYS, np.ones((1, 4)))
    problem = BoundProblem(arrival, deadline, exec_ns, [kind], np.array([0.5, 1.5]), np.array([0.5, 0.5]))
    assert PriceSearch(in_ms(problem)).least_bound() >= on_average(problem, (0.5, 1.5)) - 1e-6


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
    cluster = SimpleNamespace(pages=1, client_ns=0, worker_ns=0, answer_ns=0, noise=Noise())
    return SimpleNamespace(
        chunk=chunk, loops=(), models=models, cluster=cluster, factors=(1.0,), faults=(), warmup_ns=0
    )


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
    kind = DeviceKind(1.0, 1, ALWAYS, np.ones((1, count)))
    problem = BoundProblem(zeros, zeros + ms(20), np.full((1, count), float(ms(1))), [kind], ONE, ONE)
    assert PriceSearch(problem).least_bound() == pytest.approx(20, abs=0.5)


def test_requests_that_cannot_wait_for_each_other_share_no_batch() -> None:
    arrival = np.array([0.0, 1.0, 5.0, 6.0, 7.0])
    together = count_companions(arrival, arrival + 1.5, np.zeros(5), 4)
    assert together.tolist() == [2, 2, 2, 2, 2]
    assert count_companions(arrival, arrival - 1.0, np.zeros(5), 4).tolist() == [1] * 5
    assert count_companions(arrival, arrival + 9.0, np.array([0.0, 1.0, 0.0, 1.0, 0.0]), 2).tolist() == [2] * 5


def test_devices_that_are_lost_serve_less() -> None:
    workload = build_workload(msgspec.structs.replace(FIXED["slo-100ms"], load=1.5), 500)
    without = score_bound(workload)
    fault = Fault(0, "worker/0", restart_ns=workload.duration_ns)
    slower = Fault(0, "worker/0", "slow", for_ns=workload.duration_ns, factor=4.0)
    slow = score_bound(workload._replace(faults=(slower,)))
    lost = score_bound(workload._replace(faults=(fault,)))
    assert (lost or 0.0) < (slow or 0.0) < (without or 0.0)


def test_models_may_lack_batch_sizes_of_others() -> None:
    profiles = [
        SimpleNamespace(load_ns=ms(1), exec_ns={1: ms(2), 2: ms(3), 4: ms(5)}),
        SimpleNamespace(load_ns=ms(1), exec_ns={4: ms(5), 8: ms(8)}),
    ]
    models = [SimpleNamespace(report=SimpleNamespace(spec=SimpleNamespace(pages=1), profile=each)) for each in profiles]
    count = 20
    chunk = Chunk([ms(20) * number for number in range(count)], [1] * count, [ms(10)] * count, [1] * count)
    cluster = SimpleNamespace(pages=2, client_ns=0, worker_ns=0, answer_ns=0, noise=Noise())
    workload = SimpleNamespace(
        chunk=chunk, loops=(), models=models, cluster=cluster, factors=(1.0,), faults=(), warmup_ns=0
    )
    assert score_bound(workload) == pytest.approx(1.0)


def test_pages_bound_the_requests_of_many_models() -> None:
    workload = build_workload(FIXED["half-fits"], 2000)
    chosen = measured_requests(workload)
    room = PageRoom(workload, chosen, ms(500))
    assert room.most_valuable(np.ones(len(chosen)))[0] == pytest.approx(len(chosen))
    empty = workload._replace(cluster=type(workload.cluster)(pages=0), factors=(1.0,))
    values = np.ones(len(chosen))
    total, kept = PageRoom(empty, chosen, ms(500)).most_valuable(values)
    assert total < len(chosen)
    assert float(kept @ values) == pytest.approx(total)


def test_executions_may_be_as_short_as_the_noise_makes_them() -> None:
    traits = FIXED["slo-100ms"]
    bounds = [
        PriceSearch(make_problem(workload, measured_requests(workload))).least_bound()
        for workload in (build_workload(msgspec.structs.replace(traits, noise=noise), 500) for noise in NOISE)
    ]
    assert bounds[0] < bounds[1] < bounds[2], "none, measured, lognormal"


@pytest.mark.parametrize("name", ["slo-100ms", "slo-25ms", "slow-device", "2", "4", "82"])
def test_no_scheduler_serves_more_than_the_bound(name: str) -> None:
    workload = build_workload(find_traits(name), 200)
    bound = score_bound(workload)
    assert bound is not None
    assert play(workload, "horologe", {}).value <= bound
