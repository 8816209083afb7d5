"""Scaling rules of the tuner (InferLine section 5)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_common.clock import ms, s
from horologe_planning.envelope import TrafficEnvelope
from horologe_planning.plan import Placement, Plan, ProvisioningLevel
from horologe_tuner.core.scaling.scaling_rules import (
    RecentPeak,
    ScalingRules,
    ScalingState,
    carried_factor,
    decide,
    find_demand,
    level_replicas,
    replicas_needed,
    running_part,
    scale_down,
    scale_up,
)

WINDOWS = (ms(100), s(1), s(60))
ENVELOPE = TrafficEnvelope(WINDOWS, (30, 180, 6600))  # 300/s in 100 ms, 180/s in 1 s, 110/s in 60 s
FRONT = Placement("front", "classify", "cpu", 1, 10, throughput=20.0)  # load 0.5 at 100/s
BACK = Placement("back", "identify", "gpu", 8, 2, throughput=25.0, scale_factor=0.2)  # load 0.4
PLAN = Plan("video", ms(300), 100.0, (FRONT, BACK), ENVELOPE)
PLANNED = {"front": 10, "back": 2}
PAPER, RELATIVE = ScalingRules(), ScalingRules(demand="relative")


def state(replicas: dict[str, int] | None = None, changed_ns: int = 0) -> ScalingState:
    return ScalingState(dict(replicas or PLANNED), changed_ns)


def test_the_planned_rate_needs_the_planned_replicas() -> None:
    for stage in PLAN.counted:
        assert replicas_needed(stage, PLAN.rate, stage.provisioning_ratio(PLAN.rate)) == stage.replicas


def test_traffic_within_the_envelope_changes_nothing() -> None:
    assert find_demand(PLAN, PLANNED, ENVELOPE.rates(), PAPER).rate == 0
    assert decide(s(100), PLAN, state(), ENVELOPE.rates(), None, PAPER) is None


def test_the_highest_rate_that_exceeds_the_sample_is_provisioned_for() -> None:
    demand = find_demand(PLAN, PLANNED, (290.0, 220.0, 150.0), PAPER)
    assert (demand.rate, demand.window_ns) == (220.0, s(1))  # 290/s is within the sample's bursts
    decision = decide(s(1), PLAN, state(), (290.0, 220.0, 150.0), None, PAPER)
    assert decision
    assert (decision.direction, decision.after) == ("up", {"front": 22, "back": 5})  # 220 * 0.2 / (25 * 0.4) = 4.4
    assert decision.describe() == "220 queries/s in 1 s: front 10 -> 22, back 2 -> 5"


def test_a_burst_that_barely_exceeds_the_sample_adds_little_with_the_relative_rule() -> None:
    rates = (330.0, 180.0, 100.0)
    assert find_demand(PLAN, PLANNED, rates, PAPER).rate == 330.0
    relative = find_demand(PLAN, PLANNED, rates, RELATIVE)
    assert relative.rate == pytest.approx(110.0)
    assert scale_up(PLAN, PLANNED, relative.rate) == {"front": 11, "back": 3}


def test_scaling_up_does_not_wait_and_never_removes_a_replica() -> None:
    running = {"front": 40, "back": 2}
    decision = decide(s(10), PLAN, state(running, s(10)), (0.0, 0.0, 150.0), 1.0, PAPER)
    assert decision
    assert decision.after == {"front": 40, "back": 3}


def test_scaling_down_waits_for_15_s_and_uses_the_smallest_ratio() -> None:
    running = state({"front": 30, "back": 6}, s(100))
    assert decide(s(115) - 1, PLAN, running, (0.0, 0.0, 0.0), 50.0, PAPER) is None
    decision = decide(s(115), PLAN, running, (0.0, 0.0, 0.0), 50.0, PAPER)
    assert decision
    assert decision.after == {"front": 7, "back": 1}  # both with a ratio of 0.4: 50 / 8 and 10 / 10
    assert scale_down(PLAN, PLANNED, 1000.0) == PLANNED


def test_nothing_is_scaled_down_before_30_s_were_observed() -> None:
    assert decide(s(100), PLAN, state({"front": 30, "back": 6}), (0.0, 0.0, 0.0), None, PAPER) is None


def test_after_scaling_down_the_envelope_counts_in_part() -> None:
    half = {"front": 5, "back": 1}
    assert running_part(PLAN, half) == 0.5
    rates = (140.0, 100.0, 60.0)  # within the sample's, but over half of it in the longest window and the middle one
    assert find_demand(PLAN, PLANNED, rates, PAPER).rate == 0
    decision = decide(s(1), PLAN, state(half), rates, None, PAPER)
    assert decision
    assert decision.after == {"front": 10, "back": 2}


def test_scaling_down_stops_where_scaling_up_would_begin() -> None:
    running = {"front": 30, "back": 6}
    rates = (200.0, 60.0, 30.0)
    decision = decide(s(100), PLAN, state(running), rates, 30.0, RELATIVE)
    assert decision
    follow_up = find_demand(PLAN, decision.after, rates, RELATIVE)
    assert scale_up(PLAN, decision.after, follow_up.rate) == decision.after


rates_strategy = st.tuples(*[st.floats(0, 5000) for _ in WINDOWS])


@given(
    rates=rates_strategy,
    recent=st.none() | st.floats(0, 5000),
    front=st.integers(1, 300),
    back=st.integers(1, 300),
    rules=st.sampled_from((PAPER, RELATIVE)),
)
def test_a_decision_changes_one_way_and_is_not_taken_twice(
    rates: tuple[float, ...], recent: float | None, front: int, back: int, rules: ScalingRules
) -> None:
    before = {"front": front, "back": back}
    decision = decide(s(100), PLAN, state(before), rates, recent, rules)
    if decision is None:
        return
    assert decision.after != before
    assert all(count >= 1 for count in decision.after.values())
    if decision.direction == "up":
        assert all(decision.after[stage] >= before[stage] for stage in before)
    else:
        assert all(decision.after[stage] <= before[stage] for stage in before)
    again = decide(s(100), PLAN, state(decision.after, s(100)), rates, recent, rules)
    assert again is None or again.direction == decision.direction == "down"


@given(low=st.floats(0, 5000), high=st.floats(0, 5000))
def test_a_higher_rate_never_needs_fewer_replicas(low: float, high: float) -> None:
    low, high = sorted((low, high))
    ratio = FRONT.provisioning_ratio(PLAN.rate)
    assert replicas_needed(FRONT, low, ratio) <= replicas_needed(FRONT, high, ratio)


LEVELS = ((0.5, (1, 1)), (1.0, (2, 1)), (2.0, (4, 1)), (4.0, (8, 2)))
LEVELLED = msgspec.structs.replace(PLAN, levels=tuple(ProvisioningLevel(*level) for level in LEVELS))
HEADROOM = ScalingRules(headroom=1.15)
FEW = {"front": 2, "back": 1}


def times(factor: float) -> tuple[float, ...]:
    return tuple(factor * rate for rate in ENVELOPE.rates())


@pytest.mark.parametrize(("factor", "replicas"), [(0.1, (1, 1)), (2.0, (4, 1)), (2.1, (8, 2)), (6.0, (12, 3))])
def test_a_level_serves_all_factors_up_to_its_own(factor: float, replicas: tuple[int, int]) -> None:
    assert tuple(level_replicas(LEVELLED, factor).values()) == replicas


@pytest.mark.parametrize(("front", "back", "factor"), [(7, 1, 2.0), (16, 3, 6.0), (0, 1, 0.0)])
def test_replicas_carry_the_highest_level_that_they_suffice_for(front: int, back: int, factor: float) -> None:
    assert carried_factor(LEVELLED, {"front": front, "back": back}) == factor


def test_traffic_beyond_the_sample_scales_up_to_its_level() -> None:
    assert find_demand(LEVELLED, FEW, times(0.85), HEADROOM).rate == 0
    assert find_demand(LEVELLED, FEW, times(1.0), HEADROOM).rate == pytest.approx(115)
    decision = decide(s(9), LEVELLED, state(FEW, s(9)), times(1.4), None, HEADROOM)
    assert decision
    assert decision.after == {"front": 4, "back": 1}  # the provisioning ratio of 0.1 at the back is no reason to scale
    assert decide(s(9), LEVELLED, state(decision.after, s(9)), times(1.55), None, HEADROOM) is None


@pytest.mark.parametrize(
    ("rates", "headroom", "rate"),
    [(times(1.9), 1.0, 190), ((2.5 * ENVELOPE.rates()[0], 70.0, 70.0), 1.15, 287.5)],
    ids=["a tenth beyond the demand", "a burst in one window"],
)
def test_scaling_up_by_levels(rates: tuple[float, ...], headroom: float, rate: float) -> None:
    decision = decide(s(9), LEVELLED, state(FEW, s(9)), rates, None, ScalingRules(headroom=headroom))
    assert decision
    assert decision.rate == pytest.approx(rate)
    assert decision.after == {"front": 8, "back": 2}


def test_scaling_down_keeps_headroom() -> None:
    running = state({"front": 8, "back": 2})
    assert decide(s(60), LEVELLED, running, times(0.1), 160.0, HEADROOM) is None  # 1.6 with headroom and a tenth more
    decision = decide(s(60), LEVELLED, running, times(0.1), 72.0, HEADROOM)
    assert decision
    assert decision.after == FEW


def test_the_recent_peak_is_held_for_its_span() -> None:
    peak, sample = RecentPeak(), ENVELOPE.rates()
    assert peak.add(s(1), times(2.0), sample, s(15)) == pytest.approx(2.0)
    assert peak.add(s(2), times(0.5), sample, s(15)) == pytest.approx(2.0)
    assert peak.add(s(16), times(0.2), sample, s(15)) == pytest.approx(0.5)


@pytest.mark.parametrize("headroom", [0.99, float("nan")])
def test_a_headroom_below_one_is_an_error(headroom: float) -> None:
    with pytest.raises(ValueError, match=r"tuner\.headroom: got .*, wanted at least 1"):
        ScalingRules(headroom=headroom)
