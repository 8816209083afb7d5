"""Inference requests and responses as JSON (Open Inference Protocol v2, REST)."""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Raw

from horologe_common.models import DTYPES
from horologe_common.status import InvalidInput, TooLarge
from horologe_common.wire import Tensor
from horologe_common.wire.frames import decode_array
from horologe_frontend.oip.binary_encoding import MAX_STRINGS, join_strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from horologe_common.core.protocol import Buffer

FP32_MAX = 3.4028234663852886e38
DIAGNOSE_BYTES = 64 << 10
"""A request up to this long that is not JSON is read again by a parser that can name the field (1-2 ms)."""
LONG_BYTES = 64 << 10
"""JSON beyond this is looked at before it is read into numbers, which takes a second for 16 MB."""
_BRACKETS = re.compile(rb"(?:\s*\[)*")
_POSITION = re.compile(r"\(byte (\d+)\)")
_CONSTANT = re.compile(rb"-?(NaN|Infinity|nan|inf)")


class TensorJson(msgspec.Struct):
    """An input. `data` is left unread until its datatype is known."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: dict[str, Any] | None = None
    data: Raw = Raw()


class OutputJson(msgspec.Struct):
    name: str
    parameters: dict[str, Any] | None = None


class InferJson(msgspec.Struct):
    """The request; of an application too. Unknown fields are ignored: kserve's client, for one, adds `model_name`."""

    inputs: list[TensorJson]
    id: str | None = None
    parameters: dict[str, Any] | None = None
    outputs: list[OutputJson] | None = None
    context: str | None = None
    """This and `slo_ms`: the same as the parameters of these names."""
    slo_ms: float | None = None


class OutputTensorJson(msgspec.Struct, omit_defaults=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, Any] | None = None
    data: list[Any] | None = None


class AnswerJson(msgspec.Struct, omit_defaults=True):
    model_name: str
    outputs: list[OutputTensorJson]
    model_version: str = ""
    id: str = ""
    parameters: dict[str, Any] | None = None


_infer = msgspec.json.Decoder(InferJson)


def decode_infer(content: bytes | memoryview) -> InferJson:
    """Raises `InvalidInput` for anything that is not such a request, naming the place."""
    try:
        return _infer.decode(content)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"body: {error}") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(_not_json(bytes(content), str(error))) from error


def _not_json(content: bytes, error: str) -> str:
    position = _POSITION.search(error)
    constant = _CONSTANT.match(content, int(position[1])) if position else None
    if constant is None and position:
        constant = _CONSTANT.match(content, max(0, int(position[1]) - 1))
    if constant is None:
        return f"body: got something that is not JSON: {error}, wanted a JSON object"
    name = _input_with_constant(content) if len(content) <= DIAGNOSE_BYTES else None
    where = f"input {name!r}: data" if name is not None else "body"
    return f"{where}: got {constant[0].decode()} ({error}), wanted a number that JSON has; or send it as binary data"


def _input_with_constant(content: bytes) -> str | None:
    """Name of the input that holds NaN or Infinity, for the message only."""
    marker = object()
    try:
        inputs = json.loads(content, parse_constant=lambda _: marker)["inputs"]
        return next(
            (str(tensor["name"]) for tensor in inputs if any(v is marker for v in _leaves(tensor["data"]))), None
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, list):
        for item in data:
            yield from _leaves(item)
    else:
        yield data


def data_of(tensor: TensorJson) -> Buffer:
    """The bytes of a tensor whose data came as JSON, nested or flat.

    Raises `InvalidInput` naming the input for values of another type or out of range, and for another number of them.
    """
    depth, rank = _depth(tensor.data), len(tensor.shape)
    if depth not in (1, rank):
        wanted = "1" if rank < 2 else f"1 (flat) or {rank}"
        raise InvalidInput(f"input {tensor.name!r}: data: got lists nested {depth} deep, wanted {wanted}")
    if len(memoryview(tensor.data)) > LONG_BYTES and tensor.datatype != "BYTES":
        _check_commas(tensor)
    try:
        values = _decoder(tensor.datatype, depth).decode(tensor.data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"input {tensor.name!r}: data: {tensor.datatype}: {error}") from error
    if tensor.datatype == "BYTES":
        return join_strings(text.encode() for text in _flat_strings(tensor, values, depth))
    return _array(tensor, values, depth)


def _check_commas(tensor: TensorJson) -> None:
    """Between numbers there are commas only: more than they need are of more numbers."""
    wanted, got = math.prod(tensor.shape), bytes(tensor.data).count(b",") + 1
    if got > max(1, wanted):
        raise InvalidInput(
            f"input {tensor.name!r}: data: got {got} values, wanted {wanted} for shape {list(tensor.shape)}"
        )


def _array(tensor: TensorJson, values: list[Any], depth: int) -> Buffer:
    try:
        array = np.array(values, DTYPES[tensor.datatype])
    except (ValueError, OverflowError) as error:
        raise InvalidInput(f"input {tensor.name!r}: data: {tensor.datatype}: {error}") from error
    _check_shape(tensor, array.shape, depth)
    return array.tobytes()


def _flat_strings(tensor: TensorJson, values: list[Any], depth: int) -> Iterable[str]:
    if math.prod(tensor.shape) > MAX_STRINGS:
        raise TooLarge(f"input {tensor.name!r}: shape: got {list(tensor.shape)}, at most {MAX_STRINGS} strings")
    array = np.array(values, object)
    _check_shape(tensor, array.shape, depth)
    flat: list[str] = array.reshape(-1).tolist()
    return flat


def _check_shape(tensor: TensorJson, got: tuple[int, ...], depth: int) -> None:
    wanted = tensor.shape
    if depth == 1 and got != (math.prod(wanted),):
        raise InvalidInput(
            f"input {tensor.name!r}: data: got {got[0]} values, wanted {math.prod(wanted)} for shape {list(wanted)}"
        )
    if depth > 1 and got != wanted:
        raise InvalidInput(f"input {tensor.name!r}: data: got shape {list(got)}, wanted {list(wanted)}")


def _depth(data: Raw) -> int:
    brackets = _BRACKETS.match(memoryview(data))
    return brackets[0].count(b"[") if brackets else 0


@lru_cache(maxsize=256)
def _decoder(datatype: str, depth: int) -> msgspec.json.Decoder[list[Any]]:
    """A decoder of lists nested `depth` deep whose leaves are checked to be in the datatype's range."""
    kind: Any
    if datatype in ("BYTES", "BOOL"):
        kind = str if datatype == "BYTES" else bool
    elif datatype.startswith("FP"):
        kind = Annotated[float, Meta(ge=-FP32_MAX, le=FP32_MAX)] if datatype == "FP32" else float
    elif datatype == "UINT64":
        kind = Annotated[int, Meta(ge=0)]
    else:
        bits = 8 * DTYPES[datatype].itemsize - (datatype[0] == "I")
        least = -(1 << bits) if datatype[0] == "I" else 0
        kind = Annotated[int, Meta(ge=least, le=(1 << bits) - 1)]
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


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
