"""JSON of inference requests and responses (Open Inference Protocol v2, REST), and tensors as JSON values."""

from __future__ import annotations

import json
import math
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta, Raw

from horologe_common.models import DTYPES, MAX_DIMS, check_tensor
from horologe_common.status import InvalidInput, TooLarge
from horologe_common.string_tensors import MAX_STRINGS, SHOWN_BYTES, element_name, join_strings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_frontend.http.steps import Steps

FP32_MAX = 3.4028234663852886e38
UINT64_MAX = (1 << 64) - 1
DIAGNOSE_BYTES = 64 << 10
"""An invalid request up to this size is parsed again, in 1 to 2 ms, to name the field in the error message."""
NOT_STRUCTURE = bytes(code for code in range(256) if code not in b"[],")
STEP_BYTES = 32 << 10
"""Text of numbers that is decoded in one step: about 1 ms."""
LONG_BYTES = 64 << 10
"""Longer data is checked against the signature first, and is converted in steps: reading 16 MB takes a second."""
PARAMETERS_BYTES = 64 << 10
"""Maximum size of a request's parameters. Decoded, they take up to 25 times as much memory."""
MAX_ELEMENTS = 1 << 40
"""Maximum number of elements of a shape, with zeros counted as ones: numpy computes this product in 64 bits, even for
empty tensors."""
_INDEX = re.compile(r"\$\[(\d+)\]")
_BRACKETS = re.compile(rb"(?:\s*\[)*")
_POSITION = re.compile(r"\(byte (\d+)\)")
_CONSTANT = re.compile(rb"-?(NaN|Infinity|nan|inf)")


Scalar = str | int | float | bool | None
"""Values of the parameters of tensors."""
VALUES_SCHEMA = {"type": "array", "items": {"type": ["number", "string", "boolean", "null", "array"]}}
"""Schema of a tensor: elements, or nested lists of elements."""
RawValues = Annotated[Raw, Meta(extra_json_schema=VALUES_SCHEMA)]
PARAMETERS_SCHEMA = {"anyOf": [{"$ref": "#/components/schemas/ParametersJson"}, {"type": "null"}]}
RawParameters = Annotated[Raw, Meta(extra_json_schema=PARAMETERS_SCHEMA)]


class TensorJson(msgspec.Struct, forbid_unknown_fields=True):
    """An input. `data` stays undecoded until its datatype is checked."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    parameters: dict[str, Scalar] | None = None
    data: RawValues = msgspec.field(default_factory=Raw)


class OutputJson(msgspec.Struct, forbid_unknown_fields=True):
    """A requested output."""

    name: str
    parameters: dict[str, Scalar] | None = None


class InferJson(msgspec.Struct, forbid_unknown_fields=True):
    """A request for a model or an application."""

    inputs: list[TensorJson]
    id: str | None = None
    parameters: RawParameters = msgspec.field(default_factory=Raw)
    outputs: list[OutputJson] | None = None
    context: str | None = None
    """`context` and `slo_ms` equal the parameters of these names."""
    slo_ms: float | None = None
    model_name: Any = None
    """Added by kserve's client. The path names the model."""


_infer = msgspec.json.Decoder(InferJson)
_parameters = msgspec.json.Decoder(dict[str, Any] | None)


def decode_infer(content: bytes | memoryview) -> InferJson:
    """Decode a request. Raise `InvalidInput`, naming the place, for anything else."""
    try:
        return _infer.decode(content)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"body: {error}") from error
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(_not_json(bytes(content), str(error))) from error


def decode_parameters(content: Raw) -> dict[str, Any]:
    """Decode the parameters of a request. Raise `InvalidInput` or `TooLarge`."""
    size = len(memoryview(content))
    if size > PARAMETERS_BYTES:
        raise TooLarge(f"parameters: got {size} bytes, at most {PARAMETERS_BYTES}")
    try:
        return (_parameters.decode(content) if size else None) or {}
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"parameters: {error}") from error


def _not_json(content: bytes, error: str) -> str:
    """Return the error message. If the cause is a NaN, an Infinity, or no UTF-8, name the input that holds it."""
    position = _POSITION.search(error)
    constant = _CONSTANT.match(content, int(position[1])) if position else None
    if constant is None and position:
        constant = _CONSTANT.match(content, max(0, int(position[1]) - 1))
    if constant is None:
        if len(content) <= DIAGNOSE_BYTES and (fault := _input_without_text(content)):
            return fault
        return f"body: got something that is not JSON: {error}, wanted a JSON object"
    name = _input_with_constant(content) if len(content) <= DIAGNOSE_BYTES else None
    where = f"input {name!r}: data" if name is not None else "body"
    return f"{where}: got {constant[0].decode()} ({error}), wanted a number that JSON has; or send it as binary data"


