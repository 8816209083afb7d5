"""Messages between the worker and a model's process: packets of a msgpack header and raw tensor bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from horologe_common.models import ModelSpec, nbytes
from horologe_common.status import HorologeError, ModelFailed
from horologe_common.wire import Tensor
from horologe_common.wire.frames import decode_array, encode_array

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from horologe_common.core.protocol import Buffer
    from horologe_common.service.parent_link import PacketSocket


class Start(msgspec.Struct, tag="start", array_like=True, frozen=True):
    """First message to the process: load `folder`/model.py after `delay_ns`. With `warm`, run every batch size once."""

    folder: str
    spec: ModelSpec
    delay_ns: int
    memory_limit_bytes: int
    check_content: bool = False
    """Fail if the files of the folder do not have the content of `spec`."""
    warm: bool = True


class Loaded(msgspec.Struct, tag="loaded", array_like=True, frozen=True):
    """First reply to Start: the model is loaded, and the warm-up begins. A crash from now on is due to its inputs."""


class ModelStarted(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """Last reply to Start. `slowest_ns`: duration of the slowest warm-up run; 0 without a warm-up."""

    slowest_ns: int


class Run(msgspec.Struct, tag="run", array_like=True, frozen=True):
    batch_size: int
    tensors: tuple[Tensor, ...]
    quiet: bool = False
    """Do not log an exception of the model."""


class Done(msgspec.Struct, tag="done", array_like=True, frozen=True):
    tensors: tuple[Tensor, ...]


class CallFailed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """The model raised an exception or returned an invalid result. `fatal`: the process cannot continue."""

    reason: str
    fatal: bool = False
    by_inputs: bool = False
    """The model is loaded, and raised the exception on made-up inputs."""
    rows: bool = False
    """In the warm-up: the model fails because its batch has more rows than one, or other rows than its outputs."""


ChannelMessage: TypeAlias = Start | Loaded | ModelStarted | Run | Done | CallFailed

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ChannelMessage)


def send(packets: PacketSocket, message: ChannelMessage, buffers: Sequence[Buffer] = ()) -> None:
    """Send a message. Raises `OSError` if the peer has disconnected, `TimeoutError` after the socket's timeout."""
    packets.send([_encoder.encode(message), *buffers])


def receive(packets: PacketSocket) -> tuple[ChannelMessage, dict[str, NDArray[Any]]]:
    """Receive the next message and its tensors by name.

    Raises `EOFError` if the peer has closed the socket, `TimeoutError` after the socket's timeout, `ModelFailed` for an
    invalid message.
    """
    try:
        header, *frames = packets.receive()
        message: ChannelMessage = _decoder.decode(header)
        tensors = message.tensors if isinstance(message, Run | Done) else ()
        return message, {tensor.name: _array(tensor, frame) for tensor, frame in zip(tensors, frames, strict=True)}
    except (msgspec.MsgspecError, HorologeError, ValueError) as error:
        raise ModelFailed(f"message: {error}") from error


def _array(tensor: Tensor, frame: memoryview) -> NDArray[Any]:
    if tensor.datatype != "BYTES" and len(frame) != nbytes(tensor.datatype, tensor.shape):
        raise ModelFailed(f"tensor {tensor.name!r}: got {len(frame)} bytes for {tensor.shape}")
    return decode_array(tensor, frame)


def pack(arrays: Mapping[str, NDArray[Any]], side: str = "input") -> tuple[tuple[Tensor, ...], list[Buffer]]:
    """Return headers and bytes of arrays. Raises `InvalidInput` for a dtype that the protocol does not have."""
    packed = [encode_array(name, array, side) for name, array in arrays.items()]
    return tuple(header for header, _ in packed), [buffer for _, buffer in packed]
