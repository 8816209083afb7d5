"""Channel between the worker and a model's process: msgpack headers and raw tensor bytes over a socket."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec
import numpy as np

from horologe_common.models import ModelSpec, nbytes
from horologe_common.status import HorologeError, ModelFailed
from horologe_common.wire import Tensor
from horologe_common.wire.frames import decode_array, encode_array

if TYPE_CHECKING:
    import io
    import socket
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from horologe_common.core.protocol import Buffer

HEADER_LIMIT = 1 << 20
JOIN_BELOW = 64 << 10
"""Messages up to this size (bytes) are copied into one send: a copy costs less than a second system call."""
_SIZE = struct.Struct("<I")


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


class Ready(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """Last reply to Start. `slowest_ns`: duration of the slowest warm-up run; 0 without a warm-up."""

    slowest_ns: int


class Run(msgspec.Struct, tag="run", array_like=True, frozen=True):
    batch_size: int
    tensors: tuple[Tensor, ...]
    quiet: bool = False
    """Do not log an exception of the model."""


class Done(msgspec.Struct, tag="done", array_like=True, frozen=True):
    tensors: tuple[Tensor, ...]


class Failed(msgspec.Struct, tag="failed", array_like=True, frozen=True):
    """The model raised an exception or returned an invalid result. `fatal`: the process cannot continue."""

    reason: str
    fatal: bool = False
    by_inputs: bool = False
    """The model is loaded, and raised the exception on made-up inputs."""
    rows: bool = False
    """In the warm-up: the model fails because its batch has more rows than one, or other rows than its outputs."""


ChannelMessage: TypeAlias = Start | Loaded | Ready | Run | Done | Failed

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ChannelMessage)


class Channel:
    """An end of the socket. A message is `[size of header][header][tensor bytes]...`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = cast("io.BufferedReader", sock.makefile("rb", JOIN_BELOW))

    def send(self, message: ChannelMessage, buffers: list[Buffer] | None = None) -> None:
        """Send a message. Raises `OSError` if the peer has disconnected, `TimeoutError` after the socket's timeout."""
        header = _encoder.encode(message)
        parts = [_SIZE.pack(len(header)), header, *(buffers or ())]
        if sum(map(len, parts)) <= JOIN_BELOW:
            self._sock.sendall(b"".join(parts))
            return
        for part in parts:
            self._sock.sendall(part)

    def has_received(self) -> bool:
        """Return True if bytes of a message are here. They may be in the buffer, where poll() does not see them."""
        timeout_s = self._sock.gettimeout()
        self._sock.settimeout(0)
        try:
            return bool(self._reader.peek(1))
        finally:
            self._sock.settimeout(timeout_s)

    def receive(self) -> tuple[ChannelMessage, dict[str, NDArray[Any]]]:
        """Receive the next message and its tensors by name.

        Raises `EOFError` if the peer has closed the socket, `TimeoutError` after the socket's timeout, `ModelFailed`
        for an invalid message.
        """
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        if size > HEADER_LIMIT:
            raise ModelFailed(f"header: got {size} bytes, wanted at most {HEADER_LIMIT}")
        try:
            message: ChannelMessage = _decoder.decode(self._read(size))
            tensors = message.tensors if isinstance(message, Run | Done) else ()
            return message, {tensor.name: self._array(tensor) for tensor in tensors}
        except (msgspec.MsgspecError, HorologeError, ValueError) as error:
            raise ModelFailed(f"message: {error}") from error

    def _array(self, tensor: Tensor) -> NDArray[Any]:
        if tensor.datatype != "BYTES" and tensor.nbytes != nbytes(tensor.datatype, tensor.shape):
            raise ModelFailed(f"tensor {tensor.name!r}: got {tensor.nbytes} bytes for {tensor.shape}")
        return decode_array(tensor, self._read(tensor.nbytes))

    def _read(self, size: int) -> memoryview:
        buffer = np.empty(size, np.uint8).data  # a bytearray would be zeroed while no other thread can run
        if self._reader.readinto(buffer) != size:
            raise EOFError
        return buffer

    def close(self) -> None:
        self._reader.close()
        self._sock.close()


def pack(arrays: Mapping[str, NDArray[Any]], side: str = "input") -> tuple[tuple[Tensor, ...], list[Buffer]]:
    """Return headers and bytes of arrays. Raises `InvalidInput` for a dtype that the protocol does not have."""
    packed = [encode_array(name, array, side) for name, array in arrays.items()]
    return tuple(header for header, _ in packed), [buffer for _, buffer in packed]
