"""Made-up inputs: the shapes and values on which a model is warmed up and measured before its first request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.models import DTYPES
from horologe_common.status import InvalidInput
from horologe_gpu_worker.repository.model_signature import shape_for, zeros

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from horologe_common.models import ModelSpec

FIXED_PART = "wanted the sizes of `shape`, and -1 or a size of at least 0 for each variable dimension"


def make_up_inputs(spec: ModelSpec, values: Mapping[str, Any], batch_size: int) -> dict[str, NDArray[Any]]:
    """Return inputs of the warm-up shapes: zeros and empty strings, or the `warmup` values by input name."""
    arrays = zeros(spec, spec.inputs, batch_size)
    for tensor in spec.inputs:
        if tensor.name in values:
            arrays[tensor.name][...] = warmup_array(tensor.datatype, values[tensor.name])
    return arrays


def warmup_array(datatype: str, value: Any) -> NDArray[Any]:
    """Return a `warmup` value as an array. Raises ValueError unless it has elements of the datatype."""
    given = np.array(value, object)
    if datatype == "BYTES":
        if not all(isinstance(element, str) for element in given.flat):
            raise ValueError("wanted text")
        return np.array([element.encode() for element in given.flat], object).reshape(given.shape)
    if any(isinstance(element, str | list) for element in given.flat):
        raise ValueError("wanted numbers in lists of equal lengths")
    dtype = DTYPES[datatype]
    try:
        with np.errstate(over="raise"):
            array = given.astype(dtype)
    except (OverflowError, FloatingPointError, TypeError) as error:
        raise ValueError(str(error)) from error
    if dtype.kind in "iub" and not all(
        element == int(cast) for element, cast in zip(given.flat, array.flat, strict=True)
    ):
        raise ValueError(f"wanted elements of {datatype}")
    return array


def check_warmup(where: str, datatype: str, shape: tuple[int, ...], value: Any, warmup_shape: tuple[int, ...]) -> None:
    """Raise `InvalidInput` naming the field unless `warmup` and `warmup_shape` fit the input's datatype and shape."""
    fits = len(warmup_shape) == len(shape) and all(
        given in (-1, dim) or (dim == -1 and given >= 0) for given, dim in zip(warmup_shape, shape, strict=True)
    )
    if warmup_shape and not fits:
        raise InvalidInput(f"{where}: warmup_shape: got {list(warmup_shape)} for {list(shape)}, {FIXED_PART}")
    if datatype == "BYTES" and value == 0:  # the default
        return
    try:
        warmup_array(datatype, value)
    except ValueError as error:
        raise InvalidInput(
            f"{where}: warmup: got {value!r}, wanted an element of the {datatype} tensor, or lists of them: {error}"
        ) from error


def warmup_shapes(
    spec: ModelSpec, declared: Mapping[str, tuple[int, ...]], suggested: Mapping[str, tuple[int, ...]]
) -> tuple[tuple[int, ...], ...]:
    """Return `ModelSpec.warmup_shapes`: the declared shapes, else those that the runtime suggests; empty if all are -1.

    Both are by input name. Raises `InvalidInput` if a shape has another size for the
    rows than -1, or exceeds `max_length`.
    """
    rows = (-1,) if spec.batched else ()
    shapes = {tensor.name: tensor.shape for tensor in spec.inputs}
    shapes |= {name: (*rows, *shape[len(rows) :]) for name, shape in suggested.items()}
    shapes |= {name: shape for name, shape in declared.items() if name in shapes}
    for name, shape in shapes.items():
        if spec.batched and shape[0] != -1:
            raise InvalidInput(f"{name}: warmup_shape: got {list(shape)}, wanted -1 for the rows")
        if spec.max_length and any(shape[at] > spec.max_length for at in spec.variable_dimensions.get(name, ())):
            raise InvalidInput(
                f"{name}: warmup_shape: got {list(shape)}, wanted at most {spec.max_length} (max_length)"
            )
    given = tuple(shapes[tensor.name] for tensor in spec.inputs)
    return () if given == tuple(tensor.shape for tensor in spec.inputs) else given


def check_broadcast(spec: ModelSpec, values: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` unless every `warmup` value can be broadcast to the shape of its input, with any rows."""
    for tensor in spec.inputs:
        got, wanted = np.array(values.get(tensor.name, 0), object).shape, shape_for(spec, tensor, 1)
        pairs = zip(reversed(got), reversed(wanted), strict=False)
        if len(got) > len(wanted) or any(size not in (1, dim) for size, dim in pairs):
            raise InvalidInput(
                f"{tensor.name}: warmup: got lists of shape {list(got)}, wanted a shape that can be broadcast to "
                f"{list(wanted)}"
            )
