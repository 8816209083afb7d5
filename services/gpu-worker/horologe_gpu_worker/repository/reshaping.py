"""Reshapes between the tensors of requests and those of a model (`reshape` in `model.toml`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from horologe_common.models import check_declared_shape
from horologe_common.status import InvalidInput, ModelFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from horologe_gpu_worker.repository.manifest_fields import Manifest, TensorEntry


class Reshaping:
    """The reshapes of some tensors. `outward`: from the model's shape to that of the requests, else the other way."""

    def __init__(self, entries: Iterable[TensorEntry], *, outward: bool = False) -> None:
        self._shapes = {
            entry.name: (entry.inner_sizes, entry.sizes) if outward else (entry.sizes, entry.inner_sizes)
            for entry in entries
            if entry.reshape is not None
        }

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def apply(self, arrays: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
        """Return the arrays in their other shapes. Raises `ModelFailed` for one that does not have its first shape."""
        if not self._shapes:
            return arrays
        return {name: self._apply(name, array) for name, array in arrays.items()}

    def _apply(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        if name not in self._shapes:
            return array
        before, after = self._shapes[name]
        if not fits_shape(array.shape, before):
            raise ModelFailed(f"tensor {name!r}: shape: got {list(array.shape)}, wanted {list(before)}")
        variable = iter(got for got, want in zip(array.shape, before, strict=True) if want == -1)
        return array.reshape([next(variable) if dim == -1 else dim for dim in after])


class Reshapes(NamedTuple):
    """The reshapes of a model."""

    inputs: Reshaping
    outputs: Reshaping


NO_RESHAPES = Reshapes(Reshaping(()), Reshaping(()))


def read_reshapes(manifest: Manifest) -> Reshapes:
    """Return the reshapes that a manifest declares."""
    return Reshapes(Reshaping(manifest.inputs), Reshaping(manifest.outputs, outward=True))


def fits_shape(got: Sequence[int], wanted: Sequence[int]) -> bool:
    """Return whether a shape has the wanted sizes, where -1 stands for any."""
    return len(got) == len(wanted) and all(want in (-1, size) for size, want in zip(got, wanted, strict=True))


def check_reshape(where: str, outer: Sequence[int], inner: Sequence[int]) -> None:
    """Raise `InvalidInput` unless both shapes always have the same number of elements."""
    check_declared_shape(f"{where}: reshape", inner)
    if _elements(outer) != _elements(inner):
        raise InvalidInput(
            f"{where}: reshape: got {list(inner)}, wanted as many elements and as many -1 as in {list(outer)}"
        )


def _elements(shape: Sequence[int]) -> tuple[int, int]:
    """Return the product of the fixed dimensions and the number of variable ones."""
    return math.prod(dim for dim in shape if dim != -1), list(shape).count(-1)
