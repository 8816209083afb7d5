"""Pipelines with the controller alone, and pooled plans that are made with it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from horologe_common.clock import ms
from horologe_common.pipelines import PipelineStage, PipelineStructure
from horologe_experiments.inferline.dedicated_devices import run_dedicated
from horologe_load.arrivals import gamma
from horologe_planning.envelope import envelope_of, window_lengths
from horologe_planning.estimator.pipeline_workload import draw_calls
from horologe_planning.hardware import HardwareType
from horologe_planning.plan import Placement, Plan
from horologe_planning.profiles import StageProfile, collect_profiles
from horologe_sim.controller_only.pipeline_world import PipelineWorld
from horologe_sim.scenario.pooled_plan import PooledPlan, PoolSimulation, plan_pooled, rest_of_path
from horologe_sim.scenario.pooled_tuning import pooled_tuning_plan

SIZES = (1, 2, 4)
DIAMOND = PipelineStructure(
    "diamond",
    ms(100),
    (
        PipelineStage("first", "a", (), 1.0, 1.0),
        PipelineStage("left", "b", ("first",), 1.0, 2.0),
        PipelineStage("right", "c", ("first",), 0.5, 1.0),
        PipelineStage("last", "a", ("left", "right"), 1.0, 1.0),
    ),
)
PROFILES = collect_profiles(
    StageProfile(model, hardware, {size: ms(row_ms * factor * (1 + size)) for size in SIZES})
    for model, row_ms in (("a", 1), ("b", 2), ("c", 4))
    for hardware, factor in (("fast", 1), ("slow", 3))
)
HARDWARE = {"fast": HardwareType("fast", 4.0), "slow": HardwareType("slow", 1.0)}
ALONE = tuple(Placement(stage.name, stage.model, "fast", 4, 2) for stage in DIAMOND.stages)


def simulation(arrivals_ns: Any, structure: PipelineStructure = DIAMOND, scheduler: str = "horologe") -> PoolSimulation:
    arrivals_ns = np.asarray(arrivals_ns, np.int64)
    return PoolSimulation(structure, PROFILES, arrivals_ns, draw_calls(structure, len(arrivals_ns), 1), 1, scheduler)


def test_a_lone_query_takes_its_longest_path_and_the_messages() -> None:
    world = run_dedicated(simulation([0]), ALONE)
    calls = draw_calls(DIAMOND, 1, 1)[0]
    expected_ms = 2 + max(6, 8 if calls[2] else 0) + 2  # `left` has two calls: one batch, or one on each device
    assert world.latency_ns[0] == pytest.approx(ms(expected_ms), abs=ms(3))
    assert world.attainment == 1


@pytest.mark.parametrize("scheduler", ["horologe", "clipper"])
def test_every_query_is_answered_or_dropped(scheduler: str) -> None:
    arrivals_ns = gamma(400, 4, 5, 3)
    world = simulation(arrivals_ns, scheduler=scheduler).run_pool({"fast": 2})
    answered = int((world.latency_ns >= 0).sum())
    assert answered + sum(world.dropped.values()) == len(arrivals_ns)
    assert 0 < answered < len(arrivals_ns)
    assert world.device_ns[world.latency_ns >= 0].min() > 0


def test_a_stage_waits_for_all_visited_parents() -> None:
    world = simulation(gamma(50, 1, 4, 3)).run_pool({"fast": 4})
    calls = draw_calls(DIAMOND, len(world.latency_ns), 1)
    slow_join = calls[:, 2] > 0
    assert world.latency_ns[slow_join].min() >= ms(2 + 8 + 2)
    assert world.latency_ns[~slow_join].min() < ms(2 + 8 + 2)


def test_a_query_without_time_for_the_rest_is_dropped_before_any_device_works_for_it() -> None:
    hopeless = PipelineStructure("hopeless", ms(9), DIAMOND.stages)
    world = simulation(gamma(100, 1, 2, 3), hopeless).run_pool({"fast": 8})
    assert world.attainment == 0
    assert world.dropped["first"] == len(world.latency_ns)
    assert world.device_ns.sum() == 0


def test_the_rest_of_a_path_is_the_longest_way_after_a_stage() -> None:
    assert rest_of_path(DIAMOND, {"a": 10, "b": 20, "c": 40}, 2.0) == {"first": 100, "left": 20, "right": 20, "last": 0}


def plan(rate: float) -> PooledPlan:
    found = plan_pooled(simulation(gamma(rate, 1, 5, 3)), HARDWARE, ALONE)
    assert found is not None
    return found


def test_a_pool_needs_fewer_devices_than_stages_of_their_own() -> None:
    found = plan(50)
    assert found.attainment >= 0.99
    assert found.cost_per_hour < 8 * HARDWARE["fast"].price_per_hour
    assert found.cost_per_hour == sum(HARDWARE[name].price_per_hour * count for name, count in found.devices.items())


def test_no_single_device_of_a_pooled_plan_can_be_removed() -> None:
    found, trace = plan(100), simulation(gamma(100, 1, 5, 3))
    for name, count in found.devices.items():
        fewer = {**found.devices, name: count - 1}
        assert not trace.serves_all_stages(fewer) or trace.run_pool(fewer).attainment < 0.99


def test_a_pool_is_not_planned_from_devices_that_do_not_suffice() -> None:
    assert plan_pooled(simulation(gamma(3000, 1, 2, 3)), HARDWARE, ALONE) is None


def test_cheap_devices_are_exchanged_for_a_dear_one_if_that_costs_less() -> None:
    slow = tuple(Placement(stage.name, stage.model, "slow", 4, 3) for stage in DIAMOND.stages)
    hardware = {**HARDWARE, "fast": HardwareType("fast", 1.5)}  # three times as fast
    found = plan_pooled(
        simulation(gamma(50, 1, 5, 3), msgspec.structs.replace(DIAMOND, slo_ns=ms(400))), hardware, slow
    )
    assert found is not None
    assert found.devices == {"fast": 1}


def test_the_tuner_gets_a_pool_with_its_levels() -> None:
    trace, arrivals_ns = simulation(gamma(100, 1, 5, 3)), np.asarray(gamma(100, 1, 5, 3), np.int64)
    found = PooledPlan("diamond", {"fast": 2, "slow": 1}, 9.0, 1.0, 1)
    stages = tuple(Placement(stage.name, stage.model, "fast", 4, 2, throughput=100.0) for stage in DIAMOND.stages)
    envelope = envelope_of(arrivals_ns, window_lengths(ms(20)))
    plan = pooled_tuning_plan(trace, found, Plan("diamond", ms(100), 100.0, stages, envelope))
    plan.validate()
    assert plan.pooled
    rows = {target.stage: (target.model, target.replicas) for target in plan.placements}
    assert rows["first@fast"] == ("a", 2)
    assert rows["left@slow"] == ("b", 1)
    assert [level.factor for level in plan.levels] == sorted(level.factor for level in plan.levels)
    assert plan.levels[-1].replicas == tuple(target.replicas for target in plan.placements)
    assert sum(plan.levels[0].replicas) <= sum(plan.levels[-1].replicas)


def test_world_of_pipelines_repeats_by_seed() -> None:
    def latencies() -> Any:
        world: PipelineWorld = simulation(gamma(200, 4, 3, 3)).run_pool({"fast": 2, "slow": 1})
        return world.latency_ns

    assert (latencies() == latencies()).all()
