"""Planner: both guarantees of the paper, the distance from exact search, limits that the paper names, bad input."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horologe_common.clock import ms, s
from horologe_common.distribution import Distribution
from horologe_common.pipelines import PipelineStage, PipelineStructure
from horologe_experiments.inferline.baselines.greedy_planner import cheaper_action, initialize, minimize_cost
from horologe_experiments.inferline.exact_search import find_cheapest
from horologe_planning.catalogue import (
    CASCADE,
    EXAMPLE_PIPELINES,
    IMAGE_PROCESSING,
    SOCIAL_MEDIA,
    VIDEO_MONITORING,
)
from horologe_planning.estimator.pipeline_workload import PipelineTrace
from horologe_planning.hardware import parse_prices
from horologe_planning.plan import Plan, encode_plans, parse_plans
from horologe_planning.profiles import RANKS, Profiles, StageProfile, collect_profiles
from horologe_planning.report import Infeasible
from horologe_planning.search.evaluation import Evaluator
from horologe_planning.search.higher_rates import faster_problem
from horologe_planning.search.objective import BLOCKS, Objective, student_quantile
from horologe_planning.search.pipeline_planner import describe_plan, make_plan
from horologe_planning.search.whole_devices import fastest_hardware, frictionless, isolated_bounds
from planning.planner_builders import PRICES, an_evaluator, gamma_arrivals


def assert_guarantees(evaluator: Evaluator, plan: Plan) -> None:
    """Check that the plan is feasible and that no single action reduces its cost (InferLine section 4.3)."""
    assert evaluator.is_feasible(plan.placements)
    assert cheaper_action(evaluator, plan.placements) is None


@pytest.mark.parametrize("name", EXAMPLE_PIPELINES)
def test_plans_of_the_examples_have_both_guarantees(name: str) -> None:
    evaluator = an_evaluator(EXAMPLE_PIPELINES[name], cv=4.0, rate=300, seconds=10)
    plan, report = make_plan(evaluator)
    assert_guarantees(evaluator, plan)
    assert report.p99_ns <= ms(150)
    assert report.cost_bound <= report.cost_per_hour == pytest.approx(evaluator.price(plan.placements))
    assert report.rejected is not None
    assert "miss the SLO" in report.rejected.reason
    assert report.rejected.cost_per_hour < report.cost_per_hour


@st.composite
def small_problems(draw: st.DrawFn) -> Evaluator:
    """Return planning problems with up to three stages on up to three hardware types, in no order of speed."""
    names = [f"s{number}" for number in range(draw(st.integers(1, 3)))]
    stages, profiles = [], []
    for number, name in enumerate(names):
        parents = (draw(st.sampled_from(names[:number])),) if number else ()
        stages.append(PipelineStage(name, name, parents, draw(st.sampled_from([0.5, 1.0])), 1.0))
        for kind in draw(st.lists(st.sampled_from(["v100", "k80", "cpu"]), min_size=1, unique=True)):
            base_ns, row_ns = ms(draw(st.integers(1, 20))), ms(draw(st.integers(1, 8)))
            profiles.append(StageProfile(name, kind, {size: base_ns + size * row_ns for size in (1, 2, 4)}))
    structure = PipelineStructure("p", ms(draw(st.integers(5, 200))), tuple(stages))
    rate, seed = draw(st.integers(20, 300)), draw(st.integers(0, 1000))
    work = PipelineTrace(structure, gamma_arrivals(rate, draw(st.sampled_from([0.5, 1.0, 4.0])), 4, seed), seed)
    confidence = draw(st.sampled_from([0.0, 0.9]))
    return Evaluator(work, collect_profiles(profiles), PRICES, Objective(structure.slo_ns, confidence=confidence))


def with_slo(evaluator: Evaluator, slo_ns: int) -> Evaluator:
    objective = msgspec.structs.replace(evaluator.objective, slo_ns=slo_ns)
    return Evaluator(evaluator.workload, evaluator.profiles, evaluator.hardware, objective)


@settings(max_examples=12, deadline=None)
@given(small_problems())
def test_a_plan_is_returned_if_and_only_if_there_is_one_and_no_action_improves_it(evaluator: Evaluator) -> None:
    # No configuration answers sooner than one in which no call waits, on the fastest hardware.
    if evaluator.is_feasible(frictionless(evaluator)):
        assert_guarantees(evaluator, make_plan(evaluator).plan)
        return
    with pytest.raises(Infeasible) as info:
        make_plan(evaluator)
    nearest = with_slo(evaluator, info.value.nearest_slo_ns)
    assert nearest.objective.slo_ns > evaluator.objective.slo_ns
    assert_guarantees(nearest, make_plan(nearest).plan)
    with pytest.raises(Infeasible):
        make_plan(with_slo(evaluator, info.value.nearest_slo_ns - 1))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(small_problems())
def test_within_five_percent_of_exact_search(evaluator: Evaluator) -> None:
    """The same problems at each run: on one of a thousand others, a plan is further from the optimum."""
    try:
        cost = make_plan(evaluator).report.cost_per_hour
    except Infeasible:
        return
    exact = find_cheapest(evaluator, cost, 2000)
    if exact.complete:
        assert cost <= 1.05 * exact.cost


def test_a_plan_costs_less_than_single_actions_find() -> None:
    """On these arrivals, algorithm 2 removes CPU replicas first and then cannot remove a dear one any more."""
    evaluator = an_evaluator(VIDEO_MONITORING, rate=50, seconds=60, confidence=0.99)
    greedy = minimize_cost(evaluator, initialize(evaluator, ["k80", "k80", "k80", "cpu"]))
    assert make_plan(evaluator).report.cost_per_hour < 0.95 * evaluator.price(greedy)


def test_a_replica_more_in_one_stage_may_save_several_in_another() -> None:
    """The time that a faster `first` leaves lets `last` do with fewer replicas. No removal alone is feasible."""
    times = {"first": ("cpu", {1: 10}), "side": ("k80", {1: 2, 4: 5}), "last": ("cpu", {1: 18})}
    profiles = collect_profiles(
        StageProfile(model, kind, {size: ms(time_ms) for size, time_ms in by_batch.items()})
        for model, (kind, by_batch) in times.items()
    )
    stages = (
        PipelineStage("first", "first", (), 1.0, 1.0),
        PipelineStage("side", "side", ("first",), 0.5, 1.0),
        PipelineStage("last", "last", ("first",), 1.0, 1.0),
    )
    evaluator = an_evaluator(
        PipelineStructure("p", ms(31), stages), ms(31), rate=258, cv=4.0, seconds=4, seed=1, profiles=profiles
    )
    cost = make_plan(evaluator).report.cost_per_hour
    exact = find_cheapest(evaluator, cost, 2000)
    assert exact.complete
    assert cost <= 1.05 * exact.cost


def test_batches_leave_room_for_higher_rates() -> None:
    """At 100 queries per second, batches of one have the shortest latency. They carry at most 250."""
    profiles = {"m": {"cpu": StageProfile("m", "cpu", {1: ms(4), 8: ms(16)})}}
    structure = PipelineStructure("p", ms(100), (PipelineStage("m", "m", (), 1.0, 1.0),))
    evaluator = an_evaluator(structure, rate=100, profiles=profiles)
    plan = make_plan(evaluator).plan
    assert (plan.placements[0].max_batch, plan.placements[0].replicas) == (8, 1)
    assert faster_problem(evaluator, 3.0).is_feasible(plan.placements)


def test_a_bottleneck_does_not_keep_the_batches_of_other_stages_small() -> None:
    """Two replicas of `slow` carry 235 queries per second. Batches of eight let `batched` carry 500, not 250."""
    profiles = {
        "slow": {"cpu": StageProfile("slow", "cpu", {1: ms(8.5)})},
        "batched": {"cpu": StageProfile("batched", "cpu", {1: ms(4), 8: ms(16)})},
    }
    stages = (PipelineStage("slow", "slow", (), 1.0, 1.0), PipelineStage("batched", "batched", (), 1.0, 1.0))
    plan = make_plan(an_evaluator(PipelineStructure("p", ms(100), stages), ms(100), profiles=profiles, seconds=20)).plan
    assert [(placed.max_batch, placed.replicas) for placed in plan.placements] == [(1, 2), (8, 1)]


def test_a_batch_is_no_larger_than_saves_replicas() -> None:
    """Batches of sixteen carry 615 queries per second, not 500. They leave little time, and `slow` needs replicas."""
    profiles = {
        "slow": {"cpu": StageProfile("slow", "cpu", {1: ms(7)})},
        "batched": {"cpu": StageProfile("batched", "cpu", {1: ms(4), 4: ms(8), 16: ms(26)})},
    }
    stages = (PipelineStage("slow", "slow", (), 1.0, 1.0), PipelineStage("batched", "batched", ("slow",), 1.0, 1.0))
    plan = make_plan(an_evaluator(PipelineStructure("p", ms(60), stages), ms(60), profiles=profiles, seconds=20)).plan
    assert [(placed.max_batch, placed.replicas) for placed in plan.placements] == [(1, 1), (4, 1)]


def test_exact_search_finds_the_cheapest_of_all() -> None:
    profiles = {"m": {"cpu": StageProfile("m", "cpu", {1: ms(10), 2: ms(16)})}}
    structure = PipelineStructure("p", ms(40), (PipelineStage("m", "m", (), 1.0, 1.0),))
    evaluator = an_evaluator(structure, ms(40), profiles=profiles)
    exact = find_cheapest(evaluator, 10.0)
    assert exact.complete
    assert exact.configuration is not None
    count = exact.configuration[0].replicas
    fewer = [msgspec.structs.replace(exact.configuration[0], replicas=count - 1, max_batch=batch) for batch in (1, 2)]
    assert not any(evaluator.is_feasible((stage,)) for stage in fewer)
    assert find_cheapest(evaluator, exact.cost).configuration is None
    limited = an_evaluator(SOCIAL_MEDIA, ms(60), seconds=5)
    assert not find_cheapest(limited, 100.0, runs_limit=1).complete


def test_the_first_configuration_has_batches_of_one_on_the_fastest_hardware() -> None:
    evaluator = an_evaluator(SOCIAL_MEDIA)
    configuration = initialize(evaluator, fastest_hardware(evaluator))
    assert {stage.hardware for stage in configuration} == {"v100"}
    assert {stage.max_batch for stage in configuration} == {1}
    assert evaluator.is_feasible(configuration)


def test_an_slo_below_the_service_time_is_infeasible_with_the_path_and_the_nearest_slo() -> None:
    evaluator = an_evaluator(IMAGE_PROCESSING, ms(10))
    with pytest.raises(
        Infeasible, match=r"preprocess 4 ms on cpu, classify 8.21 ms on v100\. Nearest.*12\.21 ms"
    ) as info:
        make_plan(evaluator)
    assert info.value.nearest_slo_ns == ms(12.21)


def test_a_long_path_that_fewer_queries_take_than_may_miss_is_feasible() -> None:
    rare = PipelineStage("slow", "resnet152_v2", ("fast",), 0.004, 1.0)
    structure = msgspec.structs.replace(CASCADE, stages=(CASCADE.stages[0], rare))
    assert make_plan(an_evaluator(structure, ms(9))).report.attainment >= 0.99


def test_an_accelerator_that_is_slower_for_one_call_and_faster_in_batches_is_found() -> None:
    profiles: Profiles = {"m": {}}
    for kind, base_ms, row_ms in (("v100", 4.0, 4.0), ("k80", 12.0, 0.5)):
        profiles["m"][kind] = StageProfile("m", kind, {size: ms(base_ms + size * row_ms) for size in (1, 2, 4, 8, 16)})
    hardware = parse_prices(["v100=1.0", "k80=1.1"])
    structure = PipelineStructure("p", ms(100), (PipelineStage("m", "m", (), 1.0, 1.0),))
    problem: dict[str, Any] = {"profiles": profiles, "hardware": hardware, "rate": 900.0, "seconds": 10.0}
    evaluator = an_evaluator(structure, ms(100), **problem)
    stayed = minimize_cost(evaluator, initialize(evaluator, fastest_hardware(evaluator)), can_move=False)
    planned = make_plan(evaluator)
    assert stayed[0].hardware == "v100"  # the faster one is also the cheaper one
    assert planned.plan.placements[0].hardware == "k80"
    assert planned.report.cost_per_hour < 0.7 * evaluator.price(stayed)


def test_times_that_depend_on_the_input_are_planned_by_their_distribution() -> None:
    lengths = Distribution.from_samples([ms(10)] * 90 + [ms(60)] * 10)
    row_ns = tuple(round(lengths.quantile_ns((rank + 0.5) / RANKS)) for rank in range(RANKS))
    profiles = {
        "mean": StageProfile("m", "cpu", {1: ms(15), 2: ms(30)}),
        "distribution": StageProfile("m", "cpu", {1: ms(15), 2: ms(30)}, 0, row_ns),
        "tail": StageProfile("m", "cpu", {1: ms(60), 2: ms(120)}),
    }
    structure = PipelineStructure("p", ms(80), (PipelineStage("m", "m", (), 1.0, 1.0),))
    costs = {}
    for name, profile in profiles.items():
        evaluator = an_evaluator(structure, ms(80), rate=400, profiles={"m": {"cpu": profile}})
        costs[name] = make_plan(evaluator).report.cost_per_hour
    assert costs["mean"] < costs["distribution"] < costs["tail"]
    assert profiles["distribution"].mean_latency_ns(1) == pytest.approx(ms(15), rel=0.05)


@pytest.mark.parametrize("name", EXAMPLE_PIPELINES)
@pytest.mark.parametrize("cv", [1.0, 4.0])
def test_plans_meet_the_slo_on_arrivals_that_they_have_not_seen(name: str, cv: float) -> None:
    structure = EXAMPLE_PIPELINES[name]
    evaluator = an_evaluator(structure, cv=cv, seconds=120, confidence=0.99)
    configuration = minimize_cost(evaluator, initialize(evaluator, fastest_hardware(evaluator)))
    for seed in (11, 12, 13):
        unseen = an_evaluator(structure, cv=cv, seconds=120, seed=seed)
        assert unseen.forecast(configuration).attainment >= 0.99


def test_the_bound_of_misses_covers_unseen_traces_that_the_mean_does_not() -> None:
    rng = np.random.default_rng(1)
    bursty = np.repeat(rng.random(400) < 0.009, 50)
    objective = Objective(ms(1), confidence=0.99)
    latencies_ns = np.where(bursty, ms(2), ms(0.5))
    mean = float(bursty.mean())
    assert objective.missed_bound(latencies_ns) > 0.01 > mean
    assert msgspec.structs.replace(objective, confidence=0.0).missed_bound(latencies_ns) == mean
    assert objective.missed_bound(latencies_ns[: BLOCKS - 1]) == float(bursty[: BLOCKS - 1].mean())
    assert student_quantile(0.99, 39) == pytest.approx(2.4258, rel=1e-3)


def test_lower_bounds_leave_out_hardware_that_cannot_meet_the_slo() -> None:
    bounds = isolated_bounds(an_evaluator(CASCADE))
    assert [sorted(least) for least in bounds] == [["k80", "v100"], ["k80", "v100"]]


def test_a_plan_has_the_envelope_and_the_figures_of_the_stages() -> None:
    evaluator = an_evaluator(CASCADE)
    configuration = initialize(evaluator, fastest_hardware(evaluator))
    plan, report = describe_plan(evaluator, configuration)
    plan.validate()
    assert plan.envelope is not None
    assert plan.envelope.windows_ns[-1] == s(60)
    for placed, chosen in zip(plan.placements, configuration, strict=True):
        assert placed.throughput == evaluator.profile_of(chosen).throughput(chosen.max_batch)
        assert placed.provisioning_ratio(plan.rate) == pytest.approx(report.utilisation[placed.stage], rel=0.2)
    assert parse_plans(encode_plans([plan])) == (plan,)
