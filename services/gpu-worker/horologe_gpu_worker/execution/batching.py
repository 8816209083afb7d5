"""Rows to arrays for a model, and its outputs to headers and bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.models import DTYPES
from horologe_common.status import ModelFailed
from horologe_common.wire import Tensor
from horologe_common.wire.frames import concat_rows, decode_array, encode_array
from horologe_gpu_worker.execution.io_cache import Workspace, room
from horologe_gpu_worker.repository.model_signature import shape_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.core.lanes import Operation


def workspace_bytes(spec: ModelSpec) -> int:
    """Room for the inputs of the largest batch at the length of the profile; longer ones grow the space."""
    return sum(
        room(math.prod(shape_for(spec, tensor, spec.max_batch)) * DTYPES[tensor.datatype].itemsize)
        for tensor in spec.inputs
        if tensor.datatype != "BYTES"
    )


def assemble(operation: Operation, batched: bool, space: Workspace, moved: bool = False) -> dict[str, NDArray[Any]]:
    """The inputs of a batch of `batch_size` rows: the true rows in order, then padding, which is the last row again.

    Rows shorter than the longest end in zeros, or empty strings (ORLOJ, eq. 4: a batch takes as long as its longest).
    One part that fills the batch is used where it lies, read-only, unless all is to be `moved`; everything else is
    built in `space`, which stays untouched until the next call.
    """
    space.clear()
    pad = operation.batch_size - operation.rows if batched else 0
    if operation.shapes:
        return {
            tensor.name: _lengthened(tensor, parts, shapes, pad, space)
            for (tensor, parts), shapes in zip(operation.inputs, operation.shapes, strict=True)
        }
    return {tensor.name: _array(tensor, parts, pad, space, moved) for tensor, parts in operation.inputs}


def _array(tensor: Tensor, parts: Sequence[Buffer], pad: int, space: Workspace, moved: bool) -> NDArray[Any]:
    if tensor.datatype == "BYTES":
        strings = decode_array(tensor, concat_rows(parts))
        return np.concatenate([strings, np.repeat(strings[-1:], pad, axis=0)]) if pad else strings
    dtype = DTYPES[tensor.datatype]
    if not pad and len(parts) == 1 and not moved:
        array = np.frombuffer(parts[0], dtype)
        if array.flags.aligned:  # glued frames may begin at any byte
            return array.reshape(tensor.shape)
    shape = (tensor.shape[0] + pad, *tensor.shape[1:]) if pad else tensor.shape
    flat = space.take(math.prod(shape) * dtype.itemsize)
    view = flat.data
    at = 0
    for part in parts:
        view[at : at + len(part)] = part
        at += len(part)
    if pad:
        flat[at:].reshape(pad, -1)[:] = flat[at - at // tensor.shape[0] : at]
    return flat.view(dtype).reshape(shape)


def _lengthened(
    tensor: Tensor, parts: Sequence[Buffer], shapes: Sequence[tuple[int, ...]], pad: int, space: Workspace
) -> NDArray[Any]:
    """Parts of different shapes, each in the first corner of its rows."""
    shape = (tensor.shape[0] + pad, *tensor.shape[1:])
    if tensor.datatype == "BYTES":
        array = np.full(shape, b"", object)
    else:
        dtype = DTYPES[tensor.datatype]
        array = space.take(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
        array[:] = 0
    at = 0
    for part, own in zip(parts, shapes, strict=True):
        places = (slice(at, at + own[0]), *map(slice, own[1:]))
        array[places] = decode_array(Tensor(tensor.name, tensor.datatype, own, len(part)), part)
        at += own[0]
    array[at:] = array[at - 1 : at]
    return array


def results(
    operation: Operation, spec: ModelSpec, outputs: Mapping[str, NDArray[Any]], space: Workspace
) -> list[tuple[Tensor, Buffer]]:
    """Header and bytes of every output of the true rows, in the order of the signature.

    Nothing is copied except what a model passed on from `space`. Raises `ModelFailed` for a missing output or one
    whose dimension 0 is not the batch.
    """
    found = []
    for want in spec.outputs:
        array = outputs.get(want.name)
        if array is None:
            raise ModelFailed(f"model {spec.key}: outputs: got {sorted(outputs)}, wanted {want.name!r}")
        if spec.batched:
            if not array.shape or array.shape[0] != operation.batch_size:
                shape = list(array.shape)
                raise ModelFailed(
                    f"model {spec.key}: output {want.name!r}: got {shape}, wanted {operation.batch_size} rows"
                )
            array = array[: operation.rows]
        if space.holds(array):
            array = array.copy()
        found.append(_header(want.name, want.datatype, array))
    return found


def _header(name: str, datatype: str, array: NDArray[Any]) -> tuple[Tensor, Buffer]:
    if array.size and array.flags.c_contiguous and DTYPES.get(datatype) == array.dtype:
        return Tensor(name, datatype, array.shape, array.nbytes), array.data.cast("B")
    return encode_array(name, array)
