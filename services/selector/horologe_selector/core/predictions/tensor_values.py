"""Tensors to values and back: what a model of an application predicts for each row, and what is answered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from horologe_common.application_outputs import answer_tensors
from horologe_common.applications import EXACT
from horologe_common.status import InvalidInput
from horologe_common.wire.frames import decode_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_common.applications import Application
    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Tensor
    from horologe_selector.policy import Guess


def values_of(application: Application, outputs: Sequence[Tensor], buffers: Sequence[Buffer]) -> tuple[float, ...]:
    """The prediction for each row, from the application's output of a model, or the model's first.

    Classes: the label, of whole numbers [rows] or [rows, 1]; the place of the largest, of scores [rows, classes].
    Regression: the number, of any numbers [rows] or [rows, 1]. Raises `InvalidInput` for everything else, and where
    scores or numbers are not numbers.
    """
    at = _place(application.output, outputs)
    tensor = outputs[at]
    if tensor.datatype == "BYTES":
        raise _unfit(tensor, "numbers")
    array = decode_array(tensor, buffers[at])
    if application.task == "regression":
        return _numbers(tensor, array)
    return _labels(tensor, array)


def tensors_of(
    application: Application, guesses: Sequence[Guess], defaulted: Sequence[bool]
) -> tuple[tuple[Tensor, ...], list[bytes]]:
    """The answer of an application: `prediction` (INT64, of regression FP64), `confidence` (FP32), `defaulted` (BOOL),
    each [rows]."""
    values, confidences = [guess.value for guess in guesses], [guess.confidence for guess in guesses]
    return answer_tensors(application, values, confidences, defaulted)


def _place(output: str, outputs: Sequence[Tensor]) -> int:
    if not output and outputs:
        return 0
    for at, tensor in enumerate(outputs):
        if tensor.name == output:
            return at
    raise InvalidInput(f"output: got {[tensor.name for tensor in outputs]}, wanted {output or 'one'!r} among them")


def _labels(tensor: Tensor, array: NDArray[np.generic]) -> tuple[float, ...]:
    kind = array.dtype.kind
    if array.ndim == 2 and array.shape[1] > 1 and kind in "fiu":
        if kind == "f" and np.isnan(array).any():
            raise InvalidInput(f"output {tensor.name!r}: got scores that are not numbers")
        return tuple(map(float, array.argmax(axis=1).tolist()))
    if kind in "iub" and (array.ndim == 1 or (array.ndim == 2 and array.shape[1] == 1)):
        labels = array.ravel().tolist()
        if any(abs(label) > EXACT for label in labels):
            raise InvalidInput(f"output {tensor.name!r}: got labels beyond {EXACT}, wanted smaller ones")
        return tuple(map(float, labels))
    raise _unfit(tensor, "scores [rows, classes], or whole numbers [rows] or [rows, 1]")


def _numbers(tensor: Tensor, array: NDArray[np.generic]) -> tuple[float, ...]:
    if array.ndim != 1 and (array.ndim != 2 or array.shape[1] != 1):
        raise _unfit(tensor, "numbers [rows] or [rows, 1]")
    numbers = array.ravel()
    if not np.isfinite(numbers).all():
        raise InvalidInput(f"output {tensor.name!r}: got what is not a finite number")
    return tuple(map(float, numbers.tolist()))


def _unfit(tensor: Tensor, wanted: str) -> InvalidInput:
    return InvalidInput(f"output {tensor.name!r}: got {tensor.datatype} {list(tensor.shape)}, wanted {wanted}")
