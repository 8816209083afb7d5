"""Plans of stages on shares of GPUs, for `horologe plan --shares`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_cli.output import stderr_console
from horologe_common.interference.coefficients_file import CoefficientsError, read_coefficients
from horologe_common.interference.prediction import DEFAULT_INTERFERENCE_MODEL
from horologe_common.service.settings import SettingsError
from horologe_planning.joint_planning.derived_coefficients import catalogue_coefficients
from horologe_planning.joint_planning.joint_plan import joint_plan, sharing_plan
from horologe_planning.joint_planning.joint_planner import plan_layout
from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator
from horologe_planning.joint_planning.layouts import WHOLE, dedicated_layout
from horologe_planning.joint_planning.share_times import ShareTimes
from horologe_planning.search.minimization import CENT
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from horologe_cli.commands.planning.planning_options import PlanOptions
    from horologe_cli.planning.planning_inputs import PlanDocument
    from horologe_planning.profiles import Profiles
    from horologe_planning.provisioning.workloads import PlannedGpu
    from horologe_planning.search.evaluation import Evaluator


def find_shares(document: PlanDocument, evaluator: Evaluator, options: PlanOptions, silent: bool) -> PlanDocument:
    """Return the document with the joint plan. It has a sharing plan if that costs less than whole devices.

    Raises SettingsError for a coefficients file that cannot be read.
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    times = read_share_times(options, evaluator.profiles)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=stderr_console(), transient=True, disable=silent) as progress:
        task = progress.add_task("shares", total=None)
        layouts = LayoutEvaluator(
            evaluator, times, lambda runs: progress.update(task, description=f"shares: {runs} layouts")
        )
        layout = plan_layout(layouts, dedicated_layout(document.plan.placements))
        joint = joint_plan(layouts, layout, document.report.cost_per_hour)
    is_cheaper = joint.cost_per_hour < joint.dedicated_cost - CENT
    shared = sharing_plan(layouts, layout) if is_cheaper else None
    return msgspec.structs.replace(document, joint=joint, sharing_plan=shared)


def read_share_times(options: PlanOptions, profiles: Profiles) -> ShareTimes:
    """Return the times on shares by the coefficients files, without files by the derived coefficients of a V100."""
    if not options.coefficients:
        return ShareTimes(
            {"v100": catalogue_coefficients(profiles, DEFAULT_INTERFERENCE_MODEL)}, profiles, options.margin
        )
    try:
        files = [read_coefficients(path) for path in options.coefficients]
    except CoefficientsError as error:
        raise SettingsError(f"--coefficients: {error}") from error
    models = {file.interference_model for file in files}
    if len(models) > 1:
        raise SettingsError(f"--coefficients: got interference models {', '.join(sorted(models))}, wanted one for all")
    return ShareTimes({file.gpu.name: file.catalogue for file in files}, profiles, options.margin, models.pop())


def shares_text(document: PlanDocument) -> str:
    """Return the text of the joint plan."""
    joint, plan = document.joint, document.sharing_plan
    if joint is None or plan is None:
        return "on shares of GPUs: no plan was found that costs less"
    saved = 1 - joint.cost_per_hour / joint.dedicated_cost
    table = Table(("device", "stage", "share", "batch", "batch time", "calls/s"), left=2)
    for device, gpu in zip(plan.devices(), plan.gpus, strict=True):
        _add_device(table, device, gpu)
    attained = f"at least {max(0.0, joint.attainment_bound):.3%} of unseen traffic"
    return (
        f"on shares of GPUs: {joint.cost_per_hour:.3f} dollars per hour ({saved:.1%} less), "
        f"predicted P99 {joint.p99_ns / 1e6:.1f} ms, within the SLO: {attained}\n{table.text()}"
    )


def _add_device(table: Table, device: str, gpu: PlannedGpu) -> None:
    for placed in gpu.placements:
        share = "whole" if placed.share_percent == WHOLE else f"{placed.share_percent:g}%"
        time, calls = f"{placed.latency_ms:.1f} ms", f"{placed.throughput:.0f}"
        table.add_row(device, placed.workload, share, placed.batch, time, calls)
        device = ""
