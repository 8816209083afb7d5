"""Plays a `Sweep` against a running system, through the SDK."""

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

PATIENCE_MS = 30_000.0
"""Where the model has an SLO, its own would refuse large batches. So late a deadline comes after all other traffic."""
APPLICATION = "horologe profile"
"""What is learned of these inputs is not learned of anybody else's."""
TRIES = 4
"""So often a batch is asked for until it runs by itself: requests of others may ride in it."""


class ModelTimes(NamedTuple):
    """One model: what each share is expected to take, and what was measured."""

    spec: ModelSpec
    shares: tuple[ShareState, ...]
    rows: list[SweepRow]
    fit: Fit | None
    failed: Mapping[SweepCell, str]

    def document(self) -> dict[str, Any]:
        """For --json; times in milliseconds."""
        expected = [
            {
                "worker": share.worker.partition("#")[0],
                "share": share.share,
                "device": share.device,
                "load_ms": share.load_ns / 1e6,
                "exec_ms": {size: ns / 1e6 for size, ns in share.exec_ns.items()},
            }
            for share in self.shares
        ]
        measured = [
            {
                "batch_size": row.cell.size,
                "length": row.cell.length,
                "runs": row.runs,
                "median_ms": row.took_ns / 1e6,
                "least_ms": row.least_ns / 1e6,
                "most_ms": row.most_ns / 1e6,
                "fitted_ms": row.fitted_ns / 1e6,
            }
            for row in self.rows
        ]
        failed = [{"batch_size": cell.size, "length": cell.length, "reason": why} for cell, why in self.failed.items()]
        fit = self.fit and {
            "c0_ms": self.fit.base_ns / 1e6,
            "c1_ms": self.fit.slope_ns / 1e6,
            "median_error": self.fit.median_error,
            "max_error": self.fit.max_error,
        }
        return {
            "model": self.spec.name,
            "version": self.spec.version,
            "runtime": self.spec.runtime,
            "expected": expected,
            "measured": measured,
            "failed": failed,
            "fit": fit,
        }


def measure_model(
    client: Client, spec: ModelSpec, lengths: Sequence[int], runs: int, progress: Callable[[float], None]
) -> ModelTimes:
    """Run every cell `runs` times. Raises `Lost` if nobody answers; what a cell came to otherwise is told of it."""
    described = client.describe(spec.key)
    shares = tuple(share for share in described.shares if share.exec_ns)
    sweep = Sweep(spec, lengths, runs)
    for number, cell in enumerate(sweep.iter_cells()):
        try:
            sweep.record_time(cell, _run(client, spec, cell, number))
        except HorologeError as error:
            sweep.record_failure(cell, f"{error.status.name}: {error.reason}")
        progress((number + 1) / len(sweep))
    return ModelTimes(spec, shares, *sweep.result(), sweep.failed)


def _run(client: Client, spec: ModelSpec, cell: SweepCell, number: int) -> int:
    """EXEC time of one batch in which nobody else rode (ns). Raises `HorologeError`."""
    slo_ms = PATIENCE_MS if spec.slo_ns else None
    for attempt in range(TRIES):
        inputs = make_inputs(spec, cell, 1 + number * TRIES + attempt)
        reply = client.predict_full(spec.name, inputs, version=spec.version, slo_ms=slo_ms, application=APPLICATION)
        if reply.batch_size == cell.size and not reply.cached and reply.exec_ns:
            return int(reply.exec_ns)
    raise HorologeError(f"{TRIES} times it ran in a batch with others, or the cache answered")


def make_inputs(spec: ModelSpec, cell: SweepCell, number: int) -> dict[str, NDArray[Any]]:
    """Zeros, or for a model whose predictions are cached, another small number each time."""
    value = number % 100 if spec.cache else 0
    found = {}
    for tensor in spec.inputs:
        shape = input_shapes(spec, cell)[tensor.name]
        if tensor.datatype == "BYTES":
            found[tensor.name] = np.full(shape, str(value).encode(), object)
        else:
            found[tensor.name] = np.full(shape, value, DTYPES[tensor.datatype])
    return found
