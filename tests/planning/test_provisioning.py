"""Provisioning: the paper's plans, the exact optimum, several GPU types, split workloads, bad input."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from horologe_common.interference.prediction import INTERFERENCE_MODELS
from horologe_common.interference.v100 import V100_CATALOGUES
from horologe_experiments.igniter.paper_provisioning import paper_bound, provision_as_paper, with_predictions
from horologe_experiments.igniter.provisioning_baselines import (
    judge,
    plan_ffd,
    plan_ffd_with_allocation,
    plan_gpu_lets,
    plan_gslice,
    violations,
)
from horologe_planning.plan import encode_plans, parse_plans
from horologe_planning.provisioning.device_shares import device_counts, with_batch_times
from horologe_planning.provisioning.exact_sharing import (
    cheapest_partition,
    feasible_sets,
    share_bound,
)
from horologe_planning.provisioning.explanation import explain_plan
from horologe_planning.provisioning.placement import RULES
from horologe_planning.provisioning.provisioner import empty_fleets, place_all, plan_of, provision
from horologe_planning.provisioning.share_tables import least_bound
from horologe_planning.provisioning.workloads import GpuType, ProvisioningError, ProvisioningOptions, Workload
from horologe_planning.report import SharedPlans, SharingReport
from planning.workload_lists import (
    LARGEST,
    PAPER,
    SLOW,
    TABLE_3,
    V100,
    check_plan,
    groups,
    shares_of,
    workload_lists,
)


def shares(plan: SharedPlans) -> dict[str, tuple[float, int]]:
    return {share.workload: (share.placement.percent, share.placement.max_batch) for share in shares_of(plan)}


def test_the_plan_of_table_1() -> None:
    rates = (("A", "alexnet", 500, 15), ("R", "resnet50", 400, 40), ("V", "vgg19", 200, 60))
    plan = provision_as_paper([Workload(*row) for row in rates], PAPER)
    assert shares(plan) == {"A": (10, 4), "R": (30, 8), "V": (37.5, 6)}
    assert len(groups(plan)) == 1


def test_the_twelve_workloads_of_table_3() -> None:
    assert [workload.name for workload in TABLE_3] == [f"W{number}" for number in range(1, 13)]
    plan = provision_as_paper(TABLE_3, PAPER)
    check_plan(plan, TABLE_3)
    assert plan.report.cost_per_hour == pytest.approx(18.36)
    assert {frozenset({"W1", "W5", "W11"}), frozenset({"W9", "W10"})} <= groups(plan)  # GPU5 and GPU4 of Fig. 14
    assert {name: shares(plan)[name][0] for name in ("W2", "W4", "W9")} == {"W2": 7.5, "W4": 32.5, "W9": 37.5}
    default = provision(TABLE_3, [V100])
    check_plan(default, TABLE_3)
    assert default.report.cost_per_hour == pytest.approx(18.36)
    assert default.report.cost_bound == pytest.approx(18.36)  # no plan has fewer GPUs
    assert default.report.margin == 3.0  # costs no GPU more than a margin of 1
    assert provision(TABLE_3, [V100], ProvisioningOptions(free_margin=0.0)).report.margin == 1.0


def test_baselines_on_table_3() -> None:
    ffd = plan_ffd(TABLE_3, PAPER)
    assert ffd.report.cost_per_hour == pytest.approx(15.30)
    assert len(violations(ffd)) >= 8  # 10 in the paper, measured
    assert shares(ffd)["W2"][0] == 7.5
    check_plan(plan_ffd_with_allocation(TABLE_3, PAPER), TABLE_3)
    lets = plan_gpu_lets(TABLE_3, PAPER, INTERFERENCE_MODELS["igniter"])
    assert lets.report.cost_per_hour == pytest.approx(24.48)
    assert {name: shares(lets)[name][0] for name in ("W2", "W4", "W9")} == {"W2": 40, "W4": 60, "W9": 40}
    assert frozenset({"W2", "W5"}) in groups(lets)  # GPU2 of Fig. 19
    assert "W7" in violations(judge(lets, [V100], INTERFERENCE_MODELS["pcie-contention"]))
    assert all(len(workloads) <= 2 for workloads in groups(lets))
    assert {share for share, _ in shares(lets).values()} <= {20, 40, 50, 60, 80, 100}
    gslice = plan_gslice(TABLE_3, PAPER, INTERFERENCE_MODELS["igniter"])
    assert groups(gslice) == groups(provision_as_paper(TABLE_3, PAPER))
    assert len(violations(gslice)) >= 3


@settings(max_examples=20, deadline=None)
@given(workload_lists(), st.sampled_from((0.0, 1.0, 3.0)))
def test_plans_meet_every_slo_with_the_margin(workloads: list[Workload], margin: float) -> None:
    plan = provision(workloads, [V100], ProvisioningOptions(margin=margin))
    check_plan(plan, workloads)
    for share in shares_of(plan):
        factor = 1 + margin * V100.models[share.placement.coefficients].relative_error
        assert share.latency_ms * factor <= share.limit_ms + 3e-6  # plans are in nanoseconds


@settings(max_examples=20, deadline=None)
@given(workload_lists(10))
def test_no_rule_beats_the_exact_plan_and_no_bound_exceeds_it(workloads: list[Workload]) -> None:
    fleets = empty_fleets(workloads, [V100], ProvisioningOptions())
    sets = feasible_sets(fleets)
    assert sets is not None
    chosen, bound = cheapest_partition(fleets, sets)
    cost = len(chosen) * V100.gpu.price_per_hour
    assert bound == pytest.approx(cost)
    assert share_bound(fleets) <= cost + 1e-6
    assert provision(workloads, [V100]).report.cost_per_hour == pytest.approx(cost)
    for rule in RULES:
        assert sum(fleet.cost for fleet in place_all(fleets, rule)) >= cost - 1e-6


@settings(max_examples=30, deadline=None)
@given(workload_lists(1))
def test_the_least_share_is_at_most_that_of_theorem_1(workloads: list[Workload]) -> None:
    (load,) = workloads
    model = V100.models[load.model]
    least, paper = (bound(V100.gpu, model, load) for bound in (least_bound, paper_bound))
    assert least.units <= paper.units


def test_a_smaller_batch_than_theorem_1_needs_a_smaller_share() -> None:
    model = PAPER.models["alexnet"]
    workload = Workload("w", "alexnet", 140, 15)
    assert paper_bound(PAPER.gpu, model, workload) == (2, 3)
    assert least_bound(PAPER.gpu, model, workload) == (1, 2)


@pytest.mark.parametrize("factor", [1.0, 3.1])
def test_two_parts_of_a_workload_are_never_on_one_gpu(factor: float) -> None:
    small = GpuType(msgspec.structs.replace(V100.gpu, name="small", price_per_hour=0.5), V100.with_times(2.2).models)
    loads = [msgspec.structs.replace(load, rate=load.rate * factor) for load in TABLE_3]
    check_plan(provision(loads, [V100, small]), loads)
    for rule in RULES:
        check_plan(plan_of(place_all(empty_fleets(loads, [V100, small], ProvisioningOptions()), rule)), loads)


@settings(max_examples=8, deadline=None)
@given(workload_lists())
def test_several_gpu_types_never_cost_more_than_one(workloads: list[Workload]) -> None:
    both = provision(workloads, [V100, SLOW])
    check_plan(both, workloads)
    assert (
        both.report.cost_per_hour
        <= min(provision(workloads, [kind]).report.cost_per_hour for kind in (V100, SLOW)) + 1e-6
    )
    assert both.report.cost_bound <= both.report.cost_per_hour + 1e-6


def test_types_are_mixed_where_that_is_cheapest() -> None:
    tight, loose = Workload("tight", "ssd", 100, 11), Workload("loose", "vgg19", 250, 200)
    plan = provision([tight, loose], [V100, SLOW])
    alone = [provision([load], [V100, SLOW]).plans[0].placements[0].hardware for load in (tight, loose)]
    assert alone == ["v100", "slow"]
    assert device_counts(plan.plans) == {"v100": 1, "slow": 1}


def test_a_device_with_all_times_multiplied_has_the_same_shares() -> None:
    slow = [msgspec.structs.replace(load, rate=load.rate / 10, slo_ms=load.slo_ms * 10) for load in TABLE_3]
    plan = provision(slow, [V100.with_times(10)])
    check_plan(plan, slow)
    assert shares(plan) == shares(provision(TABLE_3, [V100]))


def test_a_workload_too_large_for_a_gpu_is_split() -> None:
    load = Workload("big", "vgg19", 1500, 40)
    plan = provision([load], [V100])
    check_plan(plan, [load])
    assert 1 < len(plan.plans[0].placements) <= 4


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from((PAPER, V100)),
    st.sampled_from(sorted(LARGEST)),
    st.floats(10, 8000),
    st.floats(5, 120),
    st.sampled_from((0.0, 1.0)),
)
@example(PAPER, "vgg19", 3002.604241542428, 16.673371668571804, 1.0)
def test_any_rate_is_served_or_the_slo_is_refused(
    kind: GpuType, model: str, rate: float, slo_ms: float, margin: float
) -> None:
    load = Workload("w", model, rate, slo_ms)
    options = ProvisioningOptions("igniter" if kind is PAPER else "pcie-contention", margin)
    try:
        plan = provision([load], [kind], options)
    except ProvisioningError as error:
        refusal = str(error)
    else:
        check_plan(plan, [load])
        return
    assert "batch 1 takes" in refusal


def test_a_thousand_workloads_within_an_eighth_of_the_bound() -> None:
    rng = np.random.default_rng(1)
    loads = [
        Workload(f"w{number}", model, rng.uniform(0.1, 1) * LARGEST[model][0], rng.uniform(1, 2) * LARGEST[model][1])
        for number, model in enumerate(rng.choice(sorted(LARGEST), 1000).tolist())
    ]
    plan = provision(loads, [V100])
    check_plan(plan, loads)
    assert plan.report.cost_per_hour <= 1.15 * plan.report.cost_bound


@pytest.mark.parametrize(
    ("workload", "message"),
    [
        (Workload("w", "alexnet", 0, 10), "rate: got 0, wanted"),
        (Workload("w", "alexnet", -3, 10), "rate: got -3"),
        (Workload("w", "alexnet", float("nan"), 10), "rate: got nan"),
        (Workload("w", "alexnet", 100, float("inf")), "slo_ms: got inf"),
        (Workload("w", "bert", 100, 10), "model: got 'bert', wanted one of alexnet"),
        (Workload("", "alexnet", 100, 10), "name: got no name"),
        (Workload("w", "alexnet", 1e12, 10), "rate: got 1e.12, wanted at most"),
        (
            Workload("w", "ssd", 10, 4),
            r"slo_ms: got 4; .*\(load 0.11, scheduling 0.15, active .*, feedback 0.30\), wanted at most 1.95 ms, half",
        ),
    ],
)
def test_a_workload_that_cannot_be_provisioned_is_named(workload: Workload, message: str) -> None:
    with pytest.raises(ProvisioningError, match=message):
        provision([workload], [V100])


def test_bad_options_are_named() -> None:
    twice = [Workload("w", "alexnet", 10, 10)] * 2
    with pytest.raises(ProvisioningError, match="'w': got the name twice"):
        provision(twice, [V100])
    with pytest.raises(ProvisioningError, match="gpu types: got none"):
        provision(twice[:1], [])
    with pytest.raises(ProvisioningError, match="margin: got nan"):
        provision(twice[:1], [V100], ProvisioningOptions(margin=float("nan")))
    with pytest.raises(ProvisioningError, match="model: got 'guess'"):
        provision(twice[:1], [V100], ProvisioningOptions(model="guess"))
    assert provision([], [V100]) == SharedPlans((), SharingReport(0.0))


def test_a_gpu_that_the_parts_of_a_split_workload_do_not_need_is_saved() -> None:
    """Parts of w1 for the wanted margin need three GPUs. The smaller parts for three times the margin fit on two."""
    detectors = {"w1": (300, 37.5), "w2": (150, 50), "w3": (75, 50)}
    loads = [Workload("w0", "alexnet", 150, 10), *(Workload(name, "ssd", *load) for name, load in detectors.items())]
    plan = provision(loads, [V100])
    assert len(groups(plan)) == 2
    check_plan(plan, loads)
    removal = explain_plan(plan, loads, [V100]).cheaper
    assert removal is not None
    assert removal.violations


@settings(max_examples=20, deadline=None)
@given(workload_lists(), st.sampled_from(("igniter", "pcie-contention")))
def test_the_parts_of_a_latency_add_up(workloads: list[Workload], model: str) -> None:
    kind = GpuType(*V100_CATALOGUES[model])
    plan = provision(workloads, [kind], ProvisioningOptions(model))
    explanation = explain_plan(plan, workloads, [kind], ProvisioningOptions(model))
    for share, reason in zip(shares_of(plan), explanation.shares, strict=True):
        assert reason.parts_ms.total == pytest.approx(share.latency_ms, abs=1e-6)
        assert all(getattr(reason.parts_ms, part) >= -1e-9 for part in reason.parts_ms.__struct_fields__)
        assert share.latency_ms <= reason.limit_ms + 1e-6
        assert reason.alone_percent <= share.placement.percent
    assert explanation.cost_without_margin <= plan.report.cost_per_hour
    if explanation.cheaper is not None:
        assert explanation.cheaper.cost_per_hour < plan.report.cost_per_hour
        assert explanation.cheaper.violations


def test_batches_are_of_the_sizes_that_a_model_has() -> None:
    loads = [msgspec.structs.replace(load, batch_sizes=(1, 4, 16)) for load in TABLE_3]
    for plan in (provision(loads, [V100]), provision_as_paper(loads, V100)):
        check_plan(plan, loads)
        assert {share.placement.max_batch for share in shares_of(plan)} <= {1, 4, 16}


def test_batch_times_end_with_the_prediction_of_the_plan() -> None:
    plans = with_batch_times(provision(TABLE_3, [V100]).plans, [V100], "pcie-contention")
    judged = with_predictions(plans, [V100], INTERFERENCE_MODELS["pcie-contention"])
    for plan, again in zip(plans, judged, strict=True):
        (share,), (same,) = plan.placements, again.placements
        assert same.latency_ns == pytest.approx(share.latency_ns)
        assert [size for size, _ in share.exec_ns] == list(range(1, share.max_batch + 1))
        assert share.exec_ns[-1][1] < share.latency_ns  # without transfers
    assert parse_plans(encode_plans(plans)) == plans
