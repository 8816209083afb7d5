"""Plans of a file of workloads on shares of devices: tables, reasons and figure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_cli.planning.figures import draw_shares
from horologe_cli.planning.planning_problem import read_plans
from horologe_cli.planning.workload_file import read_problem_file
from horologe_planning.provisioning.device_shares import device_counts, shares_by_device, with_batch_times
from horologe_planning.provisioning.explanation import PlanExplanation, explain_plan
from horologe_planning.provisioning.incremental import update_plan
from horologe_planning.provisioning.provisioner import provision, with_report
from horologe_planning.report import SharedPlans, SharingReport
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from pathlib import Path

    from horologe_cli.commands.planning.planning_options import PlanOptions
    from horologe_planning.plan import Plan

COLUMNS = ("device", "workload", "model", "share", "batch", "ms", "+-", "limit", "headroom", "requests/s", "wanted")
LIMIT_HELP = "limit: half of the SLO, the time of a batch; the rest is for batching and queueing (iGniter Eq. 14)"


class WorkloadsReport(msgspec.Struct, frozen=True):
    """Report of workloads in the document of `horologe plan make --json`."""

    sharing: SharingReport
    explanation: PlanExplanation
    moved: tuple[str, ...] | None = None
    """With `--from`: workloads on another device than in those plans."""
    new_plan_cost: float | None = None
    """With `--from`: dollars per hour of new plans, which may move every workload."""


def plan_workload_file(path: Path, options: PlanOptions) -> tuple[tuple[Plan, ...], WorkloadsReport, str]:
    """Return the plans of a file, as changes of earlier ones if wanted, with report and text. Draw them if wanted.

    Raises SettingsError, ProvisioningError and UnattainableSlo.
    """
    workloads, kinds, provisioning = read_problem_file(path, options.margin)
    found = provision(workloads, kinds, provisioning)
    moved = new_cost = None
    if options.previous is not None:
        earlier, (new_cost, bound) = read_plans(options.previous), (found.report.cost_per_hour, found.report.cost_bound)
        margin = _margin_of(earlier.report)
        found, moved = update_plan(earlier.plans, workloads, kinds, provisioning, margin)
        found = with_report(found, cost_bound=bound)
    report = WorkloadsReport(found.report, explain_plan(found, workloads, kinds, provisioning), moved, new_cost)
    if options.plot:
        draw_shares(options.plot, found.plans)
    plans = with_batch_times(found.plans, kinds, provisioning.model)
    return plans, report, workloads_text(found, report)


def _margin_of(report: dict[str, Any]) -> float:
    """Return the margin of earlier plans, 0 if their report does not say it."""
    sharing = report.get("workloads", {}).get("sharing", {})
    margin = sharing.get("margin", 0.0) if isinstance(sharing, dict) else 0.0
    return float(margin) if isinstance(margin, int | float) and 0 <= margin <= 10 else 0.0


def workloads_text(found: SharedPlans, report: WorkloadsReport) -> str:
    """Return the text of the plans and the reasons for their shares."""
    explanation, cost = report.explanation, found.report.cost_per_hour
    table, shares = Table(COLUMNS, left=3), []
    for device, present in shares_by_device(found.plans).items():
        for share in present:
            placed = share.placement
            table.add_row(
                "" if share is not present[0] else device,
                share.workload,
                placed.coefficients,
                f"{placed.percent:g}%",
                placed.max_batch,
                f"{share.latency_ms:.2f}",
                f"{placed.deviation_ns / 1e6:.2f}",
                f"{share.limit_ms:.2f}",
                f"{share.headroom:.0%}",
                f"{placed.throughput:.0f}",
                f"{share.rate:g}",
            )
        shares += present
    counts = ", ".join(f"{count} x {name}" for name, count in device_counts(found.plans).items()) or "no device"
    lines = [table.text(), LIMIT_HELP, "", f"cost: {counts}, ${cost:.2f} per hour"]
    if bound := found.report.cost_bound:
        above = cost / bound - 1
        distance = f"the plan is at most {above:.1%} above the cheapest" if above > 1e-6 else "no plan is cheaper"
        lines.append(f"lower bound of the cost: ${bound:.2f}; {distance}")
    margin = found.report.margin
    lines.append(f"safety margin: {margin:.2g} standard deviations of the prediction error, the +- of the table")
    if explanation.cost_without_margin < cost - 1e-9:
        lines.append(f"without the safety margin: ${explanation.cost_without_margin:.2f} per hour")
    if explanation.cheaper is not None:
        lines.append(f"next cheaper plan, {explanation.cheaper.text()}")
    if report.moved is not None:
        lines.append(f"moved to another device: {', '.join(report.moved) or 'none'}")
        lines.append(f"a new plan would cost ${report.new_plan_cost:.2f} per hour")
    lines += ["", "reasons for the shares:"]
    for share, reason in zip(shares, explanation.shares, strict=True):
        lines.append(f"  {share.workload} {share.placement.percent:g}%: {reason.text()}")
    return "\n".join(lines)
