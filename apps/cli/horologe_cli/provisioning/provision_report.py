"""Tables and figure of a sharing plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.service.settings import SettingsError
from horologe_planning.provisioning.explanation import PlanExplanation
from horologe_planning.provisioning.workloads import SharingPlan
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = ("GPU", "workload", "model", "share", "batch", "ms", "+-", "limit", "headroom", "requests/s", "wanted")
LIMIT_HELP = "limit: half of the SLO, the time of a batch; the rest is for batching and queueing (iGniter Eq. 14)"


class ProvisionDocument(msgspec.Struct, frozen=True):
    """Output of `horologe provision --json`."""

    sharing_plan: SharingPlan
    explanation: PlanExplanation
    moved: tuple[str, ...] | None = None
    """With `--from`: workloads on another GPU than in that plan."""
    new_plan_cost: float | None = None
    """With `--from`: dollars per hour of a new plan, which may move every workload."""


def provision_text(document: ProvisionDocument) -> str:
    """Return the text of `horologe provision`."""
    plan, explanation = document.sharing_plan, document.explanation
    table = Table(COLUMNS, left=3)
    for device, gpu in zip(plan.devices(), plan.gpus, strict=True):
        for share in gpu.placements:
            table.add_row(
                device, share.workload, share.model, f"{share.share_percent:g}%", share.batch,
                f"{share.latency_ms:.2f}", f"{share.deviation_ms:.2f}", f"{share.slo_ms / 2:.2f}",
                f"{share.headroom:.0%}", f"{share.throughput:.0f}", f"{share.rate:g}",
            )  # fmt: skip
            device = ""
    counts = ", ".join(f"{count} x {name}" for name, count in plan.gpu_counts().items()) or "no GPU"
    lines = [table.text(), LIMIT_HELP, "", f"cost: {counts}, ${plan.cost_per_hour:.2f} per hour"]
    if plan.cost_bound:
        above = plan.cost_per_hour / plan.cost_bound - 1
        distance = f"the plan is at most {above:.1%} above the cheapest" if above > 1e-6 else "no plan is cheaper"
        lines.append(f"lower bound of the cost: ${plan.cost_bound:.2f}; {distance}")
    lines.append(f"safety margin: {plan.margin:.2g} standard deviations of the prediction error, the +- of the table")
    if explanation.cost_without_margin < plan.cost_per_hour - 1e-9:
        lines.append(f"without the safety margin: ${explanation.cost_without_margin:.2f} per hour")
    if explanation.cheaper is not None:
        lines.append(f"next cheaper plan, {explanation.cheaper.text()}")
    if document.moved is not None:
        lines.append(f"moved to another GPU: {', '.join(document.moved) or 'none'}")
        lines.append(f"a new plan would cost ${document.new_plan_cost:.2f} per hour")
    lines += ["", "reasons for the shares:"]
    shares = [share for gpu in plan.gpus for share in gpu.placements]
    for share, reason in zip(shares, explanation.shares, strict=True):
        lines.append(f"  {share.workload} {share.share_percent:g}%: {reason.text()}")
    return "\n".join(lines)


def draw_shares(path: Path, plan: SharingPlan) -> None:
    """Write a figure: the shares of each GPU, and each workload's predicted latency beside its limit.

    Raises SettingsError without matplotlib and for a file name without a known format.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise SettingsError("matplotlib: not installed: pip install 'horologe[planner]'") from error
    shares = [share for gpu in plan.gpus for share in gpu.placements]
    figure = Figure(figsize=(9.2, max(3.2, 0.25 * len(shares))), layout="constrained")
    left, right = figure.subplots(1, 2)
    for device, gpu in zip(plan.devices(), plan.gpus, strict=True):
        used = 0.0
        for place, share in enumerate(gpu.placements):
            left.barh(device, share.share_percent, left=used, color=f"C{place % 10}", edgecolor="white")
            left.text(used + 1, device, share.workload, va="center", fontsize=7)
            used += share.share_percent
        left.barh(device, 100 - used, left=used, color="0.92")
    left.set(xlabel="share of the GPU (%)", xlim=(0, 100))
    names = [f"{number} {share.workload}" for number, share in enumerate(shares, start=1)]
    errors = [share.deviation_ms for share in shares]
    right.barh(names, [share.latency_ms for share in shares], xerr=errors, height=0.6, label="predicted")
    limits = [share.slo_ms / 2 for share in shares]
    right.plot(limits, names, "|", color="tab:red", markersize=10, markeredgewidth=2, label="half of the SLO")
    right.plot([share.slo_ms for share in shares], names, "|", color="0.4", markersize=10, label="SLO")
    right.set(xlabel="ms", xlim=(0, None))
    right.legend(fontsize=7)
    for axes in (left, right):
        axes.invert_yaxis()
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:
        raise SettingsError(f"--plot: {error}") from error
