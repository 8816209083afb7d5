"""Output tensors in other forms than their bytes: as JSON values, as the classes with the highest values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.status import InvalidInput
from horologe_common.wire import Tensor
from horologe_common.wire.frames import decode_array
from horologe_frontend.oip.binary_encoding import join_strings

if TYPE_CHECKING:
    from horologe_common.core.protocol import Buffer


def values_of(tensor: Tensor, buffer: Buffer) -> list[Any]:
    """The values, flat and row-major. NaN and infinities become null: JSON has no numbers for them.

    Raises `InvalidInput` for what has no JSON form.
    """
    if tensor.datatype == "FP16":
        raise InvalidInput(f"output {tensor.name!r}: FP16 has no JSON form: ask for it with binary_data")
    values: list[Any] = decode_array(tensor, buffer).reshape(-1).tolist()
    if tensor.datatype != "BYTES":
        return values
    try:
        return [value.decode() for value in values]
    except UnicodeDecodeError as error:
        raise InvalidInput(f"output {tensor.name!r}: is not UTF-8 text: ask for it with binary_data") from error


def classify(tensor: Tensor, buffer: Buffer, classes: int) -> tuple[Tensor, Buffer]:
    """The classification extension: per row the highest values as BYTES `value:index`, highest first."""
    if tensor.datatype in ("BYTES", "BOOL") or not tensor.shape:
        raise InvalidInput(f"output {tensor.name!r}: classification: got {tensor.datatype}, wanted rows of numbers")
    array = decode_array(tensor, buffer)
    rows = array.reshape(array.shape[0], -1) if array.ndim > 1 else array.reshape(1, -1)
    count = min(classes, rows.shape[1])
    order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, :count]
    texts = [f"{row[index]:f}:{index}".encode() for row, best in zip(rows, order, strict=True) for index in best]
    payload = join_strings(texts)
    shape = (rows.shape[0], count) if array.ndim > 1 else (count,)
    return Tensor(tensor.name, "BYTES", shape, len(payload)), payload
