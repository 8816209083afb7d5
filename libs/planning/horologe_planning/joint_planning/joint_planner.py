"""Joint planner: the cheapest devices, shares, batch sizes and placement of a pipeline that meet its SLO.

InferLine gives each replica a whole device, iGniter places single models on shares of GPUs. Here the stages of a
pipeline share devices under one deadline, and the estimator knows the time of each share beside its neighbours.

`video-monitoring` at 150 queries per second within 150 ms starts with `detect` 40%, `persons` 35% and `vehicles` 25% of
one V100, and `plates` with batches of up to 32 on two CPUs. It would meet 182 ms. Without batches of `plates` it meets
144 ms, so this layout is the plan.
"""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import TYPE_CHECKING

from horologe_planning.hardware import PRICE_ROUNDING
from horologe_planning.joint_planning.layout_search import SharedDevices, best_layouts, search_layout
from horologe_planning.joint_planning.share_demand import least_candidates
from horologe_planning.plan import Placement, Plan
from horologe_planning.report import Alternative, PlanReport, ReportedPlan
from horologe_planning.search.cheapest_first import RUNS_LIMIT, search_cheapest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator
    from horologe_planning.joint_planning.layouts import Layout

SHARED_RUNS = 400
"""Runs for each number of devices on which all stages are, after the limit."""
POLISH_RUNS = 150
"""Runs to increase the distance of the found layout from the SLO."""


def plan_layout(evaluator: LayoutEvaluator, cost_limit: float = inf, runs_limit: int = RUNS_LIMIT) -> Layout | None:
    """Return the cheapest feasible layout found; None if none costs less than `cost_limit` dollars per hour."""
    result = search_cheapest(SharedDevices(evaluator), runs_limit, cost_limit)
    if result.following is not None:
        return share_everything(evaluator, cost_limit)
    return polish(evaluator, result.cheapest) if result.cheapest is not None else None


def share_everything(evaluator: LayoutEvaluator, cost_limit: float) -> Layout | None:
    """Return a feasible layout with the fewest shared devices, on which all stages are that can share.

    It is for searches that end at their limit of runs. They have not come to the dearer layouts.
    """
    candidate = max(least_candidates(evaluator), key=lambda candidate: len(candidate.demands))
    while candidate.pools:
        for layout in best_layouts(evaluator, candidate):
            if evaluator.price(layout) >= cost_limit - PRICE_ROUNDING:
                return None
            last_run = evaluator.problem.runs + SHARED_RUNS
            changed = search_layout(evaluator, layout, evaluator.problem.objective.slo_ns, last_run)
            if evaluator.is_feasible(changed):
                return polish(evaluator, changed)
        candidate = candidate._replace(pools={hardware: count + 1 for hardware, count in candidate.pools.items()})
    return None


def polish(evaluator: LayoutEvaluator, layout: Layout) -> Layout:
    """Return the layout with more time left to the SLO, at the same cost: it serves traffic that was not seen."""
    changed = search_layout(evaluator, layout, 0.0, evaluator.problem.runs + POLISH_RUNS)
    better = evaluator.price(changed) <= evaluator.price(layout) and evaluator.is_feasible(changed)
    return changed if better else layout


def joint_plan(evaluator: LayoutEvaluator, layout: Layout, dedicated: ReportedPlan) -> ReportedPlan:
    """Return the plan of a layout. `dedicated`: the plan of whole devices, the runner-up."""
    problem, forecast = evaluator.problem, evaluator.forecast(layout)
    cost, others_cost = evaluator.price(layout), dedicated.report.cost_per_hour
    saved = others_cost - cost
    reason = f"on whole devices it costs {saved:.3f} dollars per hour more ({saved / cost:.1%})"
    report = PlanReport(
        cost_per_hour=cost,
        p99_ns=forecast.p99_ns,
        attainment=forecast.attainment,
        attainment_bound=1 - forecast.missed_bound,
        runner_up=Alternative(dedicated.plan.placements, others_cost, reason),
        evaluations=problem.runs,
    )
    placements = tuple(_placements(evaluator, layout))
    plan = Plan(problem.structure.name, problem.objective.slo_ns, problem.workload.rate, placements)
    return ReportedPlan(plan, report)


def _placements(evaluator: LayoutEvaluator, layout: Layout) -> Iterator[Placement]:
    """Yield a placement for each share. Devices are numbered by hardware type: v100-1, v100-2, cpu-1."""
    slo_ns, throughput, numbers = _stage_slos(evaluator, layout), dict.fromkeys(evaluator.models, 0.0), Counter[str]()
    for group in evaluator.configuration(layout):
        throughput[group.stage] += group.replicas * evaluator.problem.profile_of(group).throughput(group.max_batch)
    for device in layout:
        numbers[device.hardware] += 1
        for place, share in enumerate(device.shares):
            group = evaluator.group_of(device, place)
            profile = evaluator.problem.profile_of(group)
            own = profile.throughput(group.max_batch)
            calls = evaluator.problem.structure.scale_factor(group.stage)
            yield Placement(
                group.stage,
                group.model,
                device.hardware,
                group.max_batch,
                percent=share.percent,
                device=f"{device.hardware}-{numbers[device.hardware]}",
                scale_factor=calls * own / throughput[group.stage],
                throughput=own,
                slo_ns=slo_ns[group.stage],
                latency_ns=round(profile.mean_latency_ns(group.max_batch)),
                exec_ns=tuple((n, profile.latency_ns[n]) for n in profile.batch_sizes if n <= group.max_batch),
            )


def _stage_slos(evaluator: LayoutEvaluator, layout: Layout) -> dict[str, int]:
    """Return what the rest of the longest path through each stage leaves of the SLO, in nanoseconds.

    The tuner looks at the latencies of each model, and a shadow repairs a stage that takes longer.
    """
    slowest = {group.stage: group for group in evaluator.configuration(layout)}  # the slowest group comes last
    structure = evaluator.problem.structure
    own_ns = {
        stage: evaluator.problem.profile_of(group).mean_latency_ns(group.max_batch) for stage, group in slowest.items()
    }
    before: dict[str, float] = {}
    after = dict.fromkeys(own_ns, 0.0)
    for stage in structure.stages:
        before[stage.name] = max((before[parent] + own_ns[parent] for parent in stage.parents), default=0.0)
    for stage in reversed(structure.stages):
        for parent in stage.parents:
            after[parent] = max(after[parent], after[stage.name] + own_ns[stage.name])
    slo_ns = evaluator.problem.objective.slo_ns
    return {name: max(1, round(slo_ns - before[name] - after[name])) for name in own_ns}
