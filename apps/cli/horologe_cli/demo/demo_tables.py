"""The demo's findings as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from horologe_cli.demo.feedback_demo import NOVICE

if TYPE_CHECKING:
    from rich.console import Console

    from horologe_cli.demo.demo_run import DemoResult
    from horologe_load.samples import LoadSummary

NEXT = (
    ("make up", "the same system, until ^C; then, beside it:"),
    (".venv/bin/horologe models", "what is served"),
    (".venv/bin/horologe status", "devices, memory, pending work"),
    (".venv/bin/horologe doctor", "what keeps this machine from being predictable"),
    ("http://127.0.0.1:8000/v2/models/{model}", "Open Inference Protocol"),
    ("http://127.0.0.1:8002/metrics", "Prometheus"),
    ("README.md", "a model of your own in ten lines"),
    ("docs/applications.md", "an application of your own, and feedback"),
    ("docs/request-path.md", "the journey of one request"),
)
REASONS_SHOWN = 3


def show(out: Console, found: DemoResult, slo_ms: float) -> None:
    out.print(_accuracies(found))
    if found.feedback_effects:
        out.print(_learnings(found))
    out.print(_steps(found, slo_ms))
    if found.overload:
        _reasons(out, found.overload)
    out.print(_promises(found))
    out.print(_next(found.model))


def _accuracies(found: DemoResult) -> Table:
    table = _table("(a) Held-out handwritten digits", "model", "via", "images", "accuracy", "images/s", "exec/image")
    for one in found.accuracies:
        cost = f"{one.exec_ms:.3f} ms" if one.exec_ms else ""
        table.add_row(one.model, one.via, str(one.images), f"{one.share:.1%}", f"{one.images / one.seconds:,.0f}", cost)
    return table


def _learnings(found: DemoResult) -> Table:
    """What the novice counts in the end shows what was learned: it began as one of as many equals as there are."""
    title = "(b) An application over these and a novice, before and after feedback"
    table = _table(title, "policy", "accuracy before", "feedback", "after", "novice counts")
    for one in found.feedback_effects:
        novice = f"{1 / len(one.weights):.0%} -> {one.weights[NOVICE]:.1%}"
        table.add_row(one.policy, f"{one.before:.1%}", f"{one.observations:,}", f"{one.after:.1%}", novice)
    return table


def _steps(found: DemoResult, slo_ms: float) -> Table:
    title = f"(c, d) {found.model}: Poisson arrivals a second, SLO {slo_ms:g} ms; times in ms"
    table = _table(title, "", "offered", "sent", "in time", "", "refused", "late", "p50", "p99")
    for step in found.ramp:
        _add(table, "ramp", step)
    if found.peak:
        table.add_section()
        _add(table, "capacity", found.peak, "bold green")
    if found.overload and found.peak:
        _add(table, f"{found.overload.rate / found.peak.rate:.0f}x", found.overload, "bold")
    hits = sum(step.cached for step in (*found.ramp, found.peak, found.overload) if step)
    table.caption, table.caption_justify = f"every input distinct; prediction cache hits: {hits}", "left"
    return table


def _add(table: Table, name: str, step: LoadSummary, style: str = "") -> None:
    table.add_row(
        name,
        f"{step.rate:,.0f}",
        f"{step.sent:,}",
        f"{step.in_time:,}",
        f"{step.attained:.1%}",
        f"{step.refused:,}",
        f"{step.late + step.failed + step.unanswered + step.unsent:,}",
        f"{step.p50_ms:.1f}",
        f"{step.p99_ms:.1f}",
        style=style,
    )


def _reasons(out: Console, step: LoadSummary) -> None:
    for reason, count in sorted(step.reasons.items(), key=lambda pair: -pair[1])[:REASONS_SHOWN]:
        out.print(f"  {count:,} refused: {reason}", style="dim", markup=False)
    out.print()


def _promises(found: DemoResult) -> Table:
    table = _table("Promised", "", "wanted", "got", "")
    for criterion in found.criteria:
        table.add_row(
            criterion.name, criterion.wanted, criterion.got, "[green]held" if criterion.met else "[red]broken"
        )
    return table


def _next(model: str) -> Table:
    table = Table(title="(e) Where to look next", title_justify="left", title_style="bold", box=None, show_header=False)
    for where, what in NEXT:
        table.add_row(where.format(model=model), what)
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return table