def _input_with_constant(content: bytes) -> str | None:
    marker = object()
    try:
        inputs = json.loads(content, parse_constant=lambda _: marker)["inputs"]
        return next(
            (str(tensor["name"]) for tensor in inputs if any(v is marker for v in _leaves(tensor["data"]))), None
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _input_without_text(content: bytes) -> str:
    """Return the error message for the first element of an input that UTF-8 cannot encode; empty if there is none."""
    try:
        for tensor in _parse_leniently(content)["inputs"]:
            name, shape, is_text = str(tensor["name"]), tuple(map(int, tensor["shape"])), tensor["datatype"] == "BYTES"
            if is_text and min(shape, default=1) > 0 and (fault := _element_fault(_leaves(tensor["data"]), shape)):
                return f"input {name!r}: data: {fault}"
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    return ""


def _leaves(data: Any) -> Iterator[Any]:
    if isinstance(data, list):
        for item in data:
            yield from _leaves(item)
    else:
        yield data


def check_header(tensor: TensorJson, spec: ModelSpec) -> None:
    """Raise `InvalidInput` unless datatype and shape are valid. Long data is also checked against the signature."""
    check_datatype_and_shape(tensor.name, tensor.datatype, tensor.shape)
    if len(memoryview(tensor.data)) > LONG_BYTES:
        check_signature(spec, tensor.name, tensor.datatype, tensor.shape)


def check_datatype_and_shape(name: str, datatype: str, shape: tuple[int, ...]) -> None:
    """Raise `InvalidInput` unless an array can have them."""
    if datatype not in DTYPES and datatype != "BYTES":
        supported = ", ".join((*DTYPES, "BYTES"))
        raise InvalidInput(f"input {name!r}: datatype: got {datatype!r}, wanted one of {supported}")
    if len(shape) > MAX_DIMS:
        raise InvalidInput(f"input {name!r}: shape: got {len(shape)} dimensions, wanted at most {MAX_DIMS}")
    if shape and min(shape) < 0:
        raise InvalidInput(f"input {name!r}: shape: got {list(shape)}, wanted no negative dimension")
    elements = math.prod([dim or 1 for dim in shape]) if 0 in shape else math.prod(shape)
    if elements > MAX_ELEMENTS:
        got = f"{list(shape[:4])}..." if len(shape) > 4 else list(shape)
        raise InvalidInput(f"input {name!r}: shape: got {got}, wanted at most {MAX_ELEMENTS} elements")


def check_signature(spec: ModelSpec, name: str, datatype: str, shape: tuple[int, ...]) -> None:
    """Raise `InvalidInput` unless an input fits the signature. The core checks this again, with all inputs."""
    for wanted in spec.inputs:
        if wanted.name == name:
            check_tensor(wanted, datatype, shape)
            if spec.batched and shape and shape[0] > spec.max_batch:
                raise InvalidInput(f"inputs: got {shape[0]} rows, wanted 1 to {spec.max_batch}")
            return
    raise InvalidInput(f"inputs: got {name!r}, wanted {[wanted.name for wanted in spec.inputs]}")


def decode_tensor(tensor: TensorJson, held_bytes: int = 0) -> Steps[Buffer]:
    """Return the bytes of a tensor whose data is JSON, nested or flat. Only long numbers need more than one step.

    `held_bytes`: bytes that the request holds already.

    Raise `InvalidInput` if a value has another type or is out of range, or if the number of values does not fit the
    shape. The message names the input.
    """
    depth, rank = _depth(tensor.data), len(tensor.shape)
    if depth not in (1, rank):
        wanted = "1" if rank < 2 else f"1 (flat) or {rank}"
        raise InvalidInput(f"input {tensor.name!r}: data: got lists nested {depth} deep, wanted {wanted}")
    if len(memoryview(tensor.data)) > LONG_BYTES and tensor.datatype != "BYTES":
        return (yield from _decode_long(tensor, depth, held_bytes))
    try:
        values = list_decoder(tensor.datatype, depth).decode(tensor.data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        fault = _text_fault(bytes(tensor.data), tensor.shape) if tensor.datatype == "BYTES" else ""
        raise InvalidInput(f"input {tensor.name!r}: data: {fault or tensor.datatype}: {error}") from error
    if tensor.datatype == "BYTES":
        return join_strings(text.encode() for text in _flat_strings(tensor, values, depth))
    return _array(tensor, values, depth)


def _text_fault(data: bytes, shape: Sequence[int]) -> str:
    """Return the first element that is not text, for the error message; empty if there is none, or for long data."""
    try:
        leaves = _leaves(_parse_leniently(data)) if len(data) <= DIAGNOSE_BYTES else iter(())
    except (ValueError, RecursionError):
        return ""
    return _element_fault(leaves, shape)


def _element_fault(leaves: Iterable[Any], shape: Sequence[int]) -> str:
    for index, leaf in zip(range(math.prod(shape)), leaves, strict=False):
        if not isinstance(leaf, str) or any("\ud800" <= mark <= "\udfff" for mark in leaf):
            return f"BYTES: {element_name(shape, index)}: got {str(leaf)[:SHOWN_BYTES]!a}, wanted UTF-8 text"
    return ""


def _parse_leniently(content: bytes) -> Any:
    """Parse JSON whose text need not be UTF-8: other bytes become surrogates."""
    return json.loads(content.decode("utf-8", "surrogateescape"))


def _decode_long(tensor: TensorJson, depth: int, held_bytes: int) -> Steps[Buffer]:
    """Return the bytes of long numbers, which are decoded as flat lists between commas.

    The brackets of nested lists are compared with those of the shape. That the data is JSON was checked before.
    """
    text, wanted = bytes(tensor.data), math.prod(tensor.shape)
    if (got := text.count(b",") + 1) != wanted:
        raise InvalidInput(
            f"input {tensor.name!r}: data: got {got} values, wanted {wanted} for shape {list(tensor.shape)}"
        )
    yield held_bytes + len(text)
    if depth > 1 and text.translate(None, NOT_STRUCTURE) != _structure(tensor.shape):
        raise InvalidInput(f"input {tensor.name!r}: data: got other lists, wanted shape {list(tensor.shape)}")
    array, decoder = np.empty(wanted, DTYPES[tensor.datatype]), list_decoder(tensor.datatype, 1)
    held_bytes += len(text) + array.nbytes
    yield held_bytes
    at = begin = 0
    while begin < len(text):
        comma = text.find(b",", begin + STEP_BYTES)
        end = len(text) if comma < 0 else comma
        try:
            values = decoder.decode(b"[%s]" % text[begin:end].translate(None, b"[]"))
            array[at : at + len(values)] = values
        except (msgspec.MsgspecError, ValueError, OverflowError) as error:
            fault = _overflow_fault(values) if isinstance(error, OverflowError) else str(error)
            place = _INDEX.sub(lambda index, first=at: f"$[{first + int(index[1])}]", fault)  # type: ignore[misc]
            raise InvalidInput(f"input {tensor.name!r}: data: {tensor.datatype}: {place}") from error
        at, begin = at + len(values), end + 1
        yield held_bytes
    return array.data.cast("B")


def _structure(shape: tuple[int, ...]) -> bytes:
    text = b""
    for size in reversed(shape):
        text = b"[%s]" % ((text + b",") * size)[:-1]
    return text


def _array(tensor: TensorJson, values: list[Any], depth: int) -> Buffer:
    try:
        array = np.array(values, DTYPES[tensor.datatype])
    except (ValueError, OverflowError) as error:
        fault = _overflow_fault(values) if isinstance(error, OverflowError) else error
        raise InvalidInput(f"input {tensor.name!r}: data: {tensor.datatype}: {fault}") from error
    _check_shape(tensor, array.shape, depth)
    return array.tobytes()


def _overflow_fault(values: list[Any], place: str = "$") -> str:
    """Return the error message for the first number beyond UINT64, whose upper limit msgspec cannot check."""
    for index, value in enumerate(values):
        if isinstance(value, list):
            if fault := _overflow_fault(value, f"{place}[{index}]"):
                return fault
        elif value > UINT64_MAX:
            return f"Expected `int` <= {UINT64_MAX} - at `{place}[{index}]`"
    return ""


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
def list_decoder(datatype: str, depth: int) -> msgspec.json.Decoder[list[Any]]:
    """Return a decoder of lists nested `depth` deep, which checks that the values are in the range of the datatype."""
    kind: Any
    if datatype in ("BYTES", "BOOL"):
        kind = str if datatype == "BYTES" else bool
    elif datatype.startswith("FP"):
        kind = Annotated[float, Meta(ge=-FP32_MAX, le=FP32_MAX)] if datatype == "FP32" else float
    elif datatype == "UINT64":
        kind = Annotated[int, Meta(ge=0)]  # the upper limit does not fit into msgspec's 64 bits, see _overflow_fault
    else:
        bits = 8 * DTYPES[datatype].itemsize - (datatype[0] == "I")
        minimum = -(1 << bits) if datatype[0] == "I" else 0
        kind = Annotated[int, Meta(ge=minimum, le=(1 << bits) - 1)]
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)
