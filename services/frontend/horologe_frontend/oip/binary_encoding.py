"""Extensions of the Open Inference Protocol beyond JSON: binary tensor data, raw requests, classification.

A binary request or response is a JSON header, followed by the raw bytes of the tensors that have no `data`.
"""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.models import DTYPES
from horologe_common.status import InvalidInput, TooLarge
from horologe_common.string_tensors import MAX_STRINGS, check_string_tensor, join_strings
from horologe_common.wire import Tensor
from horologe_common.wire.frames import decode_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec, TensorSpec
    from horologe_frontend.http.steps import Steps

HEADER_LENGTH = b"inference-header-content-length"
NUMBER_CODES = {
    "BOOL": "?", "UINT8": "B", "UINT16": "H", "UINT32": "I", "UINT64": "Q",
    "INT8": "b", "INT16": "h", "INT32": "i", "INT64": "q", "FP32": "f", "FP64": "d",
}  # fmt: skip
"""Datatypes with a JSON form other than BYTES -> format of the module `struct`."""
CLASSIFY_VALUES = 16 << 10
"""Values that are sorted in one step: about 1 ms."""


@lru_cache(maxsize=4096)
def number_struct(datatype: str, count: int) -> struct.Struct:
    """Return the packer of `count` numbers: for 16 floats, it is 4 times as fast as numpy."""
    return struct.Struct(f"<{count}{NUMBER_CODES[datatype]}")


def split_body(body: bytes, header_length: bytes) -> tuple[memoryview, memoryview]:
    """Return the JSON and the binary data. Raise `InvalidInput` unless the length is a number within the body."""
    try:
        length = int(header_length) if header_length.isdigit() else -1
    except ValueError:
        length = -1
    if not 0 <= length <= len(body):
        got = header_length[:40].decode("latin-1")
        raise InvalidInput(f"Inference-Header-Content-Length: got {got!r}, wanted 0 to {len(body)}, the body's length")
    view = memoryview(body)
    return view[:length], view[length:]


