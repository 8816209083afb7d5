"""A process that inspects models: the worker's end, and the messages, msgpack over a socket. Nothing is unpickled."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import msgspec

from horologe_common.clock import monotonic_ns
from horologe_common.service.parent_link import PacketSocket
from horologe_common.service.processes import IsolatedProcess, start_isolated, start_patiently
from horologe_common.status import ModelFailed
from horologe_gpu_worker.repository.content import HashedFile
from horologe_gpu_worker.repository.version_inspector import VersionReport
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PROCESS = "horologe_gpu_worker.inspection.inspection_process"
EXIT_S = 0.5
"""Seconds in which a process that has closed its socket ends."""
READING = "reading its files"
"""Progress of an inspection that has begun."""


class InspectionSetup(msgspec.Struct, tag="setup", array_like=True, frozen=True):
    """First message to the process."""

    repository: bytes
    """`worker.repository` and `worker.cache`, as the file system encodes them. They are empty in `settings`."""
    cache: bytes
    settings: WorkerSettings
    unmeasured: tuple[str, ...] = ()
    """Runtimes whose models are only read: the worker measures them, because they need its device."""


class Inspect(msgspec.Struct, tag="inspect", array_like=True, frozen=True):
    """Request to inspect the version in `folder`."""

    folder: bytes
    content_hash: str = ""
    """Content that the worker serves. Nothing but the files is read if they still have it."""


class Progress(msgspec.Struct, tag="progress", array_like=True, frozen=True):
    """What the process does now. `timeout_ns`: limit of the whole inspection."""

    text: str
    timeout_ns: int


class Inspected(msgspec.Struct, tag="inspected", array_like=True, frozen=True):
    """Result, with the hashes of the files, so that the worker need not read them again."""

    result: VersionReport
    files: tuple[HashedFile, ...] = ()


ToProcess: TypeAlias = InspectionSetup | Inspect
FromProcess: TypeAlias = Progress | Inspected

encode = msgspec.msgpack.Encoder().encode
decode_to_process = msgspec.msgpack.Decoder(ToProcess).decode
decode_from_process = msgspec.msgpack.Decoder(FromProcess).decode


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
        self._child: IsolatedProcess | None = None
        self.inspections = 0
        """Number of inspections that have begun."""
        self.idle_since_ns = 0

    def start(self) -> None:
        """Start the process. Try again while the system has too few processes or descriptors. Raises OSError."""
        self._child = start_patiently("inspection", lambda: start_isolated(PROCESS, os.environ))
        self._packets = PacketSocket(self._child.sock)

    def inspect(self, folder: Path, content_hash: str, on_progress: Callable[[str], None]) -> tuple[Inspected, Timeout]:
        """Inspect a version. Return the result, and the timeout of all that is done to the version.

        Raises `InspectionEnded` if the process ends, or does not answer in time.
        """
        begin_ns, timeout_ns, doing = monotonic_ns(), self._setup.settings.load_timeout_ns, READING
        self.inspections += 1
        assert self._child is not None
        try:
            if self.inspections == 1:
                self._packets.send([encode(self._setup)])
            self._packets.send([encode(Inspect(os.fsencode(folder), content_hash))])
            while self._packets.has_arrived(begin_ns + timeout_ns - monotonic_ns()):
                match decode_from_process(self._packets.receive()[0]):
                    case Progress(text, timeout_ns):
                        doing = text
                        on_progress(text)
                    case Inspected() as inspected:
                        self.idle_since_ns = monotonic_ns()
                        return inspected, Timeout(begin_ns, timeout_ns)
        except (EOFError, OSError):
            reason = f"{folder}: its process ended ({self._child.describe_end(EXIT_S)}) while {doing}"
            raise InspectionEnded(reason, crashed=True) from None
        self.kill()
        raise InspectionEnded(overdue_reason(folder, timeout_ns, doing), crashed=False)

    def kill(self) -> None:
        """Kill the process and all that it has started."""
        if self._child is not None:
            self._child.kill()

    def close(self) -> None:
        """Kill the process, and wait until it has ended. The processes of its models end with its descriptors."""
        if self._child is not None:
            self._packets.close()
            self._child.end()


def overdue_reason(folder: Path, timeout_ns: int, doing: str) -> str:
    """Return why a version is unavailable that was not loaded and measured in time."""
    return (
        f"{folder}: got no result within {timeout_ns / 1e9:g} s, while {doing}, wanted a model that is loaded and "
        "measured by then (`load_timeout` in model.toml, worker.load_timeout_ns; for a fetch worker.fetch_timeout_ns)"
    )
