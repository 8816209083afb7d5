"""The next cheaper plan: a GPU less, or of a cheaper type, and the workloads that would then violate their SLO.

`alexnet`, `resnet50`, `vgg19` and `ssd` (250 requests/s within 55 ms) need two V100s, $6.12 per hour. With one:

    without v100-2, $3.06 per hour: ssd would take 36.93 ms of 26.78, alexnet would take 15.20 ms of 7.15, ...
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from horologe_common.interference.prediction import INTERFERENCE_MODELS, MS_PER_S
from horologe_planning.provisioning.device_shares import placed_workloads, plan_workloads, shares_by_device
from horologe_planning.provisioning.fleet import Fleet
from horologe_planning.provisioning.share_tables import NO_WORKLOAD, ShareTables
from horologe_planning.report import SharedPlans, SharingReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.interference.prediction import Index
    from horologe_planning.provisioning.workloads import GpuType, ProvisioningOptions

TRIED_GPUS = 20
"""GPUs that are removed for trial, those with the smallest shares first. Bounds the time for a large plan."""


TOLERANCE = 1e-9


class PredictedViolation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload that would violate its SLO, in a plan or on a GPU."""

    workload: str
    latency_ms: float
    limit_ms: float
    throughput: float
    rate: float

    def text(self) -> str:
        """Return the violation as a phrase."""
        if self.latency_ms > self.limit_ms:
            return f"{self.workload} would take {self.latency_ms:.2f} ms of {self.limit_ms:.2f}"
        return f"{self.workload} would serve {self.throughput / self.rate:.1%} of its rate"


class CheaperPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan that costs less and violates SLOs, the one with the least violation that was found."""

    change: str
    cost_per_hour: float
    violations: tuple[PredictedViolation, ...]

    def text(self) -> str:
        """Return the plan and its violations as a sentence."""
        return f"{self.change}, ${self.cost_per_hour:.2f} per hour: " + ", ".join(
            map(PredictedViolation.text, self.violations)
        )


class _Gpu(NamedTuple):
    """Shares of one GPU that exceed SLOs by `excess`: the worst ratio of a latency or a rate to its limit."""

    device: str
    tables: ShareTables
    rows: tuple[int, ...]
    units: Index
    excess: float


class Removal(NamedTuple):
    """A GPU less, or of a cheaper type. SLOs are kept if `excess` is at most 1."""

    excess: float
    saved: float
    """Dollars per hour."""
    change: str
    gpus: list[_Gpu]


def cheapest_removal(plan: SharedPlans, kinds: Sequence[GpuType], options: ProvisioningOptions) -> CheaperPlan | None:
    """Return the plan after `_least_violating`; None for a plan of one GPU of the cheapest type."""
    removal = _least_violating(plan, kinds, options)
    if removal is None:
        return None
    worst_first = sorted(removal.gpus, key=lambda gpu: -gpu.excess)
    violations = [violation for gpu in worst_first for violation in _violations(gpu, options.margin)]
    return CheaperPlan(removal.change, plan.report.cost_per_hour - removal.saved, tuple(violations))


def without_spare_gpus(plan: SharedPlans, kinds: Sequence[GpuType], options: ProvisioningOptions) -> SharedPlans:
    """Return the plan without the GPUs that `options.margin` does not need.

    A plan is exact for the parts that its workloads were split into. Other parts may fit on fewer GPUs: those that were
    made for a larger margin are smaller, for example.
    """
    while (removal := _least_violating(plan, kinds, options)) is not None and removal.excess <= 1 + TOLERANCE:
        placed, numbers = [], Counter[str]()
        for gpu in removal.gpus:
            fleet, name = Fleet(gpu.tables), gpu.tables.kind.gpu.name
            fleet.set_gpu(fleet.open_gpu(gpu.rows[0]), gpu.rows, gpu.units)
            numbers[name] += 1
            placed += fleet.placements([f"{name}-{numbers[name]}"])
        cost = plan.report.cost_per_hour - removal.saved
        report = SharingReport(cost, min(plan.report.cost_bound, cost), options.margin)
        plan = SharedPlans(plan_workloads(placed), report)
    return plan


def _least_violating(plan: SharedPlans, kinds: Sequence[GpuType], options: ProvisioningOptions) -> Removal | None:
    """Return the change that saves cost with the least violation: without one of the GPUs, or with a cheaper type.

    The workloads of a GPU that is removed go where each causes the least violation.
    """
    gpus, tables = _gpus_of(plan, kinds, options)
    by_share = sorted(range(len(gpus)), key=lambda place: float(gpus[place].units.sum()))[:TRIED_GPUS]
    best: Removal | None = None
    for place in by_share:
        price, device = gpus[place].tables.kind.gpu.price_per_hour, gpus[place].device
        trials = [(price, f"without {device}", moved)] if (moved := _without(gpus, place)) else []
        for other in tables:
            saved = price - other.kind.gpu.price_per_hour
            if saved > 0 and all(_has_model(other, row) for row in gpus[place].rows):
                changed = [*gpus[:place], _fill(device, other, gpus[place].rows), *gpus[place + 1 :]]
                trials.append((saved, f"{device} of type {other.kind.gpu.name}", changed))
        for saved, change, trial in trials:
            excess = max(gpu.excess for gpu in trial)
            if best is None or (excess, saved) < best[:2]:
                best = Removal(excess, saved, change, trial)
    return best


def _gpus_of(
    plan: SharedPlans, kinds: Sequence[GpuType], options: ProvisioningOptions
) -> tuple[list[_Gpu], list[ShareTables]]:
    """Return the GPUs of a plan over tables that have a row for each share, with its batch size."""
    model = INTERFERENCE_MODELS[options.model]
    tables = [ShareTables(kind, model, options.margin) for kind in kinds]
    devices = shares_by_device(plan.plans)
    for table in tables:
        table.append(placed_workloads(share for shares in devices.values() for share in shares))
    by_name = {table.kind.gpu.name: table for table in tables}
    gpus, row = [], 0
    for device, shares in devices.items():
        rows = tuple(range(row, row + len(shares)))
        row += len(rows)
        gpus.append(_fill(device, by_name[shares[0].placement.hardware], rows))
    return gpus, tables


def _without(gpus: Sequence[_Gpu], removed: int) -> list[_Gpu]:
    """Return the GPUs without one of them, whose workloads go where each causes the least violation.

    The list is empty if no other GPU is of a type that a workload has coefficients for.
    """
    left = [gpu for place, gpu in enumerate(gpus) if place != removed]
    for row in sorted(gpus[removed].rows, key=lambda row: -int(gpus[removed].tables.least[row])):
        trials = [
            (place, _fill(gpu.device, gpu.tables, (*gpu.rows, row)))
            for place, gpu in enumerate(left)
            if _has_model(gpu.tables, row)
        ]
        if not trials:
            return []
        place, filled = min(trials, key=lambda trial: trial[1].excess)
        left[place] = filled
    return left


def _has_model(tables: ShareTables, row: int) -> bool:
    return tables.workloads[row].model in tables.kind.models


def _fill(device: str, tables: ShareTables, rows: tuple[int, ...]) -> _Gpu:
    """Return a GPU with these workloads. Where Algorithm 2 finds no shares, the whole GPU is divided among them.

    The division is in proportion to the shares at which Algorithm 2 exceeded 100%.
    """
    members, whole = np.array([rows], np.intp), tables.kind.whole
    least = np.minimum(tables.least[members], whole)
    allocation = tables.allocate(members, least)
    units = allocation.units[0]
    if units.sum() > whole:
        units = np.maximum(units * whole // units.sum(), 1)
    return _Gpu(device, tables, rows, units, float(_ratios(tables, members, units[None]).max()))


def _ratios(tables: ShareTables, members: Index, units: Index) -> Index:
    """Return for each workload the greater ratio of its latency and its cycle time to their limits."""
    predicted = tables.predict(members, units)
    latency_limit, cycle_limit = tables.limits(members)
    cycle = predicted.gpu_ms + predicted.feedback_ms
    return np.asarray(np.maximum(predicted.latency_ms / latency_limit, cycle / cycle_limit) * (members != NO_WORKLOAD))


def _violations(gpu: _Gpu, margin: float) -> list[PredictedViolation]:
    members = np.array([gpu.rows], np.intp)
    predicted = gpu.tables.predict(members, gpu.units[None])
    found = []
    for slot in np.flatnonzero(_ratios(gpu.tables, members, gpu.units[None])[0] > 1 + TOLERANCE):
        workload = gpu.tables.workloads[gpu.rows[slot]]
        factor = 1 + margin * gpu.tables.kind.models[workload.model].relative_error
        cycle = float(predicted.gpu_ms[0, slot] + predicted.feedback_ms[0, slot])
        throughput = MS_PER_S * float(gpu.tables.batch[gpu.rows[slot]]) / cycle / factor
        latency, limit = float(predicted.latency_ms[0, slot]), workload.slo_ms / 2 / factor
        found.append(PredictedViolation(workload.name, latency, limit, throughput, workload.rate))
    return found
