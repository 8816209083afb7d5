"""Execution times of the models of a running system, by batch size, length and device: measured, and printed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horologe_cli import output
from horologe_common.models import DTYPES
from horologe_common.status import HorologeError
from horologe_profiler.core.sweep import Sweep, input_shapes
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from horologe import Client
    from horologe_cli.commands.measuring.measure_options import TimesOptions
    from horologe_common.models import ModelSpec
    from horologe_common.wire import ShareState
    from horologe_profiler.core.batch_fit import Fit
    from horologe_profiler.core.sweep import SweepCell, SweepRow

SLO_MS = 30_000.0
"""Deadline of each batch. It lets other requests go first; the model's own SLO might be too short for large batches."""
APPLICATION = "horologe measure"
"""Execution times are estimated per application. This name keeps these inputs out of the estimates of others."""
MAX_TRIES = 4
"""Requests for a batch until it runs alone: other requests may join it."""


class ModelTimes(NamedTuple):
    """Expected and measured execution times of one model."""

    spec: ModelSpec
    shares: tuple[ShareState, ...]
    rows: list[SweepRow]
    fit: Fit | None
    failed: Mapping[SweepCell, str]

    def document(self) -> dict[str, Any]:
        """Return the document for --json. Times are in milliseconds."""
        return {
            "model": self.spec.name,
            "version": self.spec.version,
            "runtime": self.spec.runtime,
            "expected": [_share_document(share) for share in self.shares],
            "measured": [_row_document(row) for row in self.rows],
            "failed": [{**_cell_document(cell), "reason": reason} for cell, reason in self.failed.items()],
            "fit": self.fit and _fit_document(self.fit),
        }


def _share_document(share: ShareState) -> dict[str, Any]:
    exec_ms = {size: ns / 1e6 for size, ns in share.exec_ns.items()}
    place = {"worker": share.worker.partition("#")[0], "share": share.share, "device": share.device}
    return {**place, "load_ms": share.load_ns / 1e6, "exec_ms": exec_ms}


def _row_document(row: SweepRow) -> dict[str, Any]:
    times = {"median": row.took_ns, "least": row.least_ns, "most": row.most_ns, "fitted": row.fitted_ns}
    return {**_cell_document(row.cell), "runs": row.runs, **{f"{name}_ms": ns / 1e6 for name, ns in times.items()}}


def _cell_document(cell: SweepCell) -> dict[str, Any]:
    return {"batch_size": cell.size, "length": cell.length}


def _fit_document(fit: Fit) -> dict[str, float]:
    coefficients = {"c0_ms": fit.base_ns / 1e6, "c1_ms": fit.slope_ns / 1e6}
    return {**coefficients, "median_error": fit.median_error, "max_error": fit.max_error}


def measure_model(
    client: Client, spec: ModelSpec, lengths: Sequence[int], runs: int, progress: Callable[[float], None]
) -> ModelTimes:
    """Run every batch size and length `runs` times.

    `progress` is called with the share of runs that are finished. Raises Lost if the server does not answer; other
    errors are stored in `failed`.
    """
    shares = tuple(share for share in client.describe(spec.key).shares if share.exec_ns)
    sweep = Sweep(spec, lengths, runs)
    for number, cell in enumerate(sweep.iter_cells()):
        try:
            sweep.record_time(cell, _run(client, spec, cell, number))
        except HorologeError as error:
            sweep.record_failure(cell, f"{error.status.name}: {error.reason}")
        progress((number + 1) / len(sweep))
    return ModelTimes(spec, shares, *sweep.result(), sweep.failed)


def _run(client: Client, spec: ModelSpec, cell: SweepCell, number: int) -> int:
    """Return the EXEC time in nanoseconds of a batch without other requests. Raises HorologeError."""
    slo_ms = SLO_MS if spec.slo_ns else None
    for attempt in range(MAX_TRIES):
        inputs = make_inputs(spec, cell, 1 + number * MAX_TRIES + attempt)
        reply = client.predict_full(spec.name, inputs, version=spec.version, slo_ms=slo_ms, application=APPLICATION)
        if reply.batch_size == cell.size and not reply.cached and reply.exec_ns:
            return int(reply.exec_ns)
    raise HorologeError(f"{MAX_TRIES} tries: the batch ran with other requests, or the cache answered")


def make_inputs(spec: ModelSpec, cell: SweepCell, number: int) -> dict[str, NDArray[Any]]:
    """Return inputs of zeros; for a model with cached predictions, of a small value that differs with `number`."""
    value = number % 100 if spec.cache else 0
    inputs: dict[str, NDArray[Any]] = {}
    for tensor in spec.inputs:
        shape = input_shapes(spec, cell)[tensor.name]
        if tensor.datatype == "BYTES":
            inputs[tensor.name] = np.full(shape, str(value).encode(), object)
        else:
            inputs[tensor.name] = np.full(shape, value, DTYPES[tensor.datatype])
    return inputs


def measure_times(models: Sequence[str], options: TimesOptions, json: bool) -> None:
    """Measure the models of a running system, all without a name, and print the times."""
    numbers = _parse_lengths(options.lengths)

    def measure(client: Client) -> list[ModelTimes]:
        specs = [spec for name in models or [""] for spec in _ready_specs(client, name)]
        return [_sweep(client, spec, numbers, options.runs) for spec in specs]

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


def _sweep(client: Client, spec: ModelSpec, lengths: list[int], runs: int) -> ModelTimes:
    with output.progress_bar(spec.key, False) as on_progress:
        return measure_model(client, spec, lengths, runs, on_progress)


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
