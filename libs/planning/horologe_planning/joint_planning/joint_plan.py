"""Result of the joint planner: the forecast of a layout, and its sharing plan for the tuner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_planning.provisioning.workloads import Placement, PlannedGpu, SharingPlan

if TYPE_CHECKING:
    from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator
    from horologe_planning.joint_planning.layouts import Layout, PlannedDevice


class JointPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Cost and forecast of a layout for the sample trace, beside the cost of whole devices."""

    pipeline: str
    slo_ns: int
    cost_per_hour: float
    dedicated_cost: float
    """Dollars per hour of the plan whose replicas have whole devices."""
    p99_ns: int
    attainment: float
    """Part of the sample's queries that meet the SLO."""
    attainment_bound: float
    """Part that an unseen trace meets with the confidence of the objective; see `Objective`."""
    rate: float
    evaluations: int
    """Runs of the estimator."""


def joint_plan(evaluator: LayoutEvaluator, layout: Layout, dedicated_cost: float) -> JointPlan:
    """Return the cost and the forecast of a layout."""
    problem, forecast = evaluator.problem, evaluator.forecast(layout)
    return JointPlan(
        pipeline=problem.structure.name,
        slo_ns=problem.objective.slo_ns,
        cost_per_hour=evaluator.price(layout),
        dedicated_cost=dedicated_cost,
        p99_ns=forecast.p99_ns,
        attainment=forecast.attainment,
        attainment_bound=1 - forecast.missed_bound,
        rate=problem.workload.rate,
        evaluations=problem.runs,
    )


def sharing_plan(evaluator: LayoutEvaluator, layout: Layout) -> SharingPlan:
    """Return the layout as a sharing plan. Each stage is a workload, each device a GPU of its hardware type."""
    slo_ms = _stage_slos(evaluator, layout)
    throughput = dict.fromkeys(evaluator.models, 0.0)
    for group in evaluator.configuration(layout):
        throughput[group.stage] += group.replicas * evaluator.problem.profile_of(group).throughput(group.max_batch)

    def placement(device: PlannedDevice, place: int) -> Placement:
        group = evaluator.group_of(device, place)
        profile = evaluator.problem.profile_of(group)
        own, stage = profile.throughput(group.max_batch), group.stage
        calls = evaluator.problem.workload.rate * evaluator.problem.structure.scale_factor(stage)
        exec_ns = {size: ns for size, ns in profile.latency_ns.items() if size <= group.max_batch}
        return Placement(
            stage, group.model, calls * own / throughput[stage], slo_ms[stage], group.max_batch,
            device.shares[place].percent, profile.mean_latency_ns(group.max_batch) / 1e6, own, exec_ns=exec_ns,
            served_model=group.model,
        )  # fmt: skip

    gpus = (
        PlannedGpu(device.hardware, tuple(placement(device, place) for place in range(len(device.shares))))
        for device in layout
    )
    return SharingPlan(tuple(gpus), evaluator.price(layout))


def _stage_slos(evaluator: LayoutEvaluator, layout: Layout) -> dict[str, float]:
    """Return what the rest of the longest path through each stage leaves of the SLO, in ms.

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
    return {name: (slo_ns - before[name] - after[name]) / 1e6 for name in own_ns}
