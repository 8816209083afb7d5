"""Estimator: equal to a plain Python reference to the nanosecond, queueing laws, changes of replicas, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horologe_common.clock import ms
from horologe_common.pipelines import PipelineStage, PipelineStructure
from horologe_experiments.inferline.serving_simulation import ServingSimulation
from horologe_planning.estimator.estimator_kernel import input_rank
from horologe_planning.estimator.pipeline_workload import PipelineTrace, draw_calls
from horologe_planning.hardware import parse_prices
from horologe_planning.plan import Placement
from horologe_planning.profiles import RANKS, Profiles, StageProfile, collect_profiles
from planning.reference_estimator import Change, Reference
from planning.reference_estimator import input_rank as reference_rank


def a_chain(*latencies_ns: dict[int, int], visits: float = 1.0, fan_out: float = 1.0) -> tuple[Any, Profiles]:
    """Return a pipeline of stages one behind the other, and their profiles on `cpu`."""
    names = [f"m{number}" for number in range(len(latencies_ns))]
    parents: list[tuple[str, ...]] = [(), *((name,) for name in names[:-1])]
    stages = (PipelineStage(n, n, above, visits, fan_out) for n, above in zip(names, parents, strict=True))
    profiles = (StageProfile(name, "cpu", ns) for name, ns in zip(names, latencies_ns, strict=True))
    return PipelineStructure("chain", ms(100), tuple(stages)), collect_profiles(profiles)


def configured(structure: PipelineStructure, batch: int = 1, replicas: int = 1) -> list[Placement]:
    return [Placement(stage.name, stage.model, "cpu", batch, replicas) for stage in structure.stages]


def a_simulation(
    structure: PipelineStructure,
    profiles: Profiles,
    configurations: list[Placement],
    arrivals_ns: Any,
    seed: int = 0,
    **fields: int,
) -> ServingSimulation:
    return ServingSimulation(PipelineTrace(structure, arrivals_ns, seed), profiles, configurations, **fields)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """Pipelines with ties: times of a few nanoseconds, so that many events fall on one instant."""
    count = draw(st.integers(1, 5))
    names = [f"s{number}" for number in range(count)]
    stages, profiles, configurations = [], [], []
    for number, name in enumerate(names):
        parents = tuple(draw(st.lists(st.sampled_from(names[:number]), unique=True))) if number else ()
        visits, fan_out = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0])), draw(st.sampled_from([1.0, 1.5, 3.0]))
        stages.append(PipelineStage(name, name, parents, visits, fan_out))
        latency_ns = {size: draw(st.integers(1, 12)) for size in (1, 2, 4)}
        row_ns = (
            sorted(draw(st.lists(st.integers(0, 9), min_size=RANKS, max_size=RANKS))) if draw(st.booleans()) else ()
        )
        profiles.append(StageProfile(name, "cpu", latency_ns, draw(st.integers(0, 5)), tuple(row_ns)))
        configurations.append(Placement(name, name, "cpu", draw(st.integers(1, 4)), draw(st.integers(1, 3))))
        if draw(st.booleans()):  # a second group on hardware whose times do not depend on the input
            profiles.append(StageProfile(name, "gpu", {size: draw(st.integers(1, 12)) for size in (1, 2, 4)}))
            fields = draw(st.integers(1, 4)), draw(st.integers(1, 2))
            configurations.append(Placement(name, name, "gpu", *fields))
    arrivals_ns = sorted(draw(st.lists(st.integers(0, 60), min_size=1, max_size=40)))
    changes = []
    for at_ns in sorted(draw(st.lists(st.integers(0, 80), max_size=6))):
        ready_ns = at_ns + draw(st.integers(0, 20))
        changes.append(Change(at_ns, draw(st.sampled_from(names)), draw(st.integers(0, 4)), ready_ns))
    changes += [Change(100, name, 2, 105) for name in names]  # no stage is left without replicas
    several = {c.stage for c in configurations if c.hardware == "gpu"}
    changes = [change for change in changes if change.stage not in several]
    return {
        "structure": PipelineStructure("p", 20, tuple(stages)), "profiles": collect_profiles(profiles),
        "configurations": configurations, "arrivals_ns": arrivals_ns, "seed": draw(st.integers(0, 2**32)),
        "changes": changes,
    }  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(problems())
def test_equal_to_the_reference_to_the_nanosecond(problem: dict[str, Any]) -> None:
    changes = problem.pop("changes")
    simulation = a_simulation(**problem)
    for change in changes:
        simulation.run_until(change.at_ns)
        simulation.set_replicas(change.stage, change.replicas, change.ready_ns)
    simulation.run_until()
    calls = simulation.workload.calls.tolist()
    reference = Reference(**problem, calls=calls, changes=changes)
    assert simulation.latencies_ns.tolist() == reference.latencies_ns
    assert simulation.replica_ns() == reference.paid_ns()
    assert simulation.finished


@settings(max_examples=50, deadline=None)
@given(problems(), st.lists(st.integers(0, 120), max_size=8))
def test_stops_do_not_change_the_result(problem: dict[str, Any], stops: list[int]) -> None:
    del problem["changes"]
    whole, in_parts = a_simulation(**problem), a_simulation(**problem)
    whole.run_until()
    for stop_ns in sorted(stops):
        in_parts.run_until(stop_ns)
        assert in_parts.now_ns == stop_ns
    in_parts.run_until()
    assert in_parts.latencies_ns.tolist() == whole.latencies_ns.tolist()


def test_more_batches_than_the_heap_has_room_for() -> None:
    structure, profiles = a_chain({1: ms(50)})
    simulation = a_simulation(structure, profiles, configured(structure, replicas=5000), np.arange(3000))
    simulation.run_until()
    assert set(simulation.latencies_ns) == {ms(50)}


def test_free_replicas_take_all_that_waits_up_to_the_batch_and_pay_for_the_padded_size() -> None:
    structure, profiles = a_chain({1: 10, 4: 30})
    simulation = a_simulation(structure, profiles, configured(structure, batch=4), [0, 1, 2, 3])
    simulation.run_until()
    assert simulation.latencies_ns.tolist() == [10, 39, 38, 37]
    (load,) = simulation.loads()
    assert (load.calls, load.mean_batch, load.utilisation, load.longest_queue) == (4, 2.0, 1.0, 3)


def test_visits_and_fan_out_are_drawn_by_their_probabilities_and_below_visited_parents_only() -> None:
    structure, _ = a_chain({1: 1}, {1: 1}, {1: 1}, visits=0.5, fan_out=2.25)
    calls = draw_calls(structure, 40_000, seed=3)
    visited = calls > 0
    assert visited.mean(axis=0) == pytest.approx([0.5, 0.25, 0.125], abs=0.01)
    assert calls[visited].mean() == pytest.approx(2.25, abs=0.01)
    assert not (visited[:, 1] & ~visited[:, 0]).any()
    assert np.array_equal(calls, draw_calls(structure, 40_000, seed=3))


def test_inputs_have_every_rank_equally_often_and_a_batch_takes_the_time_of_its_longest() -> None:
    ranks = [input_rank(np.uint64(7), query, 1, 0, RANKS) for query in range(6400)]
    assert ranks[:50] == [reference_rank(7, query, 1, 0, RANKS) for query in range(50)]
    assert min(np.bincount(ranks)) > 60
    structure, profiles = a_chain({1: 1, 2: 1})
    rows = tuple(range(RANKS))
    profiles["m0"]["cpu"] = StageProfile("m0", "cpu", {1: 1, 2: 1}, 1000, rows)
    simulation = a_simulation(structure, profiles, configured(structure, batch=2), [0, 0], seed=5)
    simulation.run_until()
    longest = max(reference_rank(5, query, 0, 0, RANKS) for query in (0, 1))
    assert simulation.latencies_ns.tolist() == [1000 + 2 * longest] * 2


def test_new_replicas_work_when_they_are_ready_and_removed_ones_finish_their_batch() -> None:
    structure, profiles = a_chain({1: 100})
    simulation = a_simulation(structure, profiles, configured(structure), [0, 0, 0, 500, 500])
    simulation.run_until(10)
    simulation.set_replicas("m0", 2, ready_at_ns=50)
    assert (simulation.replicas("m0"), simulation.waiting("m0")) == (2, 2)
    simulation.run_until(60)
    simulation.set_replicas("m0", 1)
    simulation.run_until(600)
    assert simulation.latencies_ns.tolist() == [100, 150, 250, -1, -1]
    simulation.run_until()
    assert simulation.latencies_ns.tolist() == [100, 150, 250, 100, 200]
    assert simulation.replica_ns() == {"m0": 700 + 90}  # the removed one was busy until 100
    prices = parse_prices(["cpu=3.6"])
    assert simulation.cost(configured(structure), prices) == pytest.approx(790e-9 * 1e-3)


def test_a_run_ends_as_soon_as_too_many_queries_have_missed() -> None:
    structure, profiles = a_chain({1: ms(60)})
    simulation = a_simulation(structure, profiles, configured(structure), np.zeros(1000, int), missed_limit=3)
    simulation.run_until()
    assert simulation.stopped
    assert not simulation.finished
    assert (simulation.latencies_ns > ms(100)).sum() == 4


@pytest.mark.parametrize(
    ("arrivals_ns", "message"),
    [
        ([], r"arrivals_ns: got shape \(0,\), wanted \(queries,\) with at least one"),
        ([-1, 2], "arrivals_ns: got -1, wanted at least 0"),
        ([5, 9, 3], "arrivals_ns: got 3 after 9, wanted them in order"),
    ],
)
def test_traces_that_are_not_in_order_are_errors(arrivals_ns: list[int], message: str) -> None:
    structure, _ = a_chain({1: 1})
    with pytest.raises(ValueError, match=message):
        PipelineTrace(structure, arrivals_ns)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"hardware": "tpu"}, "stage m0: no profile of m0 on 'tpu', wanted cpu"),
        ({"model": "other"}, "stage m0: no profile of the model 'other', wanted m0"),
        ({"stage": "other"}, "configurations: got stages other, wanted m0"),
        ({"max_batch": 3}, "batch of m0 on cpu: got 3, wanted 1 to 2"),
        ({"replicas": -1}, "stage m0: replicas: got -1, wanted at least 0"),
    ],
)
def test_configurations_that_do_not_fit_are_errors(fields: dict[str, Any], message: str) -> None:
    structure, profiles = a_chain({1: 1, 2: 2})
    stage = {"stage": "m0", "model": "m0", "hardware": "cpu", "max_batch": 1, "replicas": 1, **fields}
    with pytest.raises(ValueError, match=message):
        a_simulation(structure, profiles, [Placement(**stage)], [0])


def test_a_fan_out_beyond_the_limit_is_an_error() -> None:
    structure, _ = a_chain({1: 1}, fan_out=10_001)
    with pytest.raises(ValueError, match="fan_out: got 10001, wanted at most 10000"):
        PipelineTrace(structure, [0])


def test_of_several_free_groups_the_one_listed_first_takes_the_batch() -> None:
    structure, profiles = a_chain({1: 30})
    profiles["m0"]["gpu"] = StageProfile("m0", "gpu", {1: 10})
    groups = [Placement("m0", "m0", "gpu"), Placement("m0", "m0", "cpu")]
    simulation = a_simulation(structure, profiles, groups, [0, 0, 0, 100])
    simulation.run_until()
    assert simulation.latencies_ns.tolist() == [10, 30, 20, 10]
    fast, slow = simulation.loads()
    assert (fast.calls, slow.calls) == (3, 1)
    assert fast.utilisation == pytest.approx(30 / 110)
    with pytest.raises(ValueError, match="stage m0: got 2 groups of replicas, wanted one to change"):
        simulation.set_replicas("m0", 1)
