"""Conversion of numbers to the datatypes of a model: no value changes, except that float64 is rounded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from horologe.core.input_arrays import convert_input
from horologe_common.models import DTYPES
from horologe_common.status import InvalidInput

EXTREMES = [0, 1, 2, -1, -128, 127, 255, 256, 2**11, 2**11 + 1, 2**24, 2**24 + 1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]
LARGEST = {"FP16": float(np.finfo(np.float16).max), "FP32": float(np.finfo(np.float32).max)}
NUMBERS = [name for name in DTYPES if name != "BOOL"]


def converted(value: Any, datatype: str) -> list[Any]:
    array = convert_input("input 'x'", value, DTYPES[datatype])
    assert array.dtype == DTYPES[datatype]
    numbers: list[Any] = array.tolist()
    return numbers


def values_of(dtype: np.dtype[Any]) -> list[Any]:
    """Return the values that every conversion is tested with: those that an array of `dtype` holds."""
    if dtype.kind == "f":
        limits = np.finfo(dtype)
        named = [0.5, float(limits.max), float(limits.tiny), 2.0**31, 2.0**63, 2.0**64, math.inf, -math.inf, math.nan]
        held = [
            dtype.type(value).item() for value in (*map(float, EXTREMES), *named) if abs(value) <= float(limits.max)
        ]
        return [*held, math.inf, -math.inf, math.nan]
    limits_of_integers = np.iinfo(dtype)
    inside = [value for value in EXTREMES if limits_of_integers.min <= value <= limits_of_integers.max]
    return [*inside, int(limits_of_integers.max)]


def is_equal(left: Any, right: Any) -> bool:
    return bool(left == right or (left != left and right != right))


def is_held(value: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether `dtype` has exactly this value."""
    if dtype.kind == "f":
        with np.errstate(all="ignore"):
            return is_equal(np.array([value]).astype(dtype)[0].item(), value)
    limits = np.iinfo(dtype)
    return math.isfinite(value) and value == int(value) and limits.min <= value <= limits.max


@pytest.mark.parametrize("wanted", NUMBERS)
@pytest.mark.parametrize("given", NUMBERS)
def test_each_value_arrives_unchanged_or_is_named(given: str, wanted: str) -> None:
    rounds = given == "FP64" and wanted in ("FP16", "FP32")
    for value in values_of(DTYPES[given]):
        array = np.array([value], DTYPES[given])
        if is_held(value, DTYPES[wanted]):
            assert is_equal(converted(array, wanted)[0], value)
        elif rounds and abs(value) <= LARGEST[wanted]:
            assert math.isclose(converted(array, wanted)[0], value, rel_tol=1e-3, abs_tol=1e-7)
        else:
            with pytest.raises(InvalidInput) as caught:
                converted(array, wanted)
            assert f"element [0]: got {value!r} ({array.dtype.name})" in caught.value.reason
            assert caught.value.reason.endswith(f" {wanted}")


@pytest.mark.parametrize(
    ("value", "datatype", "expected"),
    [
        ([[1, 2, 3, 4]], "FP32", [[1.0, 2.0, 3.0, 4.0]]),
        (np.array([[1, 2]]), "FP32", [[1.0, 2.0]]),
        (np.ones(2), "UINT8", [1, 1]),
        (np.array([0.5], np.float32), "FP16", [0.5]),
        (np.array([True, False]), "FP16", [1.0, 0.0]),
        ([0, 1], "BOOL", [False, True]),
        ([0.1], "FP32", [float(np.float32(0.1))]),
        (np.array([7], ">i4"), "INT64", [7]),
        (np.array([0.1], ">f8"), "FP32", [float(np.float32(0.1))]),
        (7, "INT8", 7),
        ([], "INT64", []),
        ([2**53, 0.5], "FP64", [2.0**53, 0.5]),
    ],
)
def test_conversions(value: Any, datatype: str, expected: Any) -> None:
    assert converted(value, datatype) == expected


@pytest.mark.parametrize(
    ("value", "datatype", "reason"),
    [
        (np.array([[1, 2**53 + 1, 2**63 - 1]]), "FP64", "element [0, 1]: got 9007199254740993 (int64), wanted"),
        (np.array([2**63 - 1]), "FP64", "got 9223372036854775807 (int64), wanted a value that can be stored exactly"),
        ([[300, 2]], "UINT8", "element [0, 0]: got 300 (int64), wanted a value that can be stored exactly as UINT8"),
        ([2**24 + 1], "FP32", "got 16777217 (int64)"),
        (np.array([1e300]), "FP32", "element [0]: got 1e+300 (float64), wanted a value in the range of FP32"),
        (np.array([0.1], np.float32), "FP16", "exactly as FP16"),
        (np.array([1, 0.5]), "INT64", "element [1]: got 0.5 (float64)"),
        (np.array([math.nan]), "INT64", "got nan"),
        ([0, 2], "BOOL", "element [1]: got 2"),
        ([2**53 + 1, 0.5], "FP64", "element [0]: got 9007199254740993 beside floats"),
        ([[2**63 + 1], [-1]], "INT64", "element [0, 0]: got 9223372036854775809"),
    ],
)
def test_the_first_value_that_does_not_fit_is_named(value: Any, datatype: str, reason: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        converted(value, datatype)
    assert caught.value.reason.startswith("input 'x': element")
    assert reason in caught.value.reason


@pytest.mark.parametrize("value", [["a"], np.ones(1, complex)])
def test_what_holds_no_numbers_is_left_to_the_check_of_the_server(value: Any) -> None:
    assert convert_input("input 'x'", value, DTYPES["FP32"]).dtype.kind in "Oc"
