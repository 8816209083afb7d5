"""A process of a share, as its parent sees it: commands and replies, JSON over a socket."""

from __future__ import annotations

import os
import tempfile
from contextlib import ExitStack, suppress
from typing import TypeAlias, TypeVar

import msgspec

from horologe_common.clock import s
from horologe_common.service.parent_link import PacketSocket
from horologe_common.service.processes import start_isolated, start_patiently
from horologe_common.status import HorologeError
from horologe_gpu_worker.settings import WorkerSettings

MODULE = "horologe_gpu_worker.measurement.share_process"
REPLY_NS = s(180)
"""Timeout of a reply. To import PyTorch from a cold disk and to capture the graphs of a large model takes a minute."""
END_S = 5.0
"""Seconds that a process has to end by itself."""
LOG_BYTES = 2000


class ShareJob(msgspec.Struct, frozen=True, tag=True):
    """First message to a share process: the model that it opens, and the settings that name its share of the device."""

    folder: str
    """`<repository>/<name>/<version>`."""
    settings: WorkerSettings


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is open."""

    percent: float
    """Share of the device that the process has."""
    batch_sizes: tuple[int, ...]
    load_bytes: float
    feedback_bytes: float
    """Per row."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Run batches until Stop. Answered by CommandDone after the first batch."""

    batch: int


class Measure(msgspec.Struct, frozen=True, tag=True):
    """Time the batches of some seconds. Answered by Measured; batches continue."""

    seconds: float


class Measured(msgspec.Struct, frozen=True, tag=True):
    """Mean times of the batches in ms, and the standard deviation of `gpu_ms`."""

    batches: int
    load_ms: float
    gpu_ms: float
    feedback_ms: float
    deviation_ms: float


class Trace(msgspec.Struct, frozen=True, tag=True):
    """Trace some of the batches. Answered by Traced; batches continue."""


class Traced(msgspec.Struct, frozen=True, tag=True):
    """Mean figures of a batch."""

    kernels: int
    gaps: float
    """Part of the time from the first to the last kernel in which no kernel ran."""
    moved_bytes: float = 0.0
    """Bytes that the kernels read and write."""
    cache_percent: float | None = None
    """L2 utilisation that the model declares."""


class Rates(msgspec.Struct, frozen=True, tag=True):
    """Measure the rates of copies on the idle device. Answered by MeasuredRates."""


class MeasuredRates(msgspec.Struct, frozen=True, tag=True):
    """Bytes per ms from host to device, and within the device's memory. 0: not measured."""

    transfer_bytes_per_ms: float
    memory_bytes_per_ms: float


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Run no more batches. Answered by CommandDone."""


class CommandDone(msgspec.Struct, frozen=True, tag=True):
    """A command without a result has been followed."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The model cannot be opened or run. The process ends."""

    reason: str


Command: TypeAlias = Begin | Measure | Trace | Rates | Stop
Reply: TypeAlias = Ready | CommandDone | Measured | Traced | MeasuredRates | Failed
Wanted = TypeVar("Wanted", bound=Reply)
_decode_reply = msgspec.json.Decoder(Reply).decode


class ShareFailed(HorologeError):
    """A share process failed, ended or did not reply."""


class ShareConnection:
    """A share process. Call `start` first. Every method raises ShareFailed."""

    def __init__(self, job: ShareJob) -> None:
        self._job = job

    def start(self) -> None:
        """Start the process, which opens its model. Does not wait for it."""
        with ExitStack() as opened:
            self._log = opened.enter_context(tempfile.TemporaryFile())
            try:
                self._child = start_patiently(
                    self._name, lambda: start_isolated(MODULE, os.environ, output=self._log.fileno())
                )
            except OSError as error:
                raise ShareFailed(f"{self._name}: could not be started: {error}") from error
            opened.pop_all()
        self._packets = PacketSocket(self._child.sock)
        self.send(self._job)

    def send(self, message: ShareJob | Command) -> None:
        """Send a command. Does not wait for its reply."""
        with suppress(BrokenPipeError):  # the next reply raises
            self._packets.send([msgspec.json.encode(message)])

    def ask(self, command: Command, kind: type[Wanted]) -> Wanted:
        """Send a command and return its reply, of this kind."""
        self.send(command)
        return self.wait_reply(kind)

    def wait_reply(self, kind: type[Wanted], timeout_ns: int = REPLY_NS) -> Wanted:
        """Return the next reply, of this kind."""
        if not self._packets.has_arrived(timeout_ns):
            raise ShareFailed(f"{self._name}: no reply after {timeout_ns / 1e9:g} s")
        try:
            reply = _decode_reply(self._packets.receive()[0])
        except (EOFError, ConnectionResetError):
            raise ShareFailed(f"{self._name}: {self._describe_end()}") from None
        if isinstance(reply, kind):
            return reply
        raise ShareFailed(f"{self._name}: {reply.reason if isinstance(reply, Failed) else f'got {reply}'}")

    def close(self) -> None:
        """End the process."""
        self._packets.close()
        self._child.end(END_S)
        self._log.close()

    @property
    def _name(self) -> str:
        return f"{self._job.folder} at {self._job.settings.share_percent:g}%"

    def _describe_end(self) -> str:
        end = self._child.describe_end(END_S)
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - LOG_BYTES))
        lines = self._log.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no log")
        return f"ended with {end}: {last}"
