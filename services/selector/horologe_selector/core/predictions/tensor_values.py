"""Conversion of output tensors to one value per row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from horologe_common.applications import EXACT_INTEGER_LIMIT
from horologe_common.status import InvalidInput
from horologe_common.wire.frames import decode_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Tensor


def extract_values(application: Application, outputs: Sequence[Tensor], buffers: Sequence[Buffer]) -> tuple[float, ...]:
    """Return a model's prediction for each row, from the output that the application names or the first one.

    Task `classes`: whole numbers [rows] or [rows, 1] are labels; of scores [rows, classes] the index of the largest is
    the label. Task `regression`: any numbers [rows] or [rows, 1]. Raises `InvalidInput` for other outputs, for
    scores that are NaN, and for numbers that are not finite.
    """
    index = _output_index(application.output, outputs)
    tensor = outputs[index]
    if tensor.datatype == "BYTES":
        raise _unusable(tensor, "numbers")
    array = decode_array(tensor, buffers[index])
    if application.task == "regression":
        return _numbers(tensor, array)
    return _labels(tensor, array)


def _output_index(output: str, outputs: Sequence[Tensor]) -> int:
    if not output and outputs:
        return 0
    for index, tensor in enumerate(outputs):
        if tensor.name == output:
            return index
    raise InvalidInput(f"output: got {[tensor.name for tensor in outputs]}, wanted {output or 'one'!r} among them")


def _labels(tensor: Tensor, array: NDArray[np.generic]) -> tuple[float, ...]:
    kind = array.dtype.kind
    if array.ndim == 2 and array.shape[1] > 1 and kind in "fiu":
        if kind == "f" and np.isnan(array).any():
            raise InvalidInput(f"output {tensor.name!r}: got scores that are not numbers")
        return tuple(map(float, array.argmax(axis=1).tolist()))
    if kind in "iub" and (array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)):
        labels = array.ravel().tolist()
        if any(abs(label) > EXACT_INTEGER_LIMIT for label in labels):
            raise InvalidInput(f"output {tensor.name!r}: got labels beyond {EXACT_INTEGER_LIMIT}, wanted smaller ones")
        return tuple(map(float, labels))
    raise _unusable(tensor, "scores [rows, classes], or whole numbers [rows] or [rows, 1]")


def _numbers(tensor: Tensor, array: NDArray[np.generic]) -> tuple[float, ...]:
    if array.ndim != 1 and (array.ndim != 2 or array.shape[1] != 1):
        raise _unusable(tensor, "numbers [rows] or [rows, 1]")
    numbers = array.ravel()
    if not np.isfinite(numbers).all():
        raise InvalidInput(f"output {tensor.name!r}: got a number that is not finite, wanted finite numbers")
    return tuple(map(float, numbers.tolist()))


def _unusable(tensor: Tensor, wanted: str) -> InvalidInput:
    return InvalidInput(f"output {tensor.name!r}: got {tensor.datatype} {list(tensor.shape)}, wanted {wanted}")
