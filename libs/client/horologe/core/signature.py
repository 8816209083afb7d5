"""Signatures of models, and the conversion of a caller's arrays to tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.models import DTYPES, ModelSpec, TensorSpec
from horologe_common.status import InvalidInput, UnknownModel
from horologe_common.wire import ModelState, Tensor
from horologe_common.wire.frames import encode_array

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

FLOAT64 = np.dtype(np.float64)


class Signature:
    """The inputs of a model version by name. `only` is the name of the input if there is one."""

    __slots__ = ("inputs", "only", "slo_ns")

    def __init__(self, spec: ModelSpec) -> None:
        self.inputs: dict[str, tuple[TensorSpec, np.dtype[Any] | None]] = {
            tensor.name: (tensor, DTYPES.get(tensor.datatype)) for tensor in spec.inputs
        }
        self.only = spec.inputs[0].name if len(spec.inputs) == 1 else None
        self.slo_ns = spec.slo_ns


def choose_signature(states: Sequence[ModelState], model: str, version: str) -> Signature:
    """Return the signature of `version`; if it is empty, of the highest ready version. Raises `UnknownModel`."""
    fitting = [state for state in states if state.spec.name == model and version in ("", state.spec.version)]
    if not fitting:
        versions = ", ".join(state.spec.version for state in states) or "none"
        raise UnknownModel(f"model {model!r}: version: got {version!r}, known are: {versions}")
    return Signature(max(fitting, key=_rank).spec)


def _rank(state: ModelState) -> tuple[bool, int, str]:
    version = state.spec.version
    return state.state == "READY", int(version) if version.isdecimal() else -1, version


def encode_inputs(signature: Signature, inputs: Any) -> tuple[tuple[Tensor, ...], list[bytes]]:
    """Return headers and copies of the bytes of `inputs`: a mapping by tensor name, or the array of the only input.

    Raises `InvalidInput` for a value that cannot become a tensor. The server checks names, dtypes and shapes, because
    the cached signature may be that of an older version.
    """
    named: Iterable[tuple[Any, Any]]
    if isinstance(inputs, Mapping):
        named = inputs.items()
    elif signature.only is None:
        raise InvalidInput(f"inputs: got a single array, wanted a dict with {', '.join(signature.inputs)}")
    else:
        named = ((signature.only, inputs),)
    headers: list[Tensor] = []
    payloads: list[bytes] = []
    for name, value in named:
        header, payload = _tensor(signature, name, value)
        headers.append(header)
        payloads.append(payload)
    return tuple(headers), payloads


def _tensor(signature: Signature, name: Any, value: Any) -> tuple[Tensor, bytes]:
    spec, dtype = signature.inputs.get(name, (None, None))
    if spec is not None and type(value) is np.ndarray and value.dtype is dtype:  # 0.3 us instead of 2 us
        return Tensor(spec.name, spec.datatype, value.shape, value.nbytes), value.tobytes()
    if not isinstance(name, str):
        raise InvalidInput(f"inputs: names: got {name!r}, wanted strings")
    header, payload = encode_array(name, _convert(name, value, dtype))
    return header, bytes(payload)


def _convert(name: str, value: Any, dtype: np.dtype[Any] | None) -> NDArray[Any]:
    """Return `value` as an array of `dtype` if the conversion is allowed, else of its own dtype.

    Allowed are safe casts, float64 to narrower floats (unless it overflows), and for lists and scalars any number that
    the dtype can hold.
    """
    given = isinstance(value, np.ndarray)
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidInput(f"input {name!r}: got {type(value).__name__}, wanted an array: {error}") from error
    if dtype is None or array.dtype == dtype or not _castable(array, dtype, given):
        return array
    try:
        with np.errstate(over="raise"):
            return array.astype(dtype)
    except FloatingPointError:
        raise InvalidInput(f"input {name!r}: got values too large for {dtype.name}") from None


def _castable(array: NDArray[Any], dtype: np.dtype[Any], given: bool) -> bool:
    if np.can_cast(array.dtype, dtype, "safe") or array.size == 0:
        return not given or array.dtype.kind in "biuf"
    if array.dtype == FLOAT64 and dtype.kind == "f":
        return True
    if given or array.dtype.kind not in "iu":
        return False
    if dtype.kind == "f":
        return True
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    return limits is not None and limits.min <= int(array.min()) and int(array.max()) <= limits.max
