"""Row check: compare random rows of a batch with the same rows alone. A model whose rows differ is not batched.

The first dimension of such a model means time, samples or nodes, or its rows depend on each other, as in a mean over
the batch. Padded, cut and concatenated like rows, its answers would be wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.clock import monotonic_ns, s
from horologe_common.service.log import logger
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.manifest import read_manifest
from horologe_gpu_worker.repository.model_signature import check_outputs
from horologe_gpu_worker.repository.model_spec import warmup_inputs
from horologe_gpu_worker.runtime import ProcessFailed, RowsFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec, Profile, TensorSpec

    Arrays = Mapping[str, NDArray[Any]]
    RunBatch = Callable[[int, Arrays], Arrays]
    """The method `OpenModel.run`."""

ROWS_MAX = 32
"""Largest batch that is compared, if a smaller one is compiled. A dependence on rows further away is not found."""
ALONE_MAX = 8
"""Rows of the batch that run alone."""
TOLERANCE = {"FP16": 0.05, "FP32": 0.01, "FP64": 0.01}
"""Permitted difference of a float, relative to the largest value at its place in any row: batches of another size use
other kernels, and a GPU may round to TF32 (11 bits). Rows that depend on each other usually differ by more than 0.1."""
TOLERANCE_ABSOLUTE = 1e-6
"""Permitted difference of a float where all values cancel out. Inputs are in [0, 1)."""
LONG_NS = s(10)
"""After this time, no further row runs alone: other models wait for their measurement."""
REPEATS = 3
"""Times that a difference must be found: one that does not repeat is random."""
ALL_KINDS, FLOATS = "biufO", "f"
LETTERS = list("abcdefgh")

log = logger("row_check")


def check_rows(
    run: RunBatch,
    spec: ModelSpec,
    folder: Path,
    clock: Callable[[], int] = monotonic_ns,
    kinds: Sequence[str] = (ALL_KINDS, FLOATS),
) -> None:
    """Raise `RowsFailed` if rows of a random batch have other outputs alone.

    Inputs with a `warmup` value keep it. A model that rejects random inputs is not compared. An output that differs
    between two equal batches is random and is not compared. `kinds`: numpy's kinds of inputs to vary, until the model
    accepts them.
    """
    if not spec.batched or spec.max_batch == 1 or read_manifest(folder).batching == "on":
        return
    size = max([size for size in spec.batch_sizes if size <= ROWS_MAX] or spec.batch_sizes[:1])
    size = size if size > 1 else spec.batch_sizes[1]
    reason = ""
    for varied in kinds:
        try:
            _compare_rows(run, spec, size, _random_inputs(spec, folder, size, varied), clock)
        except RowsFailed:
            raise
        except ProcessFailed as error:
            reason = error.reason
            break
        except ModelFailed as error:
            reason = error.reason
        else:
            return
    log.info("rows not compared: the model rejects random inputs", model=spec.key, reason=reason)


def _random_inputs(spec: ModelSpec, folder: Path, size: int, kinds: str) -> dict[str, NDArray[Any]]:
    """Return warm-up inputs, with random values in those of numpy's `kinds` that have no `warmup` value.

    Floats are in [0, 1), and integers 0 or 1: indices, masks, probabilities, roots and logarithms accept them.
    """
    random = np.random.default_rng(1)
    arrays = warmup_inputs(spec, folder, size)
    declared = {entry.name for entry in read_manifest(folder).inputs if entry.warmup}
    for name, array in arrays.items():
        if name in declared or array.dtype.kind not in kinds:
            continue
        if array.dtype.kind == "f":
            array[...] = random.random(array.shape)
        elif array.dtype.kind == "O":
            words = ["".join(random.choice(LETTERS, 4)).encode() for _ in range(array.size)]
            array[...] = np.array(words, object).reshape(array.shape)
        else:
            array[...] = random.integers(0, 2, array.shape)
    return arrays


def _compare_rows(run: RunBatch, spec: ModelSpec, size: int, inputs: Arrays, clock: Callable[[], int]) -> None:
    """Raise `RowsFailed` for a row that has other outputs alone, each time. Raises the errors of the batch.

    The last row is compared first: it has the most rows before it.
    """
    end_ns = clock() + LONG_NS
    batch = _run_batch(run, spec, size, inputs)
    scales = {tensor.name: _scale(batch[tensor.name]) for tensor in spec.outputs}
    steady: tuple[TensorSpec, ...] = spec.outputs
    rows = sorted({round(row) for row in np.linspace(0, size - 1, ALONE_MAX)}, reverse=True)
    for _ in range(REPEATS):
        again = _run_batch(run, spec, size, inputs)
        steady = tuple(tensor for tensor in steady if not _difference(tensor, batch, again, scales))
        faults = {
            row: _row_fault(run, spec, steady, inputs, batch, row, scales)
            for row in rows
            if row == rows[0] or clock() < end_ns
        }
        rows = [row for row, fault in faults.items() if fault]
        if not rows:
            return
    raise RowsFailed(f"model {spec.key}: row {rows[0]} of {size} random rows {faults[rows[0]]}")


def _run_batch(run: RunBatch, spec: ModelSpec, size: int, inputs: Arrays) -> Arrays:
    outputs = run(size, inputs)
    check_outputs(spec, size, outputs)
    return {name: np.array(array) for name, array in outputs.items()}


def _row_fault(
    run: RunBatch,
    spec: ModelSpec,
    tensors: Sequence[TensorSpec],
    inputs: Arrays,
    batch: Arrays,
    row: int,
    scales: Mapping[str, Any],
) -> str:
    """Return how a row differs from that of the batch when it runs in the smallest batch, padded with itself; empty if
    it does not.
    """
    size = spec.batch_sizes[0]
    repeated = {name: np.repeat(array[row : row + 1], size, axis=0) for name, array in inputs.items()}
    try:
        outputs = _run_batch(run, spec, size, repeated)
    except ProcessFailed:
        raise
    except ModelFailed as error:
        return f"fails alone: {error.reason.removeprefix(f'model {spec.key}: ')}"
    alone = {name: array[:1] for name, array in outputs.items()}
    own = {name: array[row : row + 1] for name, array in batch.items()}
    return next(filter(None, (_difference(tensor, own, alone, scales) for tensor in tensors)), "")


def _difference(tensor: TensorSpec, batch: Arrays, other: Arrays, scales: Mapping[str, Any]) -> str:
    """Return the first difference of an output from that of the batch; empty if there is none."""
    ours, theirs = batch[tensor.name], other[tensor.name]
    where = f"has another output {tensor.name!r} alone:"
    if ours.shape != theirs.shape:
        return f"{where} shape {list(theirs.shape)} instead of {list(ours.shape)}"
    equal = np.asarray(ours == theirs, bool)
    if tolerance := TOLERANCE.get(tensor.datatype):
        ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
        with np.errstate(invalid="ignore"):
            equal |= np.abs(ours - theirs) <= tolerance * scales[tensor.name] + TOLERANCE_ABSOLUTE
        equal |= np.isnan(ours) & np.isnan(theirs)
    elif tensor.datatype in ("INT8", "UINT8"):  # quantised values
        equal |= np.abs(ours.astype(np.int64) - theirs.astype(np.int64)) <= 1
    if equal.all():
        return ""
    place = tuple(int(at) for at in np.argwhere(~equal)[0])
    return f"{where} {theirs[place]!s:.40} instead of {ours[place]!s:.40}"


def _scale(output: NDArray[Any]) -> Any:
    """Return the largest finite value at each place of a row, and at least a hundredth of the largest of all."""
    if output.dtype.kind != "f":
        return 0
    sizes = np.abs(np.where(np.isfinite(output), output, 0).astype(np.float64))
    return np.maximum(sizes.max(axis=0, keepdims=True, initial=0), sizes.max(initial=0) / 100)


def measure_unbatched_if_needed(
    spec: ModelSpec,
    length: int,
    measure: Callable[[ModelSpec, str], Profile],
) -> tuple[ModelSpec, Profile]:
    """Return the spec and its profile; if `measure` raises `RowsFailed`, those of the model without batches.

    `measure` gets a spec and why the rows of the batched model have failed. `length`: size of a variable dimension in
    its runs. Raises the errors of `measure`.
    """
    try:
        return spec, measure(spec, "")
    except RowsFailed as error:
        failure = error
    reason = failure.reason.removeprefix(f"model {spec.key}: ")
    for unbatched in _unbatched_specs(spec, length, reason):
        try:
            return unbatched, measure(unbatched, failure.reason)
        except ModelFailed as error:
            log.info("not served without batches either", model=spec.key, reason=error.reason)
    raise failure


def _unbatched_specs(spec: ModelSpec, length: int, reason: str) -> Iterator[ModelSpec]:
    """Yield the model with each request as it comes, then with one row for each request."""
    notes = (*spec.notes, f"not batched: {reason} (`batching` in model.toml)")
    yield msgspec.structs.replace(
        spec, batched=False, batch_sizes=(1,), padded=False, profile_length=length, notes=notes
    )
    if spec.batch_sizes != (1,):
        yield msgspec.structs.replace(spec, batch_sizes=(1,), notes=notes)
