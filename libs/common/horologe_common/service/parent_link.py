"""Link between a service and a process that it has started: packets over a socket, and the end of both together.

A packet is the number of its frames, their lengths, and the frames.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import struct
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer

COUNT = struct.Struct("<I")
FRAMES_MAX = 1 << 16
BUFFER_BYTES = 64 << 10
"""Packets up to this size are copied into one send: a copy costs less than a second system call."""
FIRST_VICTIM = "1000"
"""/proc/self/oom_score_adj: if memory runs out, the kernel kills this process instead of the service."""


class PacketSocket:
    """An end of the socket whose calls block, or raise TimeoutError after the socket's timeout."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._poll = select.poll()  # select() is limited to descriptors below 1,024
        self._poll.register(sock, select.POLLIN)
        self._buffer = bytearray(BUFFER_BYTES)
        self._begin = self._end = 0
        """Bytes of the buffer that have arrived and are not read."""

    def send(self, frames: Sequence[Buffer]) -> None:
        """Send a packet. Raises OSError if the peer has closed its end."""
        parts = [pack_lengths(frames), *frames]
        if sum(map(len, parts)) <= BUFFER_BYTES:
            self._sock.sendall(b"".join(parts))
            return
        for part in parts:
            self._sock.sendall(part)

    def has_arrived(self, timeout_ns: int | None) -> bool:
        """Wait until a packet begins to arrive, or the peer closes its end. Return False after the timeout."""
        timeout_ms = None if timeout_ns is None else max(0, -(-timeout_ns // 1_000_000))
        return self._begin < self._end or bool(self._poll.poll(timeout_ms))

    def receive(self) -> list[memoryview]:
        """Return the frames of the next packet, each in memory of its own.

        Raises EOFError if the peer has closed its end, and OSError for a packet that is too large for the memory.
        """
        begin = self._take(COUNT.size)
        (count,) = COUNT.unpack_from(self._buffer, begin)
        if count > FRAMES_MAX:
            raise OSError(f"packet: got {count} frames, wanted at most {FRAMES_MAX}")
        begin = self._take(8 * count)
        try:
            return [self._read(length) for length in lengths_format(count).unpack_from(self._buffer, begin)]
        except (MemoryError, ValueError) as error:
            raise OSError(f"packet: {error}") from error

    def _take(self, size: int) -> int:
        """Wait until the buffer has the next `size` bytes. Count them as read, and return where they begin."""
        if self._end - self._begin < size:
            if size > len(self._buffer):
                self._buffer = self._buffer.ljust(size)
            rest = self._buffer[self._begin : self._end]
            self._begin, self._end = 0, len(rest)
            self._buffer[: len(rest)] = rest
            while self._end < size:
                self._end += self._receive_into(memoryview(self._buffer)[self._end :])
        begin = self._begin
        self._begin += size
        return begin

    def _read(self, size: int) -> memoryview:
        begin, end = self._begin, self._begin + size
        if end <= self._end:
            self._begin = end
            return memoryview(self._buffer[begin:end])
        target = np.empty(size, np.uint8).data  # a bytearray would be zeroed while no other thread can run
        done = self._end - begin
        target[:done] = self._buffer[begin : self._end]
        self._begin = self._end = 0
        while size - done >= BUFFER_BYTES:
            done += self._receive_into(target[done:])
        if done < size:
            begin = self._take(size - done)
            target[done:] = self._buffer[begin : self._begin]
        return target

    def _receive_into(self, target: memoryview) -> int:
        if not (count := self._sock.recv_into(target)):
            raise EOFError
        return count

    def close(self) -> None:
        """Close the socket."""
        self._sock.close()


def pack_lengths(frames: Sequence[Buffer]) -> bytes:
    """Return what comes before the frames of a packet."""
    count = len(frames)
    return COUNT.pack(count) + lengths_format(count).pack(*map(len, frames))


@lru_cache(maxsize=64)
def lengths_format(count: int) -> struct.Struct:
    """Return the format of the lengths of `count` frames."""
    return struct.Struct(f"<{count}Q")


def connect_to_parent(sock: str, lifeline: str) -> PacketSocket:
    """Return the socket of this process. The arguments are those that `start_isolated` has passed: descriptors.

    From now on the kernel kills this process when the service ends, and before the service if memory runs out.
    """
    _end_with_parent(int(lifeline))
    return PacketSocket(socket.socket(fileno=int(sock)))


def _end_with_parent(lifeline: int) -> None:
    """Have the kernel kill this process group when the service's end of the pipe closes.

    PR_SET_PDEATHSIG follows the thread that started the process, and loading threads end. The process sees end of file
    on its socket only between calls, so code that hangs would outlive its service.
    """
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(FIRST_VICTIM)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgid(0))
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()
    poll.register(lifeline)
    if poll.poll(0):  # the service ended before the signal was set up
        os._exit(1)
