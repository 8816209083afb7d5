"""`horologe pipeline ...`: what is known about a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from horologe_cli.output import (
    DEFAULT_ENDPOINT,
    Endpoint,
    ExitCode,
    Json,
    Keys,
    call_server,
    command_group,
    console,
    fail,
    print_json,
)
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from horologe_common.pipelines import PipelineStructure
    from horologe_common.wire import PipelineState, StageState

app = command_group("Pipelines: driver functions that call models, served like a model.")


@app.callback()
def group() -> None:
    """Keep `show` a subcommand."""


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Name of the pipeline.", metavar="NAME")],
    plot: Annotated[str, typer.Option(help="Draw the stages into this file.", metavar="FILE.png")] = "",
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """Show the stages of a pipeline: how often queries visit them, their latency, and dropped calls.

    The stages are learned from the last 1,000 queries.

    \b
    Examples:
      horologe pipeline show cascade
      horologe pipeline show cascade --plot cascade.png
      horologe pipeline show cascade --json > cascade.json
    """
    state: PipelineState = call_server(endpoint, keys, lambda client: client.pipeline(name))
    if plot:
        _plot(name, state, Path(plot))
    if json:
        print_json(_document(name, state))
    else:
        _print(name, state)


def _document(name: str, state: PipelineState) -> dict[str, Any]:
    """Return the document for --json. `structure` is what `horologe plan make` reads."""
    return {
        "name": name,
        "reason": state.reason,
        "answered": state.answered,
        "failed": dict(state.failed),
        "p50_ns": state.p50_ns,
        "p99_ns": state.p99_ns,
        "stages": [msgspec.structs.asdict(stage) for stage in state.stages],
        "structure": msgspec.to_builtins(state.structure),
    }


def _print(name: str, state: PipelineState) -> None:
    out = console()
    failed = "".join(f", {count} {status}" for status, count in state.failed)
    latency = f", p50 {_ms(state.p50_ns)}, p99 {_ms(state.p99_ns)}" if state.answered else ""
    out.print(f"pipeline {name}: {state.answered} answered{failed}{latency}")
    if state.reason:
        out.print(state.reason, markup=False)
    if state.structure is None:
        out.print("no stages are known yet: they are learned from answered queries")
        return
    measured = {stage.name: stage for stage in state.stages}
    columns = ("stage", "after", "visits", "calls/visit", "calls/query", "p50", "p99", "dropped", "on critical path")
    table = Table(columns, left=2)
    for stage in state.structure.stages:
        table.add_row(
            stage.name,
            ", ".join(stage.parents) or "-",
            f"{stage.visits:.0%}",
            f"{stage.fan_out:.2f}",
            f"{state.structure.scale_factor(stage.name):.2f}",
            *_measurements(state, measured.get(stage.name)),
        )
    table.print(out)


def _measurements(state: PipelineState, stage: StageState | None) -> tuple[str, ...]:
    if stage is None:
        return ("-", "-", "-", "-")
    critical = f"{stage.critical / max(state.answered, 1):.0%}"
    return (_ms(stage.p50_ns), _ms(stage.p99_ns), str(stage.drops), critical)


def _ms(duration_ns: int) -> str:
    return f"{duration_ns / 1e6:g} ms"


def _plot(name: str, state: PipelineState, path: Path) -> None:
    """Draw the stages in columns by the longest path to them. End the command if that is not possible."""
    if state.structure is None:
        fail("--plot: no stages are known yet: they are learned from answered queries")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        fail("--plot: matplotlib is not installed (the extra `planner` of the distribution)", ExitCode.USAGE)
    places = _place_stages(state.structure)
    columns = 1 + max(column for column, _ in places.values())
    rows = 1 + max(row for _, row in places.values())
    figure = Figure(figsize=(1 + 2.4 * columns, 0.9 + 1.3 * rows), layout="constrained")
    axes: Any = figure.subplots()
    axes.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5))
    axes.set_axis_off()
    axes.set_title(f"{name}: {state.answered} answered, p50 {_ms(state.p50_ns)}, p99 {_ms(state.p99_ns)}")
    measured = {stage.name: stage for stage in state.stages}
    for stage in state.structure.stages:
        place = places[stage.name]
        for parent in stage.parents:
            arrow = {"arrowstyle": "->", "shrinkA": 34, "shrinkB": 38, "color": "grey"}
            axes.annotate("", xy=place, xytext=places[parent], arrowprops=arrow)
        p50, p99, drops, critical = _measurements(state, measured.get(stage.name))
        text = f"{stage.name}\nvisits {stage.visits:.0%} x {stage.fan_out:.2f}\np50 {p50}, p99 {p99}"
        text += f"\ndropped {drops}, critical {critical}"
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": "black"}
        axes.annotate(text, place, ha="center", va="center", fontsize=8, bbox=box)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        fail(f"--plot {path}: {error}", ExitCode.USAGE)


def _place_stages(structure: PipelineStructure) -> dict[str, tuple[int, int]]:
    """Return column and row of each stage: the column is the longest path from a stage without parents."""
    columns: dict[str, int] = {}
    counts: dict[int, int] = {}
    places: dict[str, tuple[int, int]] = {}
    for stage in structure.stages:
        column = columns[stage.name] = max((columns[parent] + 1 for parent in stage.parents), default=0)
        places[stage.name] = (column, counts.get(column, 0))
        counts[column] = counts.get(column, 0) + 1
    return places
