"""`horologe profile`: how long models take, by batch size, length and device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from horologe_cli.output import (
    DEFAULT_ENDPOINT,
    Endpoint,
    ExitCode,
    Json,
    Keys,
    console,
    fail,
    fail_with,
    open_client,
    print_json,
    stderr_console,
)

if TYPE_CHECKING:
    from rich.table import Table

    from horologe import Client
    from horologe_cli.commands.profile_sweep import ModelTimes
    from horologe_common.models import ModelSpec


def profile(
    model: Annotated[str, typer.Argument(help="Name of the model; default: all.", metavar="[MODEL]")] = "",
    lengths: Annotated[str, typer.Option(help="Of variable dimensions; default: 16,64,256.", metavar="N,N,...")] = "",
    runs: Annotated[int, typer.Option(min=0, help="Of each batch; 0: only what is expected, nothing is run.")] = 5,
    endpoint: Endpoint = DEFAULT_ENDPOINT,
    keys: Keys = "",
    json: Json = False,
) -> None:
    """Measure a running system: batch sizes x lengths, one batch at a time, behind all other traffic.

    Shown beside what each device is expected to take, and with c0, c1 of time = c0 + c1 x batch x length.

    \b
    Examples:
      horologe profile
      horologe profile text-encoder --lengths 16,128,512
      horologe profile digits-cnn --runs 0 --json
    """
    wanted = _lengths(lengths)
    with open_client(endpoint, keys) as client:
        try:
            found = [_measure(client, spec, wanted, runs) for spec in _specs(client, model)]
        except Exception as error:
            fail_with(error, endpoint)
    if json:
        print_json([one.document() for one in found])
    else:
        for one in found:
            _print(one)


def _lengths(text: str) -> list[int]:
    try:
        lengths = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        lengths = [0]
    if any(length < 1 for length in lengths):
        fail(f"--lengths: got {text!r}, wanted whole numbers from 1 on, as 16,64,256", ExitCode.USAGE)
    return lengths


def _specs(client: Client, model: str) -> list[ModelSpec]:
    states = client.models(model or None)
    ready = [state.spec for state in states if state.state == "READY"]
    if model and not ready:
        fail(f"model {model}: {f'{states[-1].state}: {states[-1].reason}' if states else 'not served'}")
    return ready


def _measure(client: Client, spec: ModelSpec, lengths: list[int], runs: int) -> ModelTimes:
    from rich.progress import Progress

    from horologe_cli.commands.profile_sweep import measure_model

    with Progress(console=stderr_console(), transient=True) as progress:
        task = progress.add_task(spec.key, total=1.0)
        return measure_model(client, spec, lengths, runs, lambda share: progress.update(task, completed=share))


def _print(found: ModelTimes) -> None:
    from rich.table import Table

    out = console()
    out.print(f"[bold]{found.spec.key}[/]  {found.spec.runtime}")
    table = Table("expected, ms", "device", "load", *(f"b{size}" for size in found.spec.batch_sizes), box=None)
    _right(table, 2)
    for share in found.shares:
        times = (_ms(share.exec_ns[size]) if size in share.exec_ns else "-" for size in found.spec.batch_sizes)
        table.add_row(share.worker.partition("#")[0], share.device, _ms(share.load_ns), *times)
    out.print(table if found.shares else "no device serves it now")
    if found.rows:
        _print_measured(found)
    for cell, reason in found.failed.items():
        out.print(f"batch {cell.size}{f', length {cell.length}' if cell.length else ''}: {reason}", style="yellow")
    out.print()


def _print_measured(found: ModelTimes) -> None:
    from rich.table import Table

    table = Table("measured, ms", "length", "median", "least", "most", "c0 + c1", "error", box=None)
    _right(table, 1)
    for row in found.rows:
        error = row.fitted_ns / row.took_ns - 1
        table.add_row(
            f"b{row.cell.size}",
            str(row.cell.length or "-"),
            _ms(row.took_ns),
            _ms(row.least_ns),
            _ms(row.most_ns),
            _ms(row.fitted_ns),
            f"{error:+.1%}",
        )
    console().print(table)
    if found.fit:
        fit, unit = found.fit, "row and unit of length" if found.rows[0].cell.length else "row"
        console().print(
            f"c0 {_ms(fit.base_ns)} ms, c1 {_ms(fit.slope_ns)} ms per {unit}; "
            f"error {fit.median_error:.1%} (median), {fit.max_error:.1%} (largest)"
        )


def _right(table: Table, first: int) -> None:
    for column in table.columns[first:]:
        column.justify = "right"


def _ms(ns: float) -> str:
    """Milliseconds to three digits, nanoseconds being the last that count."""
    return f"{ns / 1e6:.3g}" if ns >= 1 else "0"
