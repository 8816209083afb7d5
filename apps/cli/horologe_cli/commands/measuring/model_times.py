"""Execution times of the models of a running system, by batch size, length and device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_cli import output
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe import Client
    from horologe_cli.commands.measuring.measure_options import TimesOptions
    from horologe_cli.measuring.profile_sweep import ModelTimes
    from horologe_common.models import ModelSpec


def measure_times(models: Sequence[str], options: TimesOptions, json: bool) -> None:
    """Measure the models of a running system, all without a name, and print the times."""
    numbers = _parse_lengths(options.lengths)

    def measure(client: Client) -> list[ModelTimes]:
        specs = [spec for name in models or [""] for spec in _ready_specs(client, name)]
        return [_measure(client, spec, numbers, options.runs) for spec in specs]

    profiles: list[ModelTimes] = output.call_server(options.endpoint, options.keys, measure)
    if json:
        output.print_json([times.document() for times in profiles])
    else:
        for times in profiles:
            _print(times)


def _parse_lengths(text: str) -> list[int]:
    try:
        lengths = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        lengths = [0]
    if any(length < 1 for length in lengths):
        output.fail(f"--lengths: got {text!r}, wanted whole numbers from 1 on, as 16,64,256", output.ExitCode.USAGE)
    return lengths


def _ready_specs(client: Client, model: str) -> list[ModelSpec]:
    states = client.models(model or None)
    ready = [state.spec for state in states if state.state == "READY"]
    if model and not ready:
        output.fail(f"model {model}: {f'{states[-1].state}: {states[-1].reason}' if states else 'not served'}")
    return ready


def _measure(client: Client, spec: ModelSpec, lengths: list[int], runs: int) -> ModelTimes:
    from rich.progress import Progress

    from horologe_cli.measuring.profile_sweep import measure_model

    with Progress(console=output.stderr_console(), transient=True, disable=output.is_silent(False)) as progress:
        task = progress.add_task(spec.key, total=1.0)
        return measure_model(client, spec, lengths, runs, lambda share: progress.update(task, completed=share))


def _print(times: ModelTimes) -> None:
    out = output.console()
    out.print(f"[bold]{times.spec.key}[/]  {times.spec.runtime}")
    sizes = times.spec.batch_sizes
    table = Table(("expected, ms", "device", "load", *(f"b{size}" for size in sizes)), left=2)
    for share in times.shares:
        cells = (_format_ms(share.exec_ns[size]) if size in share.exec_ns else "-" for size in sizes)
        table.add_row(share.worker.partition("#")[0], share.device, _format_ms(share.load_ns), *cells)
    if times.shares:
        table.print(out)
    else:
        out.print("no device serves this model")
    if times.rows:
        _print_measured(times)
    for cell, reason in times.failed.items():
        out.print(f"batch {cell.size}{f', length {cell.length}' if cell.length else ''}: {reason}", style="yellow")
    out.print()


def _print_measured(times: ModelTimes) -> None:
    table = Table(("measured, ms", "length", "median", "least", "most", "c0 + c1", "error"))
    for row in times.rows:
        table.add_row(
            f"b{row.cell.size}",
            row.cell.length or "-",
            *(_format_ms(time_ns) for time_ns in (row.took_ns, row.least_ns, row.most_ns, row.fitted_ns)),
            f"{row.fitted_ns / row.took_ns - 1:+.1%}",
        )
    table.print(output.console())
    if times.fit:
        fit, unit = times.fit, "row and unit of length" if times.rows[0].cell.length else "row"
        output.console().print(
            f"c0 {_format_ms(fit.base_ns)} ms, c1 {_format_ms(fit.slope_ns)} ms per {unit}; "
            f"error {fit.median_error:.1%} (median), {fit.max_error:.1%} (largest)"
        )


def _format_ms(ns: float) -> str:
    """Return milliseconds with three significant digits, or 0 for less than a nanosecond."""
    return f"{ns / 1e6:.3g}" if ns >= 1 else "0"
