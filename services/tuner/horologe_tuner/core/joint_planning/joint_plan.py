"""Result of the joint planner: devices with the shares of the stages, and the forecast of the estimator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from horologe_tuner.core.joint_planning.layout_evaluation import LayoutEvaluator
    from horologe_tuner.core.joint_planning.layouts import Layout, PlannedDevice


class JointShare(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A replica of a stage on a share of a device. `percent` 100: it has the device for itself."""

    stage: str
    model: str
    percent: float
    batch: int
    exec_ns: dict[int, int]
    """Batch size -> predicted time beside the neighbours."""
    throughput: float
    """Calls per second with full batches beside the neighbours."""
    utilisation: float
    """Part of the time that the estimator found the share busy."""


class JointDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A device with its shares."""

    hardware: str
    shares: tuple[JointShare, ...]


class JointPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The cheapest layout found, and its forecast for the sample trace."""

    pipeline: str
    slo_ns: int
    devices: tuple[JointDevice, ...]
    cost_per_hour: float
    dedicated_cost: float
    """Dollars per hour of InferLine's plan, whose replicas have whole devices."""
    p99_ns: int
    attainment: float
    """Part of the sample's queries that meet the SLO."""
    attainment_bound: float
    """Part that an unseen trace meets with the confidence of the objective; see `Objective`."""
    rate: float
    evaluations: int
    """Runs of the estimator."""


def joint_plan(evaluator: LayoutEvaluator, layout: Layout, dedicated_cost: float) -> JointPlan:
    """Return the plan of a layout with its forecast."""
    problem, forecast = evaluator.problem, evaluator.forecast(layout)
    groups = evaluator.configuration(layout)
    used = {
        (group.stage, group.hardware, group.batch): load.utilisation
        for group, load in zip(groups, forecast.loads, strict=True)
    }

    def share_of(device: PlannedDevice, place: int) -> JointShare:
        group = evaluator.group_of(device, place)
        profile = problem.profile_of(group)
        exec_ns = {size: ns for size, ns in profile.latency_ns.items() if size <= group.batch}
        utilisation = used[group.stage, group.hardware, group.batch]
        percent, throughput = device.shares[place].percent, profile.throughput(group.batch)
        return JointShare(group.stage, group.model, percent, group.batch, exec_ns, throughput, utilisation)

    return JointPlan(
        pipeline=problem.structure.name,
        slo_ns=problem.objective.slo_ns,
        devices=tuple(
            JointDevice(device.hardware, tuple(share_of(device, place) for place in range(len(device.shares))))
            for device in layout
        ),
        cost_per_hour=evaluator.price(layout),
        dedicated_cost=dedicated_cost,
        p99_ns=forecast.p99_ns,
        attainment=forecast.attainment,
        attainment_bound=1 - forecast.missed_bound,
        rate=problem.workload.rate,
        evaluations=problem.runs,
    )
