"""Process of a driver: `python -m horologe_selector.drivers.driver_process SOCKET LIFELINE PROGRESS`.

The arguments are inherited file descriptors. Standard output and error go to the selector's log. PROGRESS is shared
memory that holds the run whose code executes: if this process dies, the selector reads there which run was at fault.
"""

from __future__ import annotations

import contextlib
import gc
import mmap
import resource
import signal
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from horologe_common.service.parent_link import PacketSocket, connect_to_parent
from horologe_common.service.standard_streams import install_lossy_streams
from horologe_common.status import HorologeError
from horologe_common.wire import PEER_HEADER_LIMIT, DriverReady, Envelope, StartDriver
from horologe_common.wire.frames import pack, unpack
from horologe_selector.drivers.driver_runs import DriverRuns, StepTooLong, load_driver

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from types import FrameType, TracebackType

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import AnyMessage
    from horologe_selector.drivers.driver_loop import DriverLoop

PROGRESS = struct.Struct("<Q")
CHECKS = 4
"""Checks per limit. A step is interrupted after 1 to 1 + 1 / CHECKS of the limit."""


def pack_messages(messages: Sequence[tuple[AnyMessage, Sequence[Buffer]]]) -> list[Any]:
    """Return the frames of one packet between selector and driver."""
    buffers = [buffer for _, parts in messages for buffer in parts]
    return pack([Envelope("", "", [message for message, _ in messages])], buffers)


def receive(packets: PacketSocket, timeout_ns: int | None) -> Iterator[tuple[AnyMessage, Sequence[Buffer]]]:
    """Wait for messages and yield all that have arrived. Raises EOFError if the selector has closed the socket."""
    while packets.has_arrived(timeout_ns):
        timeout_ns = 0
        for _, _, message, buffers in unpack(packets.receive(), PEER_HEADER_LIMIT):
            yield message, buffers


class StepGuard:
    """Limit on the time that a driver's code may execute at a stretch: a timer signal interrupts it with an exception.

    Context manager around `DriverRuns.step`, only for the main thread. `limit_ns` 0: no limit. A run counts as blocked
    if its step lasts too long and its thread has waited in the kernel meanwhile. A step that lasts long because other
    processes have the processor is not interrupted.
    """

    def __init__(self, loop: DriverLoop, limit_ns: int) -> None:
        self._loop = loop
        self._limit_ns = limit_ns
        self._interval_s = limit_ns / CHECKS / 1e9
        self._step = self._begin_ns = self._cpu_ns = self._waits = 0
        if limit_ns:
            signal.signal(signal.SIGALRM, self._check)

    def __enter__(self) -> None:
        if self._limit_ns:
            self._step = -1
            signal.setitimer(signal.ITIMER_REAL, self._interval_s, self._interval_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._limit_ns:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _check(self, number: int, frame: FrameType | None) -> None:
        """Raise `StepTooLong` in the code that executes if its step has lasted too long."""
        if not self._loop.running:
            return
        waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        if self._loop.steps != self._step:
            self._step, self._waits = self._loop.steps, waits
            self._begin_ns, self._cpu_ns = time.monotonic_ns(), time.thread_time_ns()
            return
        limit_ns = self._limit_ns - self._limit_ns // CHECKS  # the step began up to an interval before the first check
        blocked = waits > self._waits and time.monotonic_ns() - self._begin_ns >= limit_ns
        if blocked or time.thread_time_ns() - self._cpu_ns >= limit_ns:
            self._step = -1  # code that suppresses the exception is interrupted again after another limit
            what = "blocked" if blocked else "executed"
            limit = f"{self._limit_ns / 1e6:g} ms (selector.pipeline_step_ns)"
            raise StepTooLong(f"the driver {what} for more than {limit} without a call")


def main(arguments: list[str]) -> int:
    sock, lifeline, progress = arguments
    packets = connect_to_parent(sock, lifeline)
    memory = mmap.mmap(int(progress), PROGRESS.size)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(packets, memory)
    return 0


def serve(packets: PacketSocket, progress: mmap.mmap) -> None:
    """Load the driver, send DriverReady, and execute runs until the selector closes the socket."""
    waiting: list[tuple[AnyMessage, Sequence[Buffer]]] = []
    while not waiting:
        waiting = list(receive(packets, None))
    start = waiting.pop(0)[0]
    assert isinstance(start, StartDriver)
    if start.memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (start.memory_bytes, start.memory_bytes))
    try:
        function = load_driver(Path(start.file))
    except HorologeError as error:
        packets.send(pack_messages([(DriverReady(error.reason), ())]))
        return
    runs = DriverRuns(
        function,
        start.calls,
        time.monotonic_ns,
        lambda run: PROGRESS.pack_into(progress, 0, run),
        start.max_frame_bytes,
    )
    guard = StepGuard(runs.loop, start.step_ns)
    gc.collect()
    gc.freeze()
    packets.send(pack_messages([(DriverReady(), ())]))
    while True:
        for message, buffers in waiting or receive(packets, _timeout_ns(runs)):
            runs.handle(message, buffers)
        waiting = []
        with guard:
            runs.step()
        if runs.out:
            packets.send(pack_messages(runs.out))
            runs.out = []
        if runs.out_of_memory:
            raise SystemExit("out of memory (selector.pipeline_memory_bytes)")


def _timeout_ns(runs: DriverRuns) -> int | None:
    at_ns = runs.wakeup_ns()
    return None if at_ns is None else at_ns - time.monotonic_ns()


if __name__ == "__main__":
    install_lossy_streams()
    sys.exit(main(sys.argv[1:]))
