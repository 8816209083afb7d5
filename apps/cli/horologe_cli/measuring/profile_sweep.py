"""Runs a `Sweep` of batch sizes and lengths against a running system, with the SDK."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horologe_common.models import DTYPES
from horologe_common.status import HorologeError
from horologe_profiler.core.sweep import Sweep, input_shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from horologe import Client
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
