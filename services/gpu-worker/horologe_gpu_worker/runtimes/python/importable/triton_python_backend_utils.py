"""The module of Triton's Python backend, for models with a class `TritonPythonModel` (see triton_model.py).

What is missing raises TritonModelException, and is noted in `refusals`: a model that catches the exception must not
answer with something else instead.
"""

from __future__ import annotations

import os
import struct
import sys
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

TYPES: dict[str, Any] = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32,
    "FP64": np.float64, "STRING": np.object_,
}  # fmt: skip
"""Triton's data types, whose numbers count from 1 in this order."""
TRITON_STRING_TO_NUMPY: dict[str, Any] = {f"TYPE_{name}": bool if name == "BOOL" else TYPES[name] for name in TYPES}
TRITONSERVER_RESPONSE_COMPLETE_FINAL: int = 1
refusals: list[str] = []
"""What the model has asked for and did not get, in this call of `execute`."""


class TritonModelException(Exception):
    """Raised by this module, and by models."""

    def message(self) -> str:
        return str(self)


def refuse(name: str) -> NoReturn:
    """Raise TritonModelException, and let the call fail even if the model catches it."""
    refusals.append(f"triton_python_backend_utils: {name} is not supported")
    raise TritonModelException(refusals[-1])


class TritonError:
    """The error of a response."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG, UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message = message
        self._code = code

    def __str__(self) -> str:
        return self._message

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code


class Tensor:
    """A named array in host memory."""

    def __init__(self, name: str, numpy_array: NDArray[Any]) -> None:
        if not isinstance(numpy_array, np.ndarray) or numpy_array.dtype.kind in "UV":
            kind = getattr(numpy_array, "dtype", type(numpy_array).__name__)
            raise TritonModelException(
                f"Tensor {name!r}: got {kind}, wanted an array of numbers, or np.object_ for text"
            )
        self._name = name
        self._array = numpy_array

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """Return a tensor that shares the memory of a DLPack object on the CPU."""
        return Tensor(name, np.from_dlpack(tensor))

    def to_dlpack(self) -> Any:
        return self._array.__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> NDArray[Any]:
        return self._array

    def triton_dtype(self) -> int | None:
        return numpy_to_triton_type(self._array.dtype.type)

    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    def is_cpu(self) -> bool:
        return True


class InferenceRequest:
    """The rows of one or several requests. It has their tensors, and nothing else of them."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        refuse("InferenceRequest: calls of other models from a model (BLS)")

    @classmethod
    def of(cls, inputs: Iterable[Tensor], outputs: Sequence[str], sender: Any = None) -> InferenceRequest:
        """Return a request for `execute`. `sender`: of the responses of a decoupled model."""
        request = cls.__new__(cls)
        request._inputs, request._outputs = list(inputs), list(outputs)  # type: ignore[attr-defined]
        request._sender = sender  # type: ignore[attr-defined]
        return request

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def requested_output_names(self) -> list[str]:
        return self._outputs

    def get_response_sender(self) -> Any:
        if self._sender is None:
            refuse("InferenceRequest.get_response_sender of a model that is not decoupled")
        return self._sender

    def is_cancelled(self) -> bool:
        return self._sender is not None and bool(self._sender.is_cancelled())

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        refuse(f"InferenceRequest.{name}")


class InferenceResponse:
    """The outputs of a request, or its error."""

    def __init__(
        self, output_tensors: list[Tensor] | None = None, error: TritonError | None = None, **options: Any
    ) -> None:
        if options:
            refuse(f"InferenceResponse: {', '.join(options)}")
        self._outputs = list(output_tensors or [])
        self._error = error

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error


class Logger:
    """Writes to the log of the worker."""

    INFO, WARNING, ERROR, VERBOSE = "info", "warning", "error", "verbose"

    @staticmethod
    def log(message: str, level: str = INFO) -> None:
        sys.stderr.write(f"{level}: {message}\n")

    log_info = staticmethod(partial(log, level=INFO))
    log_warn = staticmethod(partial(log, level=WARNING))
    log_error = staticmethod(partial(log, level=ERROR))
    log_verbose = staticmethod(partial(log, level=VERBOSE))


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    return next((tensor for tensor in inference_request.inputs() if tensor.name() == name), None)


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    return next((tensor for tensor in inference_response.output_tensors() if tensor.name() == name), None)


def get_input_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    return next((tensor for tensor in model_config.get("input", []) if tensor["name"] == name), None)


def get_output_config_by_name(model_config: Mapping[str, Any], name: str) -> Any:
    return next((tensor for tensor in model_config.get("output", []) if tensor["name"] == name), None)


def using_decoupled_model_transaction_policy(model_config: Mapping[str, Any]) -> bool:
    return bool(model_config.get("model_transaction_policy", {}).get("decoupled", False))


def get_model_dir() -> str:
    """Return the folder of the model's version."""
    return os.path.dirname(os.environ["HOROLOGE_MODEL_FILE"])


def triton_string_to_numpy(triton_type_string: str) -> Any:
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    return dict(enumerate(TYPES.values(), 1)).get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    kinds: dict[Any, int] = {kind: number for number, kind in enumerate(TYPES.values(), 1)}
    return kinds.get(np.object_ if data_type == np.bytes_ else np.dtype(data_type).type)


def serialize_byte_tensor(input_tensor: NDArray[Any]) -> bytes | None:
    """Return each element after its length in four bytes; None for an empty tensor and for numbers."""
    if not input_tensor.size or input_tensor.dtype.kind not in "OS":
        return None
    items = [item if isinstance(item, bytes) else str(item).encode() for item in input_tensor.ravel().tolist()]
    return b"".join(struct.pack("<I", len(item)) + item for item in items)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> NDArray[Any]:
    items, offset = [], 0
    while offset < len(encoded_tensor):
        (size,) = struct.unpack_from("<I", encoded_tensor, offset)
        items.append(bytes(encoded_tensor[offset + 4 : offset + 4 + size]))
        offset += 4 + size
    return np.array(items, np.object_)


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    refuse(name)
