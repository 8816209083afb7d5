"""Conversion of output tensors to values, and of an application's values to tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from horologe_common.application_answers import answer_tensors
from horologe_common.applications import Application
from horologe_common.status import InvalidInput
from horologe_common.wire.frames import decode_array, encode_array
from horologe_selector.core.predictions.tensor_values import extract_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLASSES = Application("digits", ("cnn",))
REGRESSION = Application("prices", ("trees",), task="regression")


def values(application: Application, **outputs: NDArray[Any]) -> tuple[float, ...]:
    tensors, buffers = zip(*(encode_array(name, array) for name, array in outputs.items()), strict=True)
    return extract_values(application, tensors, buffers)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "u1", "i4"])
def test_the_class_is_the_index_of_the_largest_score(dtype: str) -> None:
    scores = np.array([[0, 7, 2], [9, 1, 1]], dtype)
    assert values(CLASSES, scores=scores) == (1, 0)
    assert all(type(value) is float for value in values(CLASSES, scores=scores))


@pytest.mark.parametrize("dtype", ["u1", "i2", "i8", "u8", "?"])
@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_integers_are_labels(dtype: str, shape: tuple[int, ...]) -> None:
    assert values(CLASSES, label=np.array([1, 0], dtype).reshape(shape)) == (1, 0)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i4", "u8"])
@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_a_regression_predicts_numbers(dtype: str, shape: tuple[int, ...]) -> None:
    assert values(REGRESSION, price=np.array([3, 5], dtype).reshape(shape)) == (3, 5)


def test_the_declared_output_is_read_or_the_first() -> None:
    outputs = {"scores": np.eye(3, dtype="f4"), "label": np.array([5, 6, 7])}
    assert values(CLASSES, **outputs) == (0, 1, 2)
    assert values(Application("digits", ("cnn",), output="label"), **outputs) == (5, 6, 7)
    with pytest.raises(InvalidInput, match=r"output: got \['scores', 'label'\], wanted 'class' among them"):
        values(Application("digits", ("cnn",), output="class"), **outputs)
    with pytest.raises(InvalidInput, match="output"):
        extract_values(CLASSES, (), ())


@pytest.mark.parametrize(
    ("application", "array", "expected"),
    [
        (CLASSES, np.zeros((2, 3, 4), "f4"), r"FP32 \[2, 3, 4\]"),
        (CLASSES, np.zeros(2, "f4"), r"FP32 \[2\]"),
        (CLASSES, np.zeros((2, 1), "f4"), r"FP32 \[2, 1\]"),
        (CLASSES, np.zeros((), "i8"), r"INT64 \[\]"),
        (CLASSES, np.array([[0.5, np.nan]], "f4"), "not numbers"),
        (CLASSES, np.array([1 << 60]), "labels beyond"),
        (CLASSES, np.array(["cat"]), "BYTES"),
        (CLASSES, np.zeros((2, 0), "f4"), r"FP32 \[2, 0\]"),
        (REGRESSION, np.zeros((2, 2), "f4"), r"FP32 \[2, 2\]"),
        (REGRESSION, np.array(["1.5"]), "BYTES"),
        (REGRESSION, np.array([1.0, np.nan]), "finite"),
        (REGRESSION, np.array([np.inf], "f4"), "finite"),
    ],
)
def test_the_error_for_an_unusable_output_names_its_type_and_shape(
    application: Application, array: NDArray[Any], expected: str
) -> None:
    with pytest.raises(InvalidInput, match=f"output 'o': .*{expected}"):
        values(application, o=array)


@pytest.mark.parametrize(("application", "dtype"), [(CLASSES, np.int64), (REGRESSION, np.float64)])
def test_output_tensors_have_prediction_confidence_and_defaulted_per_row(application: Application, dtype: type) -> None:
    tensors, buffers = answer_tensors(application, [3.0, -1.0], [0.5, 0.0], [False, True])
    assert [tensor.name for tensor in tensors] == ["prediction", "confidence", "defaulted"]
    assert [tensor.nbytes for tensor in tensors] == list(map(len, buffers))
    arrays = list(map(decode_array, tensors, buffers))
    assert [array.dtype for array in arrays] == [dtype, np.float32, np.bool_]
    assert [array.tolist() for array in arrays] == [[3, -1], [0.5, 0], [False, True]]
