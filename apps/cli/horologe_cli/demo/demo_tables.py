"""Prints the result of the demo as tables."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_cli.demo.digits import NOVICE
from horologe_cli.demo.next_steps import PAGES, Surroundings, next_steps
from horologe_cli.local.machine import container_engine
from horologe_cli.local.topology import default_repository
from horologe_sim.report.tables import Cell, Table

if TYPE_CHECKING:
    from rich.console import Console

    from horologe_cli.demo.demo_options import RunningSystem
    from horologe_cli.demo.demo_run import DemoResult
    from horologe_load.samples import LoadSummary

SHOWN_REASONS = 3


def print_result(out: Console, result: DemoResult, slo_ms: float, running: RunningSystem) -> None:
    """Print the result. `running`: the measured system, if the demo has not started it."""
    tables = [_accuracy_table(result)]
    if result.feedback_effects:
        tables.append(_feedback_table(result))
    tables.append(_load_table(result, slo_ms))
    if result.profiler_costs:
        tables.append(_profiler_table(result))
    for table in tables:
        table.print(out)
        out.print()
    if result.overload:
        _print_reasons(out, result.overload)
    _criteria_table(result).print(out)
    out.print()
    _next_steps_table(result.model, running).print(out)
    out.print()


def _accuracy_table(result: DemoResult) -> Table:
    columns = ("model", "via", "images", "accuracy", "images/s", "exec/image")
    table = Table(columns, "(a) Held-out handwritten digits", left=2, grid=True)
    for accuracy in result.accuracies:
        exec_time = f"{accuracy.exec_ms:.3f} ms" if accuracy.exec_ms else ""
        rate = f"{accuracy.images / accuracy.seconds:,.0f}"
        table.add_row(accuracy.model, accuracy.via, accuracy.images, f"{accuracy.share:.1%}", rate, exec_time)
    return table


def _feedback_table(result: DemoResult) -> Table:
    """Return the accuracy before and after feedback, and how the weight of the novice fell from 1 / models."""
    title = "(b) An application over these models and a novice, before and after feedback"
    columns = ("policy", "accuracy before", "feedback", "accuracy after", "weight of the novice")
    table = Table(columns, title, grid=True)
    for effect in result.feedback_effects:
        weight = f"{1 / len(effect.weights):.0%} -> {effect.weights[NOVICE]:.1%}"
        table.add_row(effect.policy, f"{effect.before:.1%}", effect.observations, f"{effect.after:.1%}", weight)
    return table


def _load_table(result: DemoResult, slo_ms: float) -> Table:
    title = f"(c, d) {result.model}: Poisson arrivals per second, SLO {slo_ms:g} ms; times in ms"
    hits = sum(step.cached for step in (*result.ramp, result.peak, result.overload) if step)
    caption = f"all inputs are different; prediction cache hits: {hits}"
    columns = ("", "offered", "sent", "in time", "", "refused", "late", "p50", "p99")
    table = Table(columns, title, caption, grid=True)
    for step in result.ramp:
        _add_step(table, "ramp", step)
    if result.peak:
        table.add_section()
        _add_step(table, "capacity", result.peak, "bold green")
    if result.overload and result.peak:
        _add_step(table, f"{result.overload.rate / result.peak.rate:.0f}x", result.overload, "bold")
    return table


def _profiler_table(result: DemoResult) -> Table:
    title = f"(e) After {result.learn_s:g} s of mixed traffic and the measurements: 64 requests in flight"
    caption = f"dynamic models: {', '.join(result.dynamic) or 'none'}"
    table = Table(("model", "requests/s", "without a profiler", "of that"), title, caption, grid=True)
    for cost in result.profiler_costs:
        table.add_row(cost.model, f"{cost.rate:,.0f}", f"{cost.rate_without:,.0f}", f"{cost.share:.2f}")
    return table


def _add_step(table: Table, name: str, step: LoadSummary, style: str = "") -> None:
    late = step.late + step.failed + step.unanswered + step.unsent
    rate, attained = f"{step.rate:,.0f}", f"{step.attained:.1%}"
    times = (f"{step.p50_ms:.1f}", f"{step.p99_ms:.1f}")
    table.add_row(name, rate, step.sent, step.in_time, attained, step.refused, late, *times, style=style)


def _print_reasons(out: Console, step: LoadSummary) -> None:
    for reason, count in sorted(step.reasons.items(), key=lambda pair: -pair[1])[:SHOWN_REASONS]:
        out.print(f"  {count:,} refused: {reason}", style="dim", markup=False, soft_wrap=True)
    out.print()


def _criteria_table(result: DemoResult) -> Table:
    table = Table(("", "wanted", "got", ""), "Criteria", grid=True)
    for criterion in result.criteria:
        verdict = Cell("met", "green") if criterion.met else Cell("not met", "red")
        table.add_row(criterion.name, criterion.wanted, criterion.got, verdict)
    return table


def _next_steps_table(model: str, running: RunningSystem) -> Table:
    command = "horologe" if shutil.which("horologe") else sys.argv[0]
    has_pages = Path(default_repository()).parent.joinpath(PAGES[0][0]).is_file()
    table = Table(("", ""), "Next steps", left=2)
    for step in next_steps(model, Surroundings(command, bool(container_engine()), has_pages), running):
        table.add_row(*step)
    return table
