"""Tensors in messages: the bytes of inputs, raw or in typed lists, and the fields of raw outputs."""

from __future__ import annotations

import math
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from horologe_common.core.varint import encode_varint
from horologe_common.status import InvalidInput, TooLarge
from horologe_common.string_tensors import MAX_STRINGS, join_strings
from horologe_frontend.oip.binary_encoding import number_struct

if TYPE_CHECKING:
    from horologe_common.core.protocol import Buffer
    from horologe_frontend.http.steps import Steps

CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
"""Datatype -> the field of InferTensorContents that holds its values. FP16 has none."""
STEP_VALUES = 16 << 10
"""Values that are converted in one step: about 1 ms."""
WIRE_BYTES = 2
"""Wire type of fields with a length."""


def read_contents(tensor: Any, held_bytes: int = 0) -> Steps[Buffer]:
    """Return the bytes of an input whose values are in a typed list. `held_bytes`: what the request holds already.

    Raise `InvalidInput` for another list than that of the datatype, a wrong number of values, or a value out of range;
    `TooLarge` for too many strings.
    """
    where, datatype, shape = f"input {tensor.name!r}", tensor.datatype, list(tensor.shape)
    field = CONTENTS.get(datatype)
    if field is None:
        raise InvalidInput(f"{where}: contents: {datatype} has no typed list: send it in raw_input_contents")
    others = [item.name for item, _ in tensor.contents.ListFields() if item.name != field]
    if others:
        raise InvalidInput(f"{where}: contents: got {others[0]}, wanted {field} for {datatype}")
    values, wanted = getattr(tensor.contents, field), math.prod(shape)
    if len(values) != wanted:
        raise InvalidInput(f"{where}: contents.{field}: got {len(values)} values, wanted {wanted} for shape {shape}")
    if datatype == "BYTES":
        if wanted > MAX_STRINGS:
            raise TooLarge(f"{where}: shape: got {shape}, at most {MAX_STRINGS} strings")
        return join_strings(values)
    parts: list[bytes] = []
    for begin in range(0, wanted, STEP_VALUES):
        part = values[begin : begin + STEP_VALUES]
        try:
            parts.append(number_struct(datatype, len(part)).pack(*part))
        except struct.error as error:
            raise InvalidInput(f"{where}: contents.{field}: {datatype}: {error}") from error
        if wanted > STEP_VALUES:
            yield held_bytes + sum(map(len, parts))
    return b"".join(parts)


@lru_cache(maxsize=4096)
def bytes_field(number: int, size: int) -> bytes:
    """Return the tag and the length that stand before the `size` bytes of a field."""
    return encode_varint(number << 3 | WIRE_BYTES) + encode_varint(size)
