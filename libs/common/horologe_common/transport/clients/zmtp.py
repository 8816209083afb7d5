"""ZMTP 3.0, the protocol of ZeroMQ, read while it arrives (https://rfc.zeromq.org/spec/23; mechanism NULL).

libzmq stores the parts of a message until the last one has arrived, and has no bound for their number or for the bytes
of all messages together: 52 million empty parts in one message ended a process. This reader counts both on arrival.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer

Frame: TypeAlias = "bytes | memoryview"
MORE, LONG, COMMAND = 1, 2, 4
GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x29\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0"
PING = b"\x04\x07\x04PING\x00\x00"
PARTS_MAX = 4096
"""Frames of a message. The SDK sends at most 128 requests in one."""
FRAMES_PER_FEED = 1024
"""A frame takes 0.7 us, and a read has up to 131,072 of them: empty messages of 2 bytes."""
COMMAND_MAX = 512
VIEW_FROM = 64 << 10
"""Smaller frames are copied: a view would keep all that arrived together with the frame, up to 256 kB."""
FRAME_OVERHEAD = 64
"""Bytes of memory of a frame beside its content."""


class ProtocolError(Exception):
    """The peer sent what ZMTP does not allow, or exceeds a bound that no valid message exceeds."""


class MessageReader:
    """Parses the bytes of one peer. `message_limit`: bytes of all frames of a message; `header_limit`: of the first.

    A longer message is dropped while it arrives, except for its first frame. `messages` gets it with that frame only,
    or without any if the first frame is too long.
    """

    def __init__(self, message_limit: int, header_limit: int) -> None:
        self.messages: list[tuple[list[Frame], bool]] = []
        """(frames, whether frames were dropped) of the messages that are complete. The caller empties the list."""
        self.pings: list[bytes] = []
        """Bodies of PING commands. The caller answers them and empties the list."""
        self.is_ready = False
        """The handshake is complete."""
        self.held_bytes = 0
        """Bytes stored of a message that is not complete."""
        self._message_limit = message_limit
        self._header_limit = header_limit
        self._greeted = False
        self.is_behind = False
        """There were more than `FRAMES_PER_FEED` frames. `feed(b"")` parses the next ones."""
        self._rest = b""
        """Begin of a greeting, of the head of a frame, or of a command, or what is not parsed yet."""
        self._begun = memoryview(b"")
        """Memory of a frame, of which `_missing` bytes at the end are missing."""
        self._flags = self._missing = 0
        self._frames: list[Frame] = []
        self._count = self._size = 0
        """Frames and bytes of the message that is arriving, also of dropped frames."""
        self._dropping = False

    @property
    def unparsed_bytes(self) -> int:
        """Bytes that have arrived and are not parsed yet."""
        return len(self._rest) if self.is_behind else 0

    def feed(self, data: bytes) -> None:
        """Parse what has arrived, up to `FRAMES_PER_FEED` frames. Raises `ProtocolError`: close the connection."""
        at, self.is_behind = 0, False
        if self._missing:
            at = min(self._missing, len(data))
            self._store(data[:at])
            self._missing -= at
            if self._missing:
                return
            frame, self._begun = self._begun, memoryview(b"")
            if not self._dropping:
                self.held_bytes -= len(frame)
            self._end_frame(self._flags, bytes(frame) if len(frame) < VIEW_FROM else frame)
        elif self._rest:
            data, self._rest = self._rest + data, b""
        if not self._greeted:
            if not self._read_greeting(data):
                return
            at = len(GREETING)
        self._parse_frames(data, at)

    def drop_message(self) -> None:
        """Drop the message that is arriving, except for its first frame, because there is no memory for it."""
        self._dropping = True
        del self._frames[1:]
        self._begun = memoryview(b"")
        self.held_bytes = sum(map(len, self._frames))

    def _read_greeting(self, data: bytes) -> bool:
        if data[:1] != b"\xff" or data[9:10] not in (b"", b"\x7f") or data[10:11] not in (b"", b"\x03"):
            raise ProtocolError("got something else, wanted ZMTP 3")
        self._greeted = len(data) >= len(GREETING)
        if not self._greeted:
            self._rest = data
        elif data[12:32] != GREETING[12:32]:
            raise ProtocolError("mechanism: got another one, wanted NULL")
        return self._greeted

    def _parse_frames(self, data: bytes, at: int) -> None:
        end, frames = len(data), 0
        while at < end:
            if frames == FRAMES_PER_FEED:
                self._rest, self.is_behind = data[at:], True
                return
            frames += 1
            flags, body = data[at], at + 9 if data[at] & LONG else at + 2
            if body > end:
                self._rest = data[at:]
                return
            size = int.from_bytes(data[at + 1 : body], "big")
            self._begin_frame(flags, size)
            begin, at = at, body + size
            if at > end and flags & COMMAND:  # a command may arrive inside a message, also inside a dropped one
                self._rest = data[begin:]
                return
            if at > end:
                self._flags, self._missing = flags, size
                if not self._dropping:  # memory that numpy does not fill is not resident before it is used
                    self._begun = np.empty(size, np.uint8).data if size >= VIEW_FROM else memoryview(bytearray(size))
                self._store(data[body:])
                self._missing = at - end
                return
            self._end_frame(flags, data[body:at] if size < VIEW_FROM else memoryview(data)[body:at])

    def _store(self, data: bytes) -> None:
        if not self._dropping:
            begin = len(self._begun) - self._missing
            self._begun[begin : begin + len(data)] = data
            self.held_bytes += len(data)

    def _begin_frame(self, flags: int, size: int) -> None:
        """Check the bounds of a frame. Drop the message if it is too long."""
        if flags & COMMAND or not self.is_ready:
            if flags & (COMMAND | MORE) != COMMAND or size > COMMAND_MAX:
                raise ProtocolError(f"command: got flags {flags} and {size} bytes, wanted at most {COMMAND_MAX}")
            return
        self._count += 1
        self._size += size
        if flags & ~(MORE | LONG) or self._count > PARTS_MAX:
            raise ProtocolError(f"got flags {flags} of frame {self._count}, wanted at most {PARTS_MAX} frames")
        limit = self._header_limit if self._count == 1 else self._message_limit
        if self._size > limit and not self._dropping:
            self.drop_message()

    def _end_frame(self, flags: int, frame: Frame) -> None:
        if flags & COMMAND:
            self._on_command(bytes(frame))
            return
        if not self._dropping:
            self._frames.append(frame)
            self.held_bytes += len(frame) + FRAME_OVERHEAD
        if flags & MORE:
            return
        self.messages.append((self._frames, self._dropping))
        self._frames, self._count, self._size, self._dropping, self.held_bytes = [], 0, 0, False, 0

    def _on_command(self, body: bytes) -> None:
        if body.startswith(b"\x05READY"):
            self.is_ready = True
        elif body.startswith(b"\x04PING"):
            self.pings.append(body)
        elif not body.startswith(b"\x04PONG"):
            raise ProtocolError(f"command: got {body[:16]!r}, wanted READY, PING or PONG")


def pong(ping: bytes) -> bytes:
    """Return the answer to a PING, with its context of at most 16 bytes."""
    body = b"\x04PONG" + ping[7:23]
    return bytes((COMMAND, len(body))) + body


def encode_message(frames: Sequence[Buffer]) -> list[Buffer]:
    """Return the bytes of a message: the frames, and before each its flags and size."""
    parts: list[Buffer] = []
    last = len(frames) - 1
    for index, frame in enumerate(frames):
        size, more = len(frame), MORE if index < last else 0
        parts.append(bytes((more, size)) if size < 256 else struct.pack(">BQ", more | LONG, size))
        parts.append(frame)
    return parts
