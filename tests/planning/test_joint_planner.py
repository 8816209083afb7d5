"""Joint planner: times of shares, layouts, the least share of a stage, plans below the cost of whole devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_common.clock import ms
from horologe_common.interference.v100 import CALIBRATED
from horologe_common.pipelines import PipelineStructure
from horologe_planning.catalogue import CASCADE, VIDEO_MONITORING, catalogue_profiles
from horologe_planning.interference.derived_coefficients import (
    SIMILAR,
    catalogue_coefficients,
    derive_coefficients,
)
from horologe_planning.joint_planning.joint_planner import SharedDevices, joint_plan, plan_layout
from horologe_planning.joint_planning.layout_candidates import first_layouts, least_candidates, least_share
from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator, ShareTimes
from horologe_planning.joint_planning.layouts import (
    LEAST_PERCENT,
    STEP_PERCENT,
    Layout,
    PlannedDevice,
    StageShare,
    batch_changes,
    dedicated_layout,
    describe_layout,
    fill_device,
    layout_price,
    make_layout,
    placements,
    transfers,
)
from horologe_planning.plan import WHOLE_PERCENT, encode_plans, parse_plans
from horologe_planning.search.pipeline_planner import describe_plan, make_plan
from horologe_planning.search.whole_devices import frictionless
from planning.planner_builders import PRICES
from planning.planner_builders import an_evaluator as dedicated_evaluator

PROFILES = catalogue_profiles()
COEFFICIENTS = catalogue_coefficients(PROFILES, "pcie-contention")


def share_times(margin: float = 0.0) -> ShareTimes:
    return ShareTimes({"v100": COEFFICIENTS}, PROFILES, margin)


def an_evaluator(structure: PipelineStructure = CASCADE, rate: float = 50.0, seconds: float = 20.0) -> LayoutEvaluator:
    return LayoutEvaluator(dedicated_evaluator(structure, structure.slo_ns, rate, seconds=seconds), share_times(1.0))


def a_device(*shares: tuple[str, float, int], hardware: str = "v100") -> PlannedDevice:
    return PlannedDevice(hardware, tuple(StageShare(*share) for share in shares))


@pytest.mark.parametrize("model", SIMILAR)
def test_derived_coefficients_are_near_the_measured_times_of_the_whole_gpu(model: str) -> None:
    latency_ns = PROFILES[model]["v100"].latency_ns
    derived, error = derive_coefficients(model, CALIBRATED.models[SIMILAR[model]], latency_ns)
    assert error < 0.25
    assert derived.model == model


def test_a_model_derived_from_itself_has_its_own_coefficients() -> None:
    measured = CALIBRATED.models["resnet50"]
    times_ms = {
        b: (measured.k1 * b**2 + measured.k2 * b + measured.k3) / (100 + measured.k4) + measured.k5 + measured.k6 * b
        for b in (1, 8, 32)
    }
    latency_ns = {b: round((time_ms + measured.scheduling_delay_ms) * 1e6) for b, time_ms in times_ms.items()}
    derived, error = derive_coefficients("resnet50", measured, latency_ns)
    assert error < 1e-5
    assert derived.k2 == pytest.approx(measured.k2, rel=1e-4)
    assert (derived.kernels, derived.load_bytes) == (measured.kernels, measured.load_bytes)


def test_times_that_no_similar_model_has_are_errors() -> None:
    with pytest.raises(ValueError, match=r"m: got factors .* of resnet50, wanted a similar model"):
        derive_coefficients("m", CALIBRATED.models["resnet50"], {1: ms(50), 32: ms(50)})
    with pytest.raises(ValueError, match="m: got 1 batch size, wanted at least two"):
        derive_coefficients("m", CALIBRATED.models["resnet50"], {1: ms(5)})


def test_a_whole_device_has_the_measured_times_and_a_share_longer_ones() -> None:
    times = share_times()
    whole = times.profile("v100", "resnet50_v2", WHOLE_PERCENT, ())
    assert whole is PROFILES["resnet50_v2"]["v100"]
    half = times.profile("v100", "resnet50_v2", 50.0, ())
    beside = times.profile("v100", "resnet50_v2", 50.0, [("resnet152_v2", 50.0, 16)])
    for size in whole.batch_sizes:
        assert whole.latency_ns[size] < half.latency_ns[size] < beside.latency_ns[size]
        assert half.latency_ns[size] < 2.1 * whole.latency_ns[size]  # a part of the time no share shortens
    with_margin = share_times(2.0).profile("v100", "resnet50_v2", 50.0, ())
    error = COEFFICIENTS.models["resnet50_v2"].relative_error
    assert with_margin.latency_ns[8] == pytest.approx((1 + 2 * error) * half.latency_ns[8], rel=1e-6)


def test_small_batches_gain_from_several_shares() -> None:
    """A batch of one leaves most of a V100 idle, so that four quarters serve more than the whole."""
    times, batch = share_times(), 1
    whole = times.profile("v100", "resnet50_v2", WHOLE_PERCENT, ())
    quarter = times.profile("v100", "resnet50_v2", 25.0, [("resnet50_v2", 25.0, batch)] * 3)
    assert 4 * quarter.throughput(batch) > 1.5 * whole.throughput(batch)


@given(st.dictionaries(st.integers(0, 20), st.floats(0.1, 1000), min_size=1, max_size=10))
def test_filled_devices_are_full_and_no_share_is_below_the_least(weights: dict[int, float]) -> None:
    percent = fill_device(weights)
    assert sum(percent.values()) == WHOLE_PERCENT
    assert min(percent.values()) >= LEAST_PERCENT
    assert all(value % STEP_PERCENT == 0 for value in percent.values())
    for low in percent:
        for high in percent:
            if weights[low] <= weights[high]:
                assert percent[low] <= percent[high] + STEP_PERCENT


def test_too_many_shares_of_a_device_are_an_error() -> None:
    with pytest.raises(ValueError, match="shares of a device: got 11, wanted at most 10"):
        fill_device(dict.fromkeys(range(11), 1.0))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    devices = []
    for _ in range(draw(st.integers(1, 3))):
        stages = draw(st.lists(st.sampled_from(["fast", "slow", "third"]), min_size=1, unique=True))
        percent = fill_device({place: draw(st.integers(1, 9)) for place in range(len(stages))})
        sizes = [draw(st.sampled_from([1, 8])) for _ in stages]
        devices.append(a_device(*zip(stages, percent.values(), sizes, strict=True)))
    whole = a_device(("slow", WHOLE_PERCENT, 4), hardware="k80")
    return make_layout([*devices, *[whole] * draw(st.integers(0, 2))])


@given(layouts())
def test_changes_keep_devices_full_and_never_add_one(layout: Layout) -> None:
    def can_share(hardware: str, stage: str) -> bool:
        return hardware == "v100"

    changed = [
        *batch_changes(layout, lambda hardware, stage: (1, 2, 8)), *transfers(layout, 10.0),
        *placements(layout, can_share),
    ]  # fmt: skip
    for other in changed:
        assert layout_price(other, PRICES) <= layout_price(layout, PRICES)
        assert all(device.percent == WHOLE_PERCENT for device in other)
        assert all(len({share.stage for share in device.shares}) == len(device.shares) for device in other)
        assert all(share.percent >= LEAST_PERCENT for device in other for share in device.shares)
        assert [device for device in other if device.hardware == "k80" and len(device.shares) > 1] == []
        assert other == make_layout(other)


def test_a_layout_of_whole_devices_has_the_forecast_of_its_configuration() -> None:
    evaluator = an_evaluator()
    plan, report = make_plan(evaluator.problem)
    layout = dedicated_layout(plan.placements)
    assert evaluator.price(layout) == pytest.approx(report.cost_per_hour)
    assert evaluator.forecast(layout).p99_ns == report.p99_ns


def test_equal_shares_are_one_group_and_unequal_ones_the_fastest_first() -> None:
    evaluator = an_evaluator()
    shared = a_device(("fast", 40.0, 8), ("slow", 60.0, 8))
    layout = make_layout([shared, shared, a_device(("slow", WHOLE_PERCENT, 16), hardware="k80")])
    groups = evaluator.configuration(layout)
    assert [(group.stage, group.replicas) for group in groups] == [("fast", 2), ("slow", 2), ("slow", 1)]
    assert groups[0].hardware == "v100/40% beside resnet152_v2/60%/8"
    assert groups[2].hardware == "k80"
    assert not evaluator.is_feasible(make_layout([a_device(("fast", WHOLE_PERCENT, 1))]))
    assert describe_layout(layout) == "1 x k80 (slow 100% batch 16); 2 x v100 (fast 40% batch 8, slow 60% batch 8)"


def test_the_least_share_is_feasible_and_less_is_not() -> None:
    evaluator = an_evaluator()
    demand = least_share(evaluator, "slow", "v100")
    assert demand is not None
    assert LEAST_PERCENT <= demand.total_percent < WHOLE_PERCENT
    assert least_share(an_evaluator(rate=3000.0, seconds=2), "slow", "v100").total_percent > WHOLE_PERCENT  # type: ignore[union-attr]


def test_candidates_have_the_fewest_devices_for_each_choice_of_hardware() -> None:
    evaluator = an_evaluator()
    found = least_candidates(evaluator)
    assert [len(candidate.demands) for candidate in found].count(2) == 1
    assert {len(candidate.dedicated) for candidate in found} == {0, 1, 2}
    for candidate in found:
        assert set(candidate.pools.values()) <= {1}
        for layout in first_layouts(candidate):
            assert {share.stage for device in layout for share in device.shares} == {"fast", "slow"}
            assert evaluator.price(layout) <= 2.6 * len(layout)


def test_additions_are_devices_for_the_stages_that_gain_most() -> None:
    evaluator = an_evaluator(rate=200.0)
    layout = make_layout([a_device(("fast", 90.0, 8), ("slow", 10.0, 8))])
    wider = SharedDevices(evaluator).additions(layout)
    assert {len(other) for other in wider} == {2}
    assert min(wider, key=evaluator.reached_slo_ns)[1].shares[0].stage == "slow"
    assert all(evaluator.reached_slo_ns(other) < evaluator.reached_slo_ns(layout) for other in wider)


def test_a_joint_plan_is_feasible_and_cheaper_than_whole_devices() -> None:
    evaluator = an_evaluator(VIDEO_MONITORING, rate=150.0)
    dedicated = make_plan(evaluator.problem)
    start = dedicated_layout(dedicated.plan.placements)
    layout = plan_layout(evaluator, evaluator.price(start))
    assert layout is not None
    assert evaluator.is_feasible(layout)
    assert evaluator.price(layout) < 0.8 * evaluator.price(start)
    plan, report = joint_plan(evaluator, layout, dedicated)
    assert report.p99_ns <= plan.slo_ns
    assert report.cost_per_hour == evaluator.price(layout)
    assert report.runner_up is not None
    assert report.runner_up.cost_per_hour == dedicated.report.cost_per_hour


def test_the_tuner_can_carry_out_the_plan_of_a_layout() -> None:
    evaluator = an_evaluator(VIDEO_MONITORING, rate=150.0)
    layout = make_layout([
        a_device(("detect", 60.0, 8), ("persons", 40.0, 4)), a_device(("detect", 40.0, 4), ("vehicles", 60.0, 8)),
        *[a_device(("plates", WHOLE_PERCENT, 2), hardware="cpu")] * 2,
    ])  # fmt: skip
    plan, _ = joint_plan(evaluator, layout, describe_plan(evaluator.problem, frictionless(evaluator.problem)))
    assert parse_plans(encode_plans([plan])) == (plan,)
    placed = {(share.stage, share.device): share for share in plan.shares}
    assert sorted(placed) == [
        ("detect", "v100-1"), ("detect", "v100-2"), ("persons", "v100-2"), ("plates", "cpu-1"), ("plates", "cpu-2"),
        ("vehicles", "v100-1"),
    ]  # fmt: skip
    small, large = placed["detect", "v100-1"], placed["detect", "v100-2"]
    assert (small.model, small.percent, large.percent) == ("inceptionv3", 40.0, 60.0)
    assert small.scale_factor + large.scale_factor == pytest.approx(1)
    assert plan.rate == pytest.approx(evaluator.problem.workload.rate)
    assert placed["plates", "cpu-1"].exec_ns == ((1, ms(20)), (2, ms(40)))
    assert placed["plates", "cpu-1"].slo_ns < placed["persons", "v100-2"].slo_ns < ms(150)
    assert all(ns > dict(large.exec_ns)[size] for size, ns in small.exec_ns)


def test_a_search_that_ends_at_its_limit_still_shares_devices() -> None:
    evaluator = an_evaluator(VIDEO_MONITORING, rate=150.0)
    layout = plan_layout(evaluator, runs_limit=1)
    assert layout is not None
    assert evaluator.is_feasible(layout)
    assert evaluator.price(layout) < make_plan(evaluator.problem).report.cost_per_hour


def test_no_plan_is_made_that_does_not_cost_less_than_a_known_one() -> None:
    evaluator = an_evaluator()
    layout = plan_layout(evaluator)
    assert layout is not None
    assert plan_layout(evaluator, evaluator.price(layout)) is None
