"""Tables and figures of configurations, estimates and plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_planning.hardware import price_of
from horologe_planning.plan import WHOLE_PERCENT
from horologe_planning.provisioning.device_shares import shares_by_device
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_cli.planning.pipeline_plan import PipelineReport
    from horologe_planning.hardware import HardwareType
    from horologe_planning.plan import Placement, Plan
    from horologe_planning.report import Alternative, PlanReport, ReportedPlan
    from horologe_planning.search.evaluation import Evaluator, Forecast

PARTS = (0.5, 0.9, 0.99, 0.999)


def estimate_document(evaluator: Evaluator, stages: Sequence[Placement], forecast: Forecast) -> dict[str, Any]:
    """Return the document of `horologe plan estimate --json`. Latencies are in milliseconds."""
    rows = []
    for stage, load in zip(stages, forecast.loads, strict=True):
        names = {"stage": stage.stage, "model": stage.model, "hardware": stage.hardware}
        chosen = {"batch": stage.max_batch, "replicas": stage.replicas}
        used = {"calls": load.calls, "mean_batch": load.mean_batch, "utilisation": load.utilisation}
        rows.append({**names, **chosen, **used, "longest_queue": load.longest_queue})
    latency_ms = {f"p{part * 100:g}": float(np.quantile(forecast.latencies_ns, part)) / 1e6 for part in PARTS}
    return {
        "pipeline": evaluator.structure.name,
        "slo_ms": evaluator.objective.slo_ns / 1e6,
        "rate": evaluator.workload.rate,
        "queries": int(forecast.latencies_ns.size),
        "stages": rows,
        "cost_per_hour": evaluator.price(stages),
        "latency_ms": latency_ms,
        "attainment": forecast.attainment,
        "attainment_bound": 1 - forecast.missed_bound,
    }


def estimate_text(document: dict[str, Any]) -> str:
    """Return the text of `horologe plan estimate`."""
    columns = ("stage", "model", "hardware", "batch", "replicas", "mean batch", "used", "longest queue")
    table = Table(columns, left=3)
    for row in document["stages"]:
        cells = [row[name] for name in ("stage", "model", "hardware", "batch", "replicas")]
        table.add_row(*cells, f"{row['mean_batch']:.2f}", f"{row['utilisation']:.1%}", row["longest_queue"])
    latency = ", ".join(f"{name} {value:.1f}" for name, value in document["latency_ms"].items())
    return "\n".join(
        (
            f"{document['pipeline']}: {document['queries']:,} queries, {document['rate']:.1f} per second",
            table.text(),
            f"cost: {document['cost_per_hour']:.3f} dollars per hour",
            f"latency, ms: {latency}",
            f"within {document['slo_ms']:g} ms: {_attainments(document['attainment'], document['attainment_bound'])}",
        )
    )


def _attainments(sample: float, bound: float) -> str:
    return f"{sample:.3%} of this traffic, at least {max(0.0, bound):.3%} of unseen traffic"


def plan_text(plan: Plan, whole: ReportedPlan, made: PipelineReport, hardware: Mapping[str, HardwareType]) -> str:
    """Return the text of a pipeline in `horologe plan make`. `whole`: the plan on whole devices."""
    report = whole.report
    table = Table(("stage", "model", "hardware", "batch", "replicas", "calls/query", "used", "$/hour"), left=3)
    for stage in whole.plan.placements:
        cells = (stage.stage, stage.model, stage.hardware, stage.max_batch, stage.replicas)
        cost = price_of((stage,), hardware)
        table.add_row(*cells, f"{stage.scale_factor:.2f}", f"{report.utilisation[stage.stage]:.1%}", f"{cost:.3f}")
    lines = [
        f"{plan.name}: SLO {plan.slo_ns / 1e6:g} ms, {plan.rate:.1f} queries per second",
        "on whole devices:",
        table.text(),
        *_forecast_lines(report),
    ]
    if made.accuracy is not None:
        lines.append(f"accuracy: {made.accuracy:.3f}")
    if report.cost_bound:
        above = report.cost_per_hour / report.cost_bound - 1
        lines.append(f"lower bound of the cost: {report.cost_bound:.3f}; the plan is at most {above:.1%} above it")
    lines += _alternative("runner-up", report.runner_up)
    lines += _alternative("cheaper, but not feasible", report.rejected)
    if made.pooled_devices is None:
        lines.append("on pooled devices: those above do not suffice for all stages together")
    else:
        devices = ", ".join(f"{count} x {name}" for name, count in made.pooled_devices.devices.items())
        cost = made.pooled_devices.cost_per_hour
        less = f"{1 - cost / report.cost_per_hour:.1%} less"
        lines.append(f"on pooled devices, each serves all stages: {devices}, {cost:.3f} dollars per hour ({less})")
    if made.shares is not None:
        less = f"{1 - made.shares.cost_per_hour / report.cost_per_hour:.1%} less"
        lines.append(f"on shares of devices: {made.shares.cost_per_hour:.3f} dollars per hour ({less})")
    lines.append(f"the plan is that on {made.made}")
    if made.shares is not None and plan.shares:
        lines += [_share_table(plan), *_forecast_lines(made.shares)]
    return "\n".join(lines)


def _forecast_lines(report: PlanReport) -> list[str]:
    return [
        f"cost: {report.cost_per_hour:.3f} dollars per hour",
        f"predicted P99: {report.p99_ns / 1e6:.1f} ms",
        f"within the SLO: {_attainments(report.attainment, report.attainment_bound)}",
    ]


def _share_table(plan: Plan) -> str:
    table = Table(("device", "stage", "share", "batch", "batch time", "calls/s"), left=2)
    for device, shares in shares_by_device([plan]).items():
        shown = device
        for placed in (share.placement for share in shares):
            percent = "whole" if placed.percent == WHOLE_PERCENT else f"{placed.percent:g}%"
            time, calls = f"{placed.latency_ns / 1e6:.1f} ms", f"{placed.throughput:.0f}"
            table.add_row(shown, placed.stage, percent, placed.max_batch, time, calls)
            shown = ""
    return table.text()


def _alternative(title: str, alternative: Alternative | None) -> list[str]:
    if alternative is None:
        return []
    stages = "; ".join(f"{stage.stage}: {stage.describe()}" for stage in alternative.placements)
    return [f"{title}: {stages}", f"  {alternative.reason}"]
