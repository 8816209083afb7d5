"""Inputs as arrays of the datatypes that a model has: no conversion changes a value, except that float64 is rounded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from horologe_common.models import DATATYPES
from horologe_common.status import InvalidInput
from horologe_common.string_tensors import as_array, element_name

FLOAT64 = np.dtype(np.float64)
FOREIGN = {("torch", "Tensor"), ("PIL.Image", "Image")}
"""Classes of other libraries that are accepted as inputs."""
NUMBERS = "biuf"
"""numpy's kinds of dtypes that are converted."""
FIRST_GAP = 2.0**53
"""Up to here float64 has every integer."""


def convert_input(where: str, value: Any, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    """Return `value` as an array of `dtype`. An array that holds no numbers, or is for a model of text, keeps its own.

    Raises `InvalidInput`, with `where` and the first value that `dtype` cannot hold.
    """
    value = foreign_array(where, value)
    try:
        array = as_array(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"{where}: got {type(value).__name__}, wanted an array: {error}") from error
    if not isinstance(value, np.ndarray):
        _check_mixed_list(where, value, array)
    if dtype is None or array.dtype == dtype or array.dtype.kind not in NUMBERS:
        return array
    return convert_numbers(where, array, dtype)


def convert_numbers(where: str, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return numbers as `dtype`. Raises `InvalidInput` for a value that changes, except that float64 is rounded."""
    if np.can_cast(array.dtype, dtype, "safe") and not _has_gaps(array.dtype, dtype):
        return array.astype(dtype)
    rounded = dtype.kind == "f" and array.dtype.kind == "f" and array.dtype.itemsize == FLOAT64.itemsize
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        fits = np.isfinite(converted) | ~np.isfinite(array) if rounded else _is_exact(array, converted)
    if not fits.all():
        index = int(np.argmin(fits))
        what = "in the range of" if rounded else "that can be stored exactly as"
        got = f"{element_name(array.shape, index)}: got {array.flat[index].item()!r} ({array.dtype.name})"
        raise InvalidInput(f"{where}: {got}, wanted a value {what} {DATATYPES[dtype]}")
    return converted


def _has_gaps(integers: np.dtype[Any], floats: np.dtype[Any]) -> bool:
    """Return whether integers of 8 bytes become floats, which numpy calls safe."""
    return integers.kind in "iu" and floats.kind == "f" and integers.itemsize >= FLOAT64.itemsize


def _is_exact(array: NDArray[Any], converted: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which values are equal after a conversion.

    Floats outside the range of integers are never converted back: their result depends on the processor.
    """
    exact: NDArray[np.bool_]
    given, wanted = array.dtype.kind, converted.dtype.kind
    if wanted == "b":
        exact = (array == 0) | (array == 1)
    elif given == "f" and wanted == "f":
        exact = (converted.astype(array.dtype) == array) | np.isnan(array)
    elif given == "f":
        exact = _in_range(array, converted.dtype) & (np.trunc(array) == array)
    elif wanted == "f":
        inside = _in_range(converted, array.dtype)
        exact = inside & (np.where(inside, converted, 0).astype(array.dtype) == array)
    else:
        exact = (converted.astype(array.dtype) == array) & ((converted < 0) == (array < 0))
    return exact


def _in_range(floats: NDArray[Any], integers: np.dtype[Any]) -> NDArray[np.bool_]:
    """Return which floats lie in the range of the integers, whose bounds are exact in float64."""
    limits = np.iinfo(integers)
    wide = floats.astype(np.promote_types(floats.dtype, FLOAT64))
    inside: NDArray[np.bool_] = (wide >= float(limits.min)) & (wide < float(int(limits.max) + 1))
    return inside


def _check_mixed_list(where: str, value: Any, array: NDArray[Any]) -> None:
    """Raise `InvalidInput` for an integer that numpy has changed because floats are in the same list."""
    if array.dtype != FLOAT64 or not array.size or not (np.abs(array) >= FIRST_GAP).any():
        return
    for index, (item, number) in enumerate(zip(np.asarray(value, object).flat, array.ravel().tolist(), strict=True)):
        if isinstance(item, int | np.integer) and int(item) != number:
            place = element_name(array.shape, index)
            raise InvalidInput(f"{where}: {place}: got {item} beside floats, wanted a value that float64 has")


def foreign_array(where: str, value: Any) -> Any:
    """Return a torch tensor, a PIL image, or a list of them of equal shapes, as an array. Return others unchanged.

    A tensor of bfloat16, which numpy lacks, becomes float32. The array may share memory with the tensor. Raises
    `InvalidInput` for what has no array, such as images of different sizes.
    """
    try:
        if isinstance(value, list | tuple):
            return np.stack([_foreign_array(item) for item in value]) if value and _library(value[0]) else value
        return _foreign_array(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidInput(f"{where}: got {type(value).__name__}, wanted an array: {error}") from error


def _foreign_array(value: Any) -> Any:
    library = _library(value)
    if library == "torch":
        tensor = value.detach().cpu()
        return (tensor.float() if "bfloat16" in str(tensor.dtype) else tensor).numpy()
    if library == "PIL":
        if value.mode == "P":
            raise ValueError("an image in mode P has numbers of a palette, call convert('RGB')")
        return np.asarray(value)
    return value


def _library(value: Any) -> str:
    """Return "torch" or "PIL" for their tensors and images, else nothing. Imports neither."""
    for kind in type(value).__mro__:
        if (kind.__module__, kind.__name__) in FOREIGN:
            return kind.__module__.partition(".")[0]
    return ""
