"""Packets: envelopes in the header frame, the bytes of tensors in the body frames.

If all tensors of a packet together have at most `GLUE_BELOW` bytes, they share one body frame: a frame costs about a
microsecond at each end, and copying 1 kB costs much less. Otherwise each tensor has a frame of its own and is not
copied. The headers contain the sizes, so a receiver can distinguish the two forms.
"""

from __future__ import annotations

import math
import struct
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.models import DATATYPES, DTYPES, element_count, nbytes
from horologe_common.status import HorologeError, InvalidInput, Status
from horologe_common.string_tensors import STRING_KINDS, decode_strings, encode_strings
from horologe_common.wire import (
    HEADER_LIMIT,
    Answer,
    AnyMessage,
    CallDone,
    Envelope,
    Feedback,
    ModelCall,
    Outputs,
    Predict,
    Rejected,
    RunDone,
    RunItem,
    Sample,
    Ship,
    StartRun,
    Tensor,
    decode,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from horologe_common.core.protocol import Buffer

GLUE_BELOW = 32 << 10


_TENSORS: dict[type, Callable[[Any], tuple[Tensor, ...]]] = {
    Predict: attrgetter("inputs"),
    Answer: attrgetter("outputs"),
    Outputs: attrgetter("outputs"),
    Sample: attrgetter("inputs"),
    StartRun: attrgetter("inputs"),
    ModelCall: attrgetter("inputs"),
    CallDone: attrgetter("outputs"),
    RunDone: attrgetter("outputs"),
    RunItem: attrgetter("outputs"),
    Feedback: lambda feedback: tuple(tensor for item in feedback.items for tensor in item.inputs),
    Ship: lambda ship: tuple(tensor for item in ship.items for tensor in item.inputs),
}


def tensors(message: AnyMessage) -> tuple[Tensor, ...]:
    """Return the headers of the tensors of a message, in the order in which their bytes follow."""
    headers = _TENSORS.get(type(message))
    return headers(message) if headers else ()


def pack(envelopes: list[Envelope], buffers: Sequence[Buffer]) -> list[Buffer]:
    """Return the frames of a packet. `buffers` holds the bytes of all its tensors, in order."""
    header = encode(envelopes)
    if not buffers:
        return [header]
    if len(buffers) == 1:
        return [header, buffers[0]]
    if sum(map(len, buffers)) <= GLUE_BELOW:
        return [header, b"".join(buffers)]
    return [header, *buffers]


def unpack(frames: Sequence[Any], limit: int) -> list[tuple[str, str, AnyMessage, list[memoryview]]]:
    """Return `(to, sender, message, buffers)` for every message of a packet.

    Raises `InvalidInput` for an invalid header or a body that does not match it, `TooLarge` over `limit` bytes.
    """
    if not frames:
        raise InvalidInput("packet: got no frames, wanted a header")
    arrived: list[tuple[str, str, AnyMessage, int, int]] = []
    headers: list[Tensor] = []
    for envelope in decode(frames[0], limit):
        to, sender = envelope.to, envelope.sender
        for message in envelope.messages:
            begin = len(headers)
            headers += tensors(message)
            arrived.append((to, sender, message, begin, len(headers)))
    bodies = _split(headers, frames[1:])
    return [(to, sender, message, bodies[begin:end]) for to, sender, message, begin, end in arrived]


def _split(headers: list[Tensor], frames: Sequence[Any]) -> list[memoryview]:
    """Return the bytes of each tensor."""
    sizes = []
    for tensor in headers:
        sizes.append(size := tensor.nbytes)
        if tensor.datatype == "BYTES":
            if size < 4 * element_count(tensor.shape):
                raise InvalidInput(f"tensor {tensor.name!r}: {size} bytes are too few for {list(tensor.shape)}")
        elif size != (wanted := nbytes(tensor.datatype, tensor.shape)):
            raise InvalidInput(
                f"tensor {tensor.name!r}: got {size} bytes, wanted {wanted} for {tensor.datatype}{list(tensor.shape)}"
            )
    views = [memoryview(frame).cast("B") if len(frame) else memoryview(b"") for frame in frames]
    if len(views) == 1 < len(sizes):
        whole, at, parts = views[0], 0, []
        if sum(sizes) != len(whole):
            raise InvalidInput(f"body: got {len(whole)} bytes, wanted {sum(sizes)}")
        for size in sizes:
            parts.append(whole[at : at + size])
            at += size
        return parts
    if [len(view) for view in views] != sizes:
        raise InvalidInput(f"body: got frames of {[len(view) for view in views]} bytes, wanted {sizes}")
    return views


def refuse_message(frames: Sequence[Any], limit: int) -> list[AnyMessage]:
    """Return the answers to the messages of a packet whose body has not been received. `limit`: bytes of a packet.

    `frames` has at most the header. Every Predict gets an Answer; other messages together get a Rejected.
    """
    if not frames:
        return [Rejected(int(Status.TOO_LARGE), f"header: got more than {HEADER_LIMIT} bytes")]
    try:
        messages = [message for envelope in decode(frames[0], HEADER_LIMIT) for message in envelope.messages]
    except HorologeError as error:
        return [Rejected(int(error.status), error.reason)]
    size = sum(tensor.nbytes for message in messages for tensor in tensors(message))
    if size > limit:
        status, reason = Status.TOO_LARGE, f"inputs: got {size} bytes, at most {limit}"
    else:
        status, reason = Status.REFUSED, "the inputs of other requests that are arriving leave no memory for these"
    predicts = [message for message in messages if isinstance(message, Predict)]
    answers: list[AnyMessage] = [Answer(message.id, int(status), (), reason) for message in predicts]
    return answers if len(predicts) == len(messages) > 0 else [*answers, Rejected(int(status), reason)]


def withhold_outputs(
    envelopes: Sequence[Envelope], buffers: Sequence[Buffer], room: int, limit: int
) -> tuple[list[Envelope], list[Buffer]]:
    """Return the messages to a client with the outputs that fit into `room` bytes. The rest is answered without them.

    `limit` is the room of a client that has read everything. Outputs beyond it are TOO_LARGE, others LOST.
    """
    kept: list[Buffer] = []
    fitting, at = [], 0
    for envelope in envelopes:
        messages = []
        for message in envelope.messages:
            parts = buffers[at : at + len(tensors(message))]
            at, size = at + len(parts), sum(map(len, parts))
            if isinstance(message, Answer) and size > room:
                is_large = size > limit
                status = Status.TOO_LARGE if is_large else Status.LOST
                reason = f"outputs: got {size} bytes, wanted at most {limit} (see links.max_frame_bytes)"
                if not is_large:
                    reason = f"outputs: got {size} bytes, but the client has not read earlier answers"
                message = msgspec.structs.replace(message, status=int(status), outputs=(), reason=reason)
            else:
                room -= size
                kept += parts
            messages.append(message)
        fitting.append(Envelope(envelope.to, envelope.sender, messages))
    return fitting, kept


def encode_array(name: str, array: NDArray[Any], side: str = "input") -> tuple[Tensor, Buffer]:
    """Return header and bytes of an array. Contiguous little-endian arrays are not copied.

    Raises `InvalidInput` for a dtype that the protocol does not support. Object and string arrays become BYTES. `side`
    is the word for the tensor in error messages.
    """
    where = f"{side} {name!r}"
    if array.dtype.kind in STRING_KINDS:
        payload = encode_strings(where, array)
        return Tensor(name, "BYTES", array.shape, len(payload)), payload
    datatype = DATATYPES.get(array.dtype.newbyteorder("<"))
    if datatype is None:
        raise InvalidInput(f"{where}: dtype: got {array.dtype}, wanted one of {', '.join(DTYPES)}")
    array = np.ascontiguousarray(array, DTYPES[datatype]).reshape(array.shape)
    view = array.reshape(-1).data.cast("B") if array.size else b""
    return Tensor(name, datatype, array.shape, array.nbytes), view


def decode_array(tensor: Tensor, buffer: Buffer) -> NDArray[Any]:
    """Return the array of a header and its bytes, without copying (read-only if the bytes are).

    Raises `InvalidInput` for a shape that numpy does not support. `unpack` has checked that the sizes match.
    """
    if tensor.datatype == "BYTES":
        return decode_strings(f"tensor {tensor.name!r}", tensor.shape, buffer)
    try:
        return np.frombuffer(buffer, DTYPES[tensor.datatype]).reshape(tensor.shape)
    except ValueError as error:  # an empty tensor whose other dimensions have a product above numpy's limit
        raise InvalidInput(f"tensor {tensor.name!r}: shape: got {list(tensor.shape)}: {error}") from error


def split_rows(tensor: Tensor, buffer: Buffer, counts: Sequence[int]) -> list[tuple[Tensor, memoryview]]:
    """Split a batch tensor into parts of `counts` rows, without copying. Return header and bytes of each part."""
    view, rest = memoryview(buffer), tensor.shape[1:]
    fixed = 0 if tensor.datatype == "BYTES" else tensor.nbytes // tensor.shape[0]
    headers: dict[int, Tensor] = {}
    parts, at = [], 0
    for rows in counts:
        header = headers.get(rows)
        if header is None:
            size = fixed * rows or _strings_size(view[at:], rows * math.prod(rest))
            header = Tensor(tensor.name, tensor.datatype, (rows, *rest), size)
            if fixed:
                headers[rows] = header
        end = at + header.nbytes
        parts.append((header, view[at:end]))
        at = end
    return parts


def split_batch(
    tensors: Sequence[Tensor], buffers: Sequence[Buffer], counts: Sequence[int]
) -> Iterator[tuple[tuple[Tensor, Buffer], ...]]:
    """Yield the parts of a batch for each number of rows in `counts`: header and bytes of each tensor, not copied."""
    columns: list[Sequence[tuple[Tensor, Buffer]]] = [
        [(tensor, buffer)] if len(counts) == 1 else split_rows(tensor, buffer, counts)
        for tensor, buffer in zip(tensors, buffers, strict=True)
    ]
    return zip(*columns, strict=True) if columns else iter([()] * len(counts))


def _strings_size(view: memoryview, number: int) -> int:
    at = 0
    for _ in range(number):
        at += 4 + int(struct.unpack_from("<I", view, at)[0])
    return at


def concat_rows(parts: Iterable[Buffer]) -> Buffer:
    """Concatenate the bytes of tensors along dimension 0. Their other dimensions must be equal."""
    parts = list(parts)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def find_unencodable(value: Any, place: str = "") -> str:
    """Return place and value of the first part that msgpack cannot encode; empty if there is none."""
    try:
        msgspec.msgpack.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        for name, part in _parts(value):
            if found := find_unencodable(part, place + name):
                return found
        return f"{place}: got {_shown(value)}"
    return ""


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct):
        return [(f".{name}", getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, dict):
        return [part for key, item in value.items() for part in ((f"[{_shown(key)}]", key), (f"[{_shown(key)}]", item))]
    return [(f"[{index}]", item) for index, item in enumerate(value)] if isinstance(value, list | tuple) else []


def _shown(value: Any) -> str:
    try:
        return repr(value)[:80]
    except ValueError:  # an integer of more than 4,300 digits
        return f"a large {type(value).__name__}"