class BinaryData:
    """The bytes after the JSON, which are consumed in the order of the inputs."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._offset = 0

    def pop_bytes(self, name: str, size: object) -> memoryview:
        """Return the next `size` bytes for the input `name`. Raise `InvalidInput` if there are fewer."""
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise InvalidInput(f"input {name!r}: binary_data_size: got {size!r}, wanted a number of bytes")
        remaining = len(self._view) - self._offset
        if size > remaining:
            raise InvalidInput(f"input {name!r}: binary_data_size: got {size}, but only {remaining} bytes are left")
        self._offset += size
        return self._view[self._offset - size : self._offset]

    def check_consumed(self) -> None:
        """Raise `InvalidInput` unless all bytes were consumed."""
        if remaining := len(self._view) - self._offset:
            raise InvalidInput(f"body: got {remaining} bytes after the last binary input, wanted none")


def check_bytes(
    name: str, datatype: str, shape: tuple[int, ...], view: Buffer, field: str = "binary_data_size"
) -> None:
    """Raise `InvalidInput`, naming `field`, unless the bytes are a tensor of this supported datatype and shape."""
    if datatype == "BYTES":
        check_string_tensor(f"input {name!r}", shape, view, text=False)
    elif len(view) != (size := math.prod(shape) * DTYPES[datatype].itemsize):
        raise InvalidInput(f"input {name!r}: {field}: got {len(view)}, wanted {size} for {datatype}{list(shape)}")


def raw_input(spec: ModelSpec, view: memoryview) -> tuple[Tensor, memoryview]:
    """Return the only input of a raw request, whose body is that tensor. Raise `InvalidInput` if it fits no shape."""
    if len(spec.inputs) != 1:
        raise InvalidInput(f"body: got a raw request, wanted JSON: model {spec.name} has {len(spec.inputs)} inputs")
    wanted = spec.inputs[0]
    if wanted.datatype == "BYTES":
        view = memoryview(join_strings([bytes(view)]))
    return Tensor(wanted.name, wanted.datatype, _raw_shape(spec, wanted, len(view)), len(view)), view


def _raw_shape(spec: ModelSpec, wanted: TensorSpec, size: int) -> tuple[int, ...]:
    """Return the shape that the size implies: one variable dimension is computed.

    With a variable batch dimension and one other variable dimension, the batch is 1. Example: 24 bytes for
    FP32[-1, -1] are of shape [1, 6].
    """
    shape = list(wanted.shape)
    if spec.batched and shape.count(-1) > 1 and shape[0] == -1:
        shape[0] = 1
    if shape.count(-1) > 1:
        raise InvalidInput(f"body: got a raw request, wanted JSON: {wanted.name!r} is of shape {list(wanted.shape)}")
    itemsize = size if wanted.datatype == "BYTES" else DTYPES[wanted.datatype].itemsize
    fixed = math.prod(dim for dim in shape if dim != -1) * itemsize
    if -1 in shape and fixed and size and size % fixed == 0:
        shape[shape.index(-1)] = size // fixed
    elif -1 in shape or fixed != size:
        raise InvalidInput(f"body: got {size} bytes, wanted {fixed} for {wanted.datatype}{list(wanted.shape)}")
    return tuple(shape)


def _order(values: NDArray[Any]) -> NDArray[Any]:
    """Return the indices of the values along the last axis, highest value first, of equal values the first one."""
    order: NDArray[Any] = np.argsort(-values.astype(np.float64), axis=-1, kind="stable")
    return order


def _highest(row: NDArray[Any], count: int, step_values: int) -> Steps[NDArray[Any]]:
    """Return the indices of the `count` highest values of a long row."""
    best, step = np.empty(0, np.int64), max(step_values, count)
    for begin in range(0, len(row), step):
        indices = np.concatenate((best, np.arange(begin, min(begin + step, len(row)))))
        best = np.sort(indices[_order(row[indices])[:count]])
        yield best.nbytes
    highest: NDArray[Any] = best[_order(row[best])]
    return highest


def classify(
    tensor: Tensor, buffer: Buffer, classes: int, labels: Sequence[str] = (), step_values: int = CLASSIFY_VALUES
) -> Steps[tuple[Tensor, Buffer]]:
    """Return the `classes` highest values of each row as BYTES `value:index:label`, highest first.

    A class without a label is `value:index`.
    Raise `InvalidInput` for other outputs than rows of numbers, and `TooLarge` for more than `MAX_STRINGS` values.
    """
    if tensor.datatype in ("BYTES", "BOOL") or not tensor.shape:
        raise InvalidInput(f"output {tensor.name!r}: classification: got {tensor.datatype}, wanted rows of numbers")
    array = decode_array(tensor, buffer)
    rows = array.reshape(array.shape[0], -1) if array.ndim > 1 else array.reshape(1, -1)
    count = min(classes, rows.shape[1])
    if count * rows.shape[0] > MAX_STRINGS:
        got = f"the {count} highest values of {rows.shape[0]} rows"
        raise TooLarge(f"output {tensor.name!r}: classification: got {got}, wanted at most {MAX_STRINGS} values")
    suffixes = {index: f":{label}" for index, label in enumerate(labels) if label}
    form = "{:f}:{}" if array.dtype.kind == "f" else "{}:{}"
    texts: list[bytes] = []
    block = max(1, step_values // max(1, rows.shape[1]))
    for begin in range(0, rows.shape[0], block):
        part = rows[begin : begin + block]
        order = (yield from _highest(part[0], count, step_values))[None] if block == 1 else _order(part)[:, :count]
        texts += [
            (form.format(row[index], index) + suffixes.get(index, "")).encode()
            for row, best in zip(part, order, strict=True)
            for index in best.tolist()
        ]
        yield sum(map(len, texts))
    payload = join_strings(texts)
    shape = (rows.shape[0], count) if array.ndim > 1 else (count,)
    return Tensor(tensor.name, "BYTES", shape, len(payload)), payload
