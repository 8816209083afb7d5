"""Model signatures: arrays that fit one, and checks of a model's outputs."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.models import DATATYPES, DTYPES
from horologe_common.status import ModelFailed
from horologe_common.string_tensors import STRING_KINDS
from horologe_gpu_worker.repository.reshaping import fits_shape
from horologe_gpu_worker.runtime import RowsFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec, TensorSpec


def shape_for(spec: ModelSpec, tensor: TensorSpec, batch_size: int) -> tuple[int, ...]:
    """Return the tensor's shape at this batch size. Other variable dimensions of an input have their size of
    `warmup_shapes`; without one, and in outputs, the model's `profile_length`.
    """
    given = (
        spec.warmup_shapes[spec.inputs.index(tensor)] if spec.warmup_shapes and tensor in spec.inputs else tensor.shape
    )
    shape = tuple((spec.profile_length or 1) if dim < 0 else dim for dim in given)
    return (batch_size, *shape[1:]) if spec.batched else shape


def tensor_bytes(spec: ModelSpec, tensor: TensorSpec, batch_size: int) -> int:
    """Return the bytes of a tensor of numbers at this batch size; 0 for strings."""
    strings = tensor.datatype == "BYTES"
    return 0 if strings else math.prod(shape_for(spec, tensor, batch_size)) * DTYPES[tensor.datatype].itemsize


def zeros(spec: ModelSpec, tensors: Iterable[TensorSpec], batch_size: int) -> dict[str, NDArray[Any]]:
    """Return arrays of zeros (BYTES: of empty strings) by tensor name, for warm-up and emulated outputs."""
    arrays: dict[str, NDArray[Any]] = {}
    for tensor in tensors:
        shape = shape_for(spec, tensor, batch_size)
        strings = tensor.datatype == "BYTES"
        arrays[tensor.name] = np.full(shape, b"", object) if strings else np.zeros(shape, DTYPES[tensor.datatype])
    return arrays


def datatype_of(array: NDArray[Any]) -> str:
    """Return the array's Open Inference Protocol datatype, or numpy's name if it has none."""
    if array.dtype.kind in STRING_KINDS:
        return "BYTES"
    return DATATYPES.get(array.dtype.newbyteorder("<"), str(array.dtype))


def check_outputs(spec: ModelSpec, batch_size: int, outputs: Mapping[str, NDArray[Any]]) -> None:
    """Raise `ModelFailed` naming model, field, got and wanted unless `outputs` fit the signature; `RowsFailed` if it is
    the number of rows that differs.
    """
    if fault := describe_mismatch(spec, batch_size, outputs):
        found = [outputs[tensor.name].shape[:1] for tensor in spec.outputs if tensor.name in outputs]
        has_other_rows = spec.batched and any(shape != (batch_size,) for shape in found)
        raise (RowsFailed if has_other_rows else ModelFailed)(f"model {spec.key}: {fault}")


def describe_mismatch(spec: ModelSpec, batch_size: int, outputs: Mapping[str, NDArray[Any]]) -> str:
    """Return field, got and wanted if `outputs` do not fit the signature; empty if they do."""
    wanted = [tensor.name for tensor in spec.outputs]
    if set(outputs) != set(wanted):
        return f"outputs: got {sorted(outputs)}, wanted {sorted(wanted)}"
    for tensor in spec.outputs:
        array = outputs[tensor.name]
        where = f"output {tensor.name!r}"
        if (datatype := datatype_of(array)) != tensor.datatype:
            return f"{where}: datatype: got {datatype}, wanted {tensor.datatype}"
        shape = (batch_size, *tensor.shape[1:]) if spec.batched else tensor.shape
        if not fits_shape(array.shape, shape):
            return f"{where}: shape: got {list(array.shape)}, wanted {list(shape)}"
    return ""
