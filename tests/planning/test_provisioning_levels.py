"""Provisioning levels: made by the planner, followed by the tuner."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from horologe_common.clock import ms, s
from horologe_common.pipelines import PipelineStage, PipelineStructure
from horologe_load.arrivals import gamma
from horologe_planning.envelope import TrafficEnvelope
from horologe_planning.estimator.pipeline_workload import PipelineTrace
from horologe_planning.hardware import HardwareType
from horologe_planning.plan import Placement, Plan, ProvisioningLevel
from horologe_planning.profiles import StageProfile, collect_profiles
from horologe_planning.search.evaluation import Evaluator
from horologe_planning.search.higher_rates import provisioning_levels
from horologe_planning.search.objective import Objective
from horologe_tuner.core.scaling.scaling_rules import (
    HOLD_NS,
    RecentPeak,
    ScalingRules,
    ScalingState,
    carried_factor,
    decide,
    find_demand,
    level_replicas,
)

LEVELS = tuple(
    ProvisioningLevel(factor, replicas)
    for factor, replicas in ((0.5, (1, 1)), (1.0, (2, 1)), (2.0, (4, 1)), (4.0, (8, 2)))
)
ENVELOPE = TrafficEnvelope((ms(100), s(1), s(60)), (30, 180, 6600))
PLAN = Plan(
    "video",
    ms(300),
    100.0,
    (
        Placement("front", "classify", "cpu", 1, 2, throughput=100.0),
        Placement("back", "identify", "gpu", 8, 1, throughput=1000.0),
    ),
    ENVELOPE,
    levels=LEVELS,
)
RULES = ScalingRules(headroom=1.15)
PLANNED = {"front": 2, "back": 1}


def times(factor: float) -> tuple[float, ...]:
    return tuple(factor * rate for rate in ENVELOPE.rates())


def test_a_level_serves_all_factors_up_to_its_own() -> None:
    assert level_replicas(PLAN, 0.1) == {"front": 1, "back": 1}
    assert level_replicas(PLAN, 2.0) == {"front": 4, "back": 1}
    assert level_replicas(PLAN, 2.1) == {"front": 8, "back": 2}
    assert level_replicas(PLAN, 6.0) == {"front": 12, "back": 3}


def test_replicas_carry_the_highest_level_that_they_suffice_for() -> None:
    assert carried_factor(PLAN, {"front": 7, "back": 1}) == 2.0
    assert carried_factor(PLAN, {"front": 16, "back": 3}) == 6.0
    assert carried_factor(PLAN, {"front": 0, "back": 1}) == 0.0


def test_traffic_beyond_the_sample_scales_up_to_its_level() -> None:
    assert find_demand(PLAN, PLANNED, times(0.85), RULES).rate == 0
    assert find_demand(PLAN, PLANNED, times(1.0), RULES).rate == pytest.approx(115)  # with headroom
    decision = decide(s(9), PLAN, ScalingState(dict(PLANNED), s(9)), times(1.4), None, RULES)
    assert decision
    assert decision.after == {"front": 4, "back": 1}  # the provisioning ratio of 0.1 at the back is no reason to scale
    assert decide(s(9), PLAN, ScalingState(decision.after, s(9)), times(1.55), None, RULES) is None


@pytest.mark.parametrize("headroom", [0.99, float("nan")])
def test_a_headroom_below_one_is_an_error(headroom: float) -> None:
    with pytest.raises(ValueError, match=r"tuner\.headroom: got .*, wanted at least 1"):
        ScalingRules(headroom=headroom)


def test_scaling_up_goes_a_tenth_beyond_the_demand() -> None:
    rules, running = ScalingRules(headroom=1.0), ScalingState(dict(PLANNED), s(9))
    decision = decide(s(9), PLAN, running, times(1.9), None, rules)
    assert decision
    assert decision.rate == pytest.approx(190)
    assert decision.after == {"front": 8, "back": 2}


def test_a_burst_in_one_window_is_enough() -> None:
    rates = (2.5 * ENVELOPE.rates()[0], 70.0, 70.0)
    decision = decide(s(9), PLAN, ScalingState(dict(PLANNED), 0), rates, None, RULES)
    assert decision
    assert (decision.after, decision.window_ns) == ({"front": 8, "back": 2}, ms(100))


def test_scaling_down_keeps_headroom() -> None:
    running = ScalingState({"front": 8, "back": 2}, 0)
    decision = decide(s(60), PLAN, running, times(0.1), 160.0, RULES)
    assert decision is None  # 1.6 with headroom and a tenth more is beyond the level of 2.0
    decision = decide(s(60), PLAN, running, times(0.1), 72.0, RULES)
    assert decision
    assert decision.after == PLANNED


def test_the_recent_peak_is_held_for_a_minute() -> None:
    peak, sample = RecentPeak(), ENVELOPE.rates()
    assert peak.add(s(1), times(2.0), sample) == pytest.approx(2.0)
    assert peak.add(s(2), times(0.5), sample) == pytest.approx(2.0)
    assert peak.add(s(1) + HOLD_NS, times(0.2), sample) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("levels", "field"),
    [
        ((ProvisioningLevel(1.0, (1, 1)), ProvisioningLevel(1.0, (2, 1))), "levels.factor"),
        ((ProvisioningLevel(-1.0, (1, 1)),), "levels.factor"),
        ((ProvisioningLevel(float("nan"), (1, 1)),), "levels.factor"),
        ((ProvisioningLevel(1.0, (1,)),), "levels.replicas"),
        ((ProvisioningLevel(1.0, (1, 0)),), "levels.replicas"),
    ],
)
def test_invalid_levels_are_errors(levels: tuple[ProvisioningLevel, ...], field: str) -> None:
    PLAN.validate()
    with pytest.raises(ValueError, match=field):
        msgspec.structs.replace(PLAN, levels=levels).validate()


def test_every_level_of_the_planner_meets_the_objective_at_its_rate() -> None:
    structure = PipelineStructure(
        "two", ms(100), (PipelineStage("a", "a", (), 1.0, 1.0), PipelineStage("b", "b", ("a",), 0.5, 1.0))
    )
    profiles = collect_profiles(
        StageProfile(model, "gpu", {size: ms(time_ms + size) for size in (1, 2, 4)})
        for model, time_ms in (("a", 8), ("b", 20))
    )
    hardware = {"gpu": HardwareType("gpu", 1.0)}
    workload = PipelineTrace(structure, gamma(200, 1, 60, 1), 1)
    configuration = tuple(Placement(name, name, "gpu", 4, 2) for name in ("a", "b"))
    levels = provisioning_levels(Evaluator(workload, profiles, hardware, Objective(ms(100))), configuration)
    assert levels[-1].factor > 4
    counts = np.array([level.replicas for level in levels])
    assert (np.diff(counts, axis=0) >= 0).all()
    assert counts[-1].sum() > counts[0].sum()
    for level in levels[:: len(levels) - 1]:
        faster = PipelineTrace(
            structure, np.round(workload.arrivals_ns / level.factor).astype(np.int64), 1, workload.calls
        )
        replicas = zip(configuration, level.replicas, strict=True)
        scaled = tuple(msgspec.structs.replace(stage, replicas=count) for stage, count in replicas)
        assert Evaluator(faster, profiles, hardware, Objective(ms(100))).is_feasible(scaled)
