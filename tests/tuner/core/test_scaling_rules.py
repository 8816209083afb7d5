"""Scaling rules of the tuner (InferLine section 5)."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_common.clock import ms, s
from horologe_planning.envelope import TrafficEnvelope
from horologe_planning.plan import Placement, Plan, encode_plans, parse_plans
from horologe_tuner.core.scaling.scaling_rules import (
    ScalingRules,
    ScalingState,
    decide,
    find_demand,
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


def test_a_plan_survives_its_document() -> None:
    assert parse_plans(encode_plans((PLAN,))) == (PLAN,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "name: got ''"),
        ({"slo_ns": 0}, "slo_ns: got 0"),
        ({"rate": -1.0}, r"rate: got -1\.0"),
        ({"placements": ()}, "placements: got 0"),
        ({"placements": (FRONT, FRONT)}, "wanted one without a device for each"),
        ({"entry": "side"}, "entry: got 'side', wanted one of front, back"),
        ({"placements": (msgspec.structs.replace(FRONT, replicas=0),)}, "stage 'front': replicas: got 0"),
        ({"placements": (msgspec.structs.replace(FRONT, max_batch=0),)}, "stage 'front': max_batch: got 0"),
        ({"placements": (msgspec.structs.replace(FRONT, throughput=0.0),)}, "stage 'front': throughput: got 0"),
        ({"placements": (msgspec.structs.replace(FRONT, scale_factor=0.0),)}, "stage 'front': scale_factor: got 0"),
        ({"placements": (msgspec.structs.replace(FRONT, model=""),)}, "stage 'front': model: got ''"),
    ],
)
def test_an_invalid_plan_names_the_field(change: dict[str, object], message: str) -> None:
    document = encode_plans((msgspec.structs.replace(PLAN, **change),))
    with pytest.raises(ValueError, match=message):
        parse_plans(document)


@pytest.mark.parametrize("document", [b"", b"{}", b"[1]", b'{"version": 1, "plans": 7}', b"\xff"])
def test_a_document_that_is_no_plan_is_an_error(document: bytes) -> None:
    with pytest.raises(ValueError, match="plan: "):
        parse_plans(document)
