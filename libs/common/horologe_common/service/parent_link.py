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
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
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
        (count,) = COUNT.unpack(self._read(COUNT.size))
        if count > FRAMES_MAX:
            raise OSError(f"packet: got {count} frames, wanted at most {FRAMES_MAX}")
        try:
            return [self._read(length) for length in struct.unpack(f"<{count}Q", self._read(8 * count))]
        except (MemoryError, ValueError) as error:
            raise OSError(f"packet: {error}") from error

    def _read(self, size: int) -> memoryview:
        target = np.empty(size, np.uint8).data  # a bytearray would be zeroed while no other thread can run
        done = 0
        while done < size:
            if self._begin == self._end and size - done < BUFFER_BYTES:
                self._begin, self._end = 0, self._receive_into(self._buffer)
            if self._begin < self._end:
                count = min(size - done, self._end - self._begin)
                target[done : done + count] = self._buffer[self._begin : self._begin + count]
                self._begin += count
            else:
                count = self._receive_into(target[done:])
            done += count
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
    return struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames))


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
