"""Process of a driver: `python -m horologe_selector.drivers.child SOCKET LIFELINE PROGRESS`.

The arguments are inherited file descriptors. Standard output and error go to the selector's log. PROGRESS is shared
memory that holds the run whose code executes: if this process dies, the selector reads there which run was at fault.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import resource
import select
import socket
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_common.service.isolation import kill_with_parent
from horologe_common.service.standard_streams import install_lossy_streams
from horologe_common.status import HorologeError
from horologe_common.wire import PEER_HEADER_LIMIT, DriverReady, Envelope, StartDriver
from horologe_common.wire.frames import pack, unpack
from horologe_selector.drivers.driver_file import load_driver
from horologe_selector.drivers.driver_runs import DriverRuns
from horologe_selector.drivers.step_guard import StepGuard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import AnyMessage

RECEIVE_BYTES = 1 << 18
PROGRESS = struct.Struct("<Q")


class PacketSocket:
    """The child's end of the socket, with the framing of `transport/streams.py`."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._data = bytearray()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def receive(self, timeout_ns: int | None) -> Iterator[tuple[AnyMessage, Sequence[Buffer]]]:
        """Wait for messages and yield all that are complete. Raises EOFError if the selector has closed the socket."""
        timeout_ms = None if timeout_ns is None else max(0, -(-timeout_ns // 1_000_000))
        if not self._poll.poll(timeout_ms):
            return
        data = self._sock.recv(RECEIVE_BYTES)
        if not data:
            raise EOFError
        self._data += data
        while (frames := self._next_packet()) is not None:
            for _, _, message, buffers in unpack(frames, PEER_HEADER_LIMIT):
                yield message, buffers

    def _next_packet(self) -> list[bytes] | None:
        if len(self._data) < 4:
            return None
        (count,) = struct.unpack_from("<I", self._data)
        begin = 4 + 8 * count
        if len(self._data) < begin:
            return None
        lengths = struct.unpack_from(f"<{count}Q", self._data, 4)
        if len(self._data) < begin + sum(lengths):
            return None
        frames = []
        for length in lengths:
            frames.append(bytes(self._data[begin : begin + length]))
            begin += length
        del self._data[:begin]
        return frames

    def send(self, messages: Sequence[tuple[AnyMessage, Sequence[Buffer]]]) -> None:
        """Send messages in one packet. Raises OSError if the selector has closed the socket."""
        buffers = [buffer for _, parts in messages for buffer in parts]
        frames = pack([Envelope("", "", [message for message, _ in messages])], buffers)
        head = struct.pack(f"<I{len(frames)}Q", len(frames), *map(len, frames))
        self._sock.sendall(b"".join((head, *frames)))


def main(arguments: list[str]) -> int:
    sock, lifeline, progress = map(int, arguments)
    kill_with_parent(lifeline)
    memory = mmap.mmap(progress, PROGRESS.size)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(PacketSocket(socket.socket(fileno=sock)), memory)
    return 0


def serve(packets: PacketSocket, progress: mmap.mmap) -> None:
    """Load the driver, send DriverReady, and execute runs until the selector closes the socket."""
    waiting: list[tuple[AnyMessage, Sequence[Buffer]]] = []
    while not waiting:
        waiting = list(packets.receive(None))
    start = waiting.pop(0)[0]
    assert isinstance(start, StartDriver)
    if start.memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (start.memory_bytes, start.memory_bytes))
    try:
        function = load_driver(Path(start.file))
    except HorologeError as error:
        packets.send([(DriverReady(error.reason), ())])
        return
    runs = DriverRuns(
        function, start.calls, time.monotonic_ns, lambda run: PROGRESS.pack_into(progress, 0, run),
        start.max_frame_bytes,
    )  # fmt: skip
    guard = StepGuard(runs.loop, start.step_ns)
    gc.collect()
    gc.freeze()
    packets.send([(DriverReady(), ())])
    while True:
        for message, buffers in waiting or packets.receive(_timeout_ns(runs)):
            runs.handle(message, buffers)
        waiting = []
        with guard:
            runs.step()
        if runs.out:
            packets.send(runs.out)
            runs.out = []
        if runs.out_of_memory:
            raise SystemExit("out of memory (selector.pipeline_memory_bytes)")


def _timeout_ns(runs: DriverRuns) -> int | None:
    at_ns = runs.wakeup_ns()
    return None if at_ns is None else at_ns - time.monotonic_ns()


if __name__ == "__main__":
    install_lossy_streams()
    sys.exit(main(sys.argv[1:]))
