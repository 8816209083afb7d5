"""Explain a plan: the reason for the share of each workload, and the violations of the next cheaper plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.interference.prediction import INTERFERENCE_MODELS, MS_PER_S, predict_shares, stack_coefficients
from horologe_planning.provisioning.cheaper_plan import CheaperPlan, cheapest_removal
from horologe_planning.provisioning.latency_parts import LatencyParts, latency_parts
from horologe_planning.provisioning.provisioner import DEFAULT_OPTIONS, ProvisioningOptions, provision
from horologe_planning.provisioning.share_tables import ShareTables
from horologe_planning.provisioning.workloads import placed_workloads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.interference.prediction import InterferenceModel
    from horologe_planning.provisioning.share_tables import GpuType
    from horologe_planning.provisioning.workloads import Placement, PlannedGpu, SharingPlan, Workload


class ShareReason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reason for the share of a workload on one GPU."""

    gpu: int
    """Number of the GPU in the plan, from 1."""
    workload: str
    parts_ms: LatencyParts
    limit_ms: float
    """Most that `parts_ms` may add up to: half of the SLO, less the margin."""
    alone_percent: float
    """Share that the workload needs without neighbours."""
    smaller: str
    """Effect of one step less, as a phrase."""

    def text(self) -> str:
        """Return the reason as two sentences."""
        wanted = f"wanted at most {self.limit_ms:.2f}; alone {self.alone_percent:g}% suffice"
        return f"{self.smaller}, {wanted}. {self.parts_ms.total:.2f} ms = {self.parts_ms.text()}"


class PlanExplanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reasons for the shares of a plan and for its cost."""

    shares: tuple[ShareReason, ...]
    cheaper: CheaperPlan | None
    """None: every GPU less costs nothing less, or the plan is too large for the search."""
    cost_without_margin: float
    """Dollars per hour with the margin 0. The difference is the price of the prediction's uncertainty."""


def explain_plan(
    plan: SharingPlan,
    workloads: Sequence[Workload],
    kinds: Sequence[GpuType],
    options: ProvisioningOptions = DEFAULT_OPTIONS,
) -> PlanExplanation:
    """Return the explanation of the plan for these workloads, GPU types and options.

    Shares are explained with the margin of the plan, and cheaper plans with the margin that is wanted.
    """
    model, by_name = INTERFERENCE_MODELS[options.model], {kind.gpu.name: kind for kind in kinds}
    planned = msgspec.structs.replace(options, margin=max(options.margin, plan.margin))
    shares = [
        reason
        for number, gpu in enumerate(plan.gpus, start=1)
        for reason in _reasons(number, gpu, by_name[gpu.gpu_type], model, planned)
    ]
    without_margin = plan.cost_per_hour
    if options.margin and plan.gpus:
        relaxed = msgspec.structs.replace(options, margin=0.0, free_margin=0.0)
        without_margin = min(without_margin, provision(workloads, kinds, relaxed).cost_per_hour)
    return PlanExplanation(tuple(shares), cheapest_removal(plan, kinds, options), without_margin)


def _reasons(
    number: int, gpu: PlannedGpu, kind: GpuType, model: InterferenceModel, options: ProvisioningOptions
) -> list[ShareReason]:
    """Return the reasons for the shares of one GPU."""
    placements = gpu.placements
    models = [kind.models[placement.model] for placement in placements]
    batch = np.array([float(placement.batch) for placement in placements])
    share = np.array([placement.share_percent for placement in placements])
    parts = latency_parts(model, kind.gpu, models, batch, share)
    unit = kind.gpu.share_unit_percent
    step = np.maximum(share[None, :] - unit * np.eye(len(placements)), unit)
    less = predict_shares(model, kind.gpu, stack_coefficients(models)[:, None, :], batch[None, :], step)
    alone = ShareTables(kind, model, options.margin, options.paper_batches)
    alone.append(placed_workloads(placements))
    reasons = []
    for slot, placement in enumerate(placements):
        factor = 1 + options.margin * models[slot].relative_error
        limit = placement.slo_ms / 2 / factor
        latency, cycle = less.latency_ms[slot, slot], less.gpu_ms[slot, slot] + less.feedback_ms[slot, slot]
        smaller = _smaller(placement, unit, float(latency), limit, MS_PER_S * placement.batch / cycle / factor)
        least = float(alone.least[slot] * unit)
        reasons.append(ShareReason(number, placement.workload, parts[slot], limit, least, smaller))
    return reasons


def _smaller(placement: Placement, unit: float, latency_ms: float, limit_ms: float, throughput: float) -> str:
    """Return what one step less would violate. `throughput`: requests per second then, less the margin."""
    if placement.share_percent <= unit * (1 + 1e-9):
        return f"{unit:g}% is the smallest share"
    less = f"{placement.share_percent - unit:g}%"
    if latency_ms <= limit_ms and throughput < placement.rate:
        return f"{less} would serve {throughput / placement.rate:.1%} of the rate"
    return f"{less} would take {latency_ms:.2f} ms"
