"""Explain a plan: the reason for the share of each workload, and the violations of the next cheaper plan.

The reason for 37.5% of `vgg19`, beside `resnet50` and `alexnet`:

    35% would take 30.41 of 29.19 ms; alone 35% suffice. 28.70 ms = load 0.36, scheduling 0.04, active 26.56,
    feedback 0.00, neighbour scheduling 0.26, neighbour cache 1.07, neighbour transfer 0.03, clock 0.39
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.interference.prediction import INTERFERENCE_MODELS, MS_PER_S, predict_shares, stack_coefficients
from horologe_planning.provisioning.cheaper_plan import CheaperPlan, cheapest_removal
from horologe_planning.provisioning.device_shares import placed_workloads, shares_by_device
from horologe_planning.provisioning.latency_parts import LatencyParts, latency_parts
from horologe_planning.provisioning.provisioner import provision
from horologe_planning.provisioning.share_tables import ShareTables
from horologe_planning.provisioning.workloads import DEFAULT_OPTIONS, ProvisioningOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.interference.prediction import InterferenceModel
    from horologe_planning.provisioning.device_shares import PlacedShare
    from horologe_planning.provisioning.workloads import GpuType, Workload
    from horologe_planning.report import SharedPlans


class ShareReason(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The reason for the share of a workload on one GPU."""

    device: str
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
        parts = f"{self.parts_ms.total:.2f} ms = {self.parts_ms.text()}"
        return f"{self.smaller}; alone {self.alone_percent:g}% suffice. {parts}"


class PlanExplanation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Reasons for the shares of a plan and for its cost."""

    shares: tuple[ShareReason, ...]
    cheaper: CheaperPlan | None
    """None: every GPU less costs nothing less, or the plan is too large for the search."""
    cost_without_margin: float
    """Dollars per hour with the margin 0. The difference is the price of the prediction's uncertainty."""


def explain_plan(
    plan: SharedPlans,
    workloads: Sequence[Workload],
    kinds: Sequence[GpuType],
    options: ProvisioningOptions = DEFAULT_OPTIONS,
) -> PlanExplanation:
    """Return the explanation of the plan for these workloads, GPU types and options.

    Shares are explained with the margin of the plan, and cheaper plans with the margin that is wanted.
    """
    model, by_name = INTERFERENCE_MODELS[options.model], {kind.gpu.name: kind for kind in kinds}
    planned = msgspec.structs.replace(options, margin=max(options.margin, plan.report.margin))
    shares = [
        reason
        for placed in shares_by_device(plan.plans).values()
        for reason in _reasons(placed, by_name[placed[0].placement.hardware], model, planned)
    ]
    without_margin = plan.report.cost_per_hour
    if options.margin and plan.plans:
        relaxed = msgspec.structs.replace(options, margin=0.0, free_margin=0.0)
        without_margin = min(without_margin, provision(workloads, kinds, relaxed).report.cost_per_hour)
    return PlanExplanation(tuple(shares), cheapest_removal(plan, kinds, options), without_margin)


def _reasons(
    shares: Sequence[PlacedShare], kind: GpuType, model: InterferenceModel, options: ProvisioningOptions
) -> list[ShareReason]:
    placements = [share.placement for share in shares]
    models = [kind.models[placement.coefficients] for placement in placements]
    batch = np.array([float(placement.max_batch) for placement in placements])
    share = np.array([placement.percent for placement in placements])
    parts = latency_parts(model, kind.gpu, models, batch, share)
    unit = kind.gpu.share_unit_percent
    step = np.maximum(share[None, :] - unit * np.eye(len(placements)), unit)
    less = predict_shares(model, kind.gpu, stack_coefficients(models)[:, None, :], batch[None, :], step)
    alone = ShareTables(kind, model, options.margin)
    alone.append(placed_workloads(shares))
    reasons = []
    for slot, placed in enumerate(shares):
        factor = 1 + options.margin * models[slot].relative_error
        limit = placed.limit_ms / factor
        latency, cycle = less.latency_ms[slot, slot], less.gpu_ms[slot, slot] + less.feedback_ms[slot, slot]
        smaller = _smaller(placed, unit, float(latency), limit, MS_PER_S * placed.placement.max_batch / cycle / factor)
        least = float(alone.least[slot] * unit)
        reasons.append(ShareReason(placed.placement.device, placed.workload, parts[slot], limit, least, smaller))
    return reasons


def _smaller(share: PlacedShare, unit: float, latency_ms: float, limit_ms: float, throughput: float) -> str:
    """Return what one step less would violate. `throughput`: requests per second then, less the margin."""
    if share.placement.percent <= unit * (1 + 1e-9):
        return f"{unit:g}% is the smallest share"
    less = f"{share.placement.percent - unit:g}%"
    if latency_ms <= limit_ms and throughput < share.rate:
        return f"{less} would serve {throughput / share.rate:.1%} of the rate"
    return f"{less} would take {latency_ms:.2f} of {limit_ms:.2f} ms"
