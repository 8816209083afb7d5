"""Batches: from the bytes of rows to a model's input arrays, and from output arrays to headers and bytes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.models import DTYPES
from horologe_common.status import ModelFailed
from horologe_common.wire import Tensor
from horologe_common.wire.frames import concat_rows, decode_array, encode_array
from horologe_gpu_worker.execution.workspace import Workspace, aligned_size
from horologe_gpu_worker.repository.model_signature import tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_gpu_worker.core.lanes import LaneOperation
    from horologe_gpu_worker.runtime import Shapes


def workspace_bytes(spec: ModelSpec) -> int:
    """Return the bytes of the inputs of the largest batch at the profile's length. Longer inputs grow the workspace."""
    return sum(aligned_size(tensor_bytes(spec, tensor, spec.max_batch)) for tensor in spec.inputs)


def batch_shapes(operation: LaneOperation, spec: ModelSpec) -> Shapes:
    """Return the shapes of a batch's inputs, in the order of the signature."""
    shapes = {tensor.name: tuple(tensor.shape) for tensor, _ in operation.inputs}
    rows = (operation.batch_size,) if spec.batched else ()
    return tuple((*rows, *shapes[tensor.name][len(rows) :]) for tensor in spec.inputs)


def lengthen_rows(operation: LaneOperation, spec: ModelSpec, shapes: Shapes) -> LaneOperation:
    """Return the operation with rows that are padded to these shapes of the batch."""
    wanted = {tensor.name: shape for tensor, shape in zip(spec.inputs, shapes, strict=True)}
    inputs, parts_shapes = [], []
    for index, (tensor, parts) in enumerate(operation.inputs):
        inputs.append((msgspec.structs.replace(tensor, shape=(tensor.shape[0], *wanted[tensor.name][1:])), parts))
        row_bytes = math.prod(tensor.shape[1:]) * DTYPES[tensor.datatype].itemsize
        equal = [(len(part) // max(1, row_bytes), *tensor.shape[1:]) for part in parts]
        parts_shapes.append(operation.shapes[index] if operation.shapes else equal)
    return msgspec.structs.replace(operation, inputs=inputs, shapes=parts_shapes)


def assemble_inputs(
    operation: LaneOperation, batched: bool, space: Workspace, copy_all: bool = False
) -> dict[str, NDArray[Any]]:
    """Build the input arrays of a batch of `batch_size` rows: the rows of requests in order, then the last row
    repeated.

    Rows shorter than the longest are padded with zeros or empty strings (ORLOJ, eq. 4: a batch takes as long as its
    longest row). A single part that fills the batch is used in place, read-only, unless `copy_all` is set. All other
    arrays are built in `space`, which stays unchanged until the next call.
    """
    space.reset()
    pad = operation.batch_size - operation.rows if batched else 0
    if operation.shapes:
        return {
            tensor.name: _padded_array(tensor, parts, shapes, pad, space)
            for (tensor, parts), shapes in zip(operation.inputs, operation.shapes, strict=True)
        }
    return {tensor.name: _array(tensor, parts, pad, space, copy_all) for tensor, parts in operation.inputs}


def _array(tensor: Tensor, parts: Sequence[Buffer], pad: int, space: Workspace, copy_all: bool) -> NDArray[Any]:
    if tensor.datatype == "BYTES":
        strings = decode_array(tensor, concat_rows(parts))
        return np.concatenate([strings, np.repeat(strings[-1:], pad, axis=0)]) if pad else strings
    dtype = DTYPES[tensor.datatype]
    if not pad and len(parts) == 1 and not copy_all:
        array = np.frombuffer(parts[0], dtype)
        if array.flags.aligned:  # a part of a concatenated frame may begin at any byte
            return array.reshape(tensor.shape)
    shape = (tensor.shape[0] + pad, *tensor.shape[1:]) if pad else tensor.shape
    flat = space.allocate(math.prod(shape) * dtype.itemsize)
    view = flat.data
    end = 0
    for part in parts:
        view[end : end + len(part)] = part
        end += len(part)
    if pad:
        flat[end:].reshape(pad, -1)[:] = flat[end - end // tensor.shape[0] : end]
    return flat.view(dtype).reshape(shape)


def _padded_array(
    tensor: Tensor, parts: Sequence[Buffer], shapes: Sequence[tuple[int, ...]], pad: int, space: Workspace
) -> NDArray[Any]:
    """Build an array from parts of different shapes. Each part fills the start of every dimension of its rows."""
    shape = (tensor.shape[0] + pad, *tensor.shape[1:])
    if tensor.datatype == "BYTES":
        array = np.full(shape, b"", object)
    else:
        dtype = DTYPES[tensor.datatype]
        array = space.allocate(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
        array[:] = 0
    row = 0
    for part, part_shape in zip(parts, shapes, strict=True):
        region = (slice(row, row + part_shape[0]), *map(slice, part_shape[1:]))
        array[region] = decode_array(Tensor(tensor.name, tensor.datatype, part_shape, len(part)), part)
        row += part_shape[0]
    array[row:] = array[row - 1 : row]
    return array


def output_tensors(
    operation: LaneOperation, spec: ModelSpec, outputs: Mapping[str, NDArray[Any]], space: Workspace
) -> list[tuple[Tensor, Buffer]]:
    """Return header and bytes of every output without padding rows, in the order of the signature.

    Only an output that lies in `space` is copied. Raises `ModelFailed` for a missing output, or one whose first
    dimension is not the batch size.
    """
    tensors = []
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
        if space.may_contain(array):
            array = array.copy()
        tensors.append(_output_tensor(want.name, want.datatype, array))
    return tensors


def _output_tensor(name: str, datatype: str, array: NDArray[Any]) -> tuple[Tensor, Buffer]:
    if array.size and array.flags.c_contiguous and DTYPES.get(datatype) == array.dtype:
        return Tensor(name, datatype, array.shape, array.nbytes), array.data.cast("B")
    return encode_array(name, array, "output")
