"""The worker's end of a process that inspects models."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, NamedTuple

from horologe_common.clock import monotonic_ns
from horologe_common.service.isolation import describe_exit
from horologe_common.service.process_start import start_isolated, start_patiently
from horologe_common.status import ModelFailed
from horologe_gpu_worker.inspection.inspection_messages import (
    READING,
    Inspect,
    Inspected,
    InspectionSetup,
    Progress,
    decode_from_process,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROCESS = "horologe_gpu_worker.inspection.inspection_process"
EXIT_S = 0.5
"""Seconds in which a process that has closed its socket ends."""


class InspectionEnded(ModelFailed):
    """The process has ended by itself (`crashed`), or was killed because it did not answer in time."""

    def __init__(self, reason: str, *, crashed: bool) -> None:
        super().__init__(reason)
        self.crashed = crashed


class Timeout(NamedTuple):
    """Begin of an inspection, and the time in ns by which the version must be loaded and measured."""

    begin_ns: int
    timeout_ns: int

    @property
    def end_ns(self) -> int:
        return self.begin_ns + self.timeout_ns


class Inspector:
    """A process that inspects one model at a time. Call `start` first; `kill` may be called from any thread.

    The process is the first that the kernel ends if memory runs out, and ends with the worker.
    """

    def __init__(self, setup: InspectionSetup) -> None:
        self._setup = setup
        self._connection: Connection | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self.inspections = 0
        """Number of inspections that have begun."""
        self.idle_since_ns = 0

    def start(self) -> None:
        """Start the process. Try again while the system has too few processes or descriptors. Raises OSError."""
        started = start_patiently("inspection", lambda: start_isolated(PROCESS, os.environ, ""))
        self._process, self._lifeline = started.process, started.lifeline
        self._connection = Connection(started.sock.detach())

    def inspect(self, folder: Path, content_hash: str, on_progress: Callable[[str], None]) -> tuple[Inspected, Timeout]:
        """Inspect a version. Return the result, and the timeout of all that is done to the version.

        Raises `InspectionEnded` if the process ends, or does not answer in time.
        """
        begin_ns, timeout_ns, doing = monotonic_ns(), self._setup.device.load_timeout_ns, READING
        self.inspections += 1
        assert self._connection is not None
        try:
            if self.inspections == 1:
                self._connection.send_bytes(encode(self._setup))
            self._connection.send_bytes(encode(Inspect(os.fsencode(folder), content_hash)))
            while self._connection.poll(max(0, begin_ns + timeout_ns - monotonic_ns()) / 1e9):
                match decode_from_process(self._connection.recv_bytes()):
                    case Progress(text, timeout_ns):
                        doing = text
                        on_progress(text)
                    case Inspected() as inspected:
                        self.idle_since_ns = monotonic_ns()
                        return inspected, Timeout(begin_ns, timeout_ns)
        except (EOFError, OSError):
            reason = f"{folder}: its process ended ({self._exit_reason()}) while {doing}"
            raise InspectionEnded(reason, crashed=True) from None
        self.kill()
        raise InspectionEnded(overdue_reason(folder, timeout_ns, doing), crashed=False)

    def kill(self) -> None:
        """Kill the process and all that it has started."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process, and wait until it has ended. The processes of its models end with its descriptors."""
        self.kill()
        if self._connection is not None:
            self._connection.close()
            os.close(self._lifeline)
        if self._process is not None:
            self._process.wait()

    def _exit_reason(self) -> str:
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                return describe_exit(self._process.wait(EXIT_S))
        return "closed its socket"


def overdue_reason(folder: Path, timeout_ns: int, doing: str) -> str:
    """Return why a version is unavailable that was not loaded and measured in time."""
    return (
        f"{folder}: got no result within {timeout_ns / 1e9:g} s, while {doing}, wanted a model that is loaded and "
        "measured by then (`load_timeout` in model.toml, worker.load_timeout_ns)"
    )
