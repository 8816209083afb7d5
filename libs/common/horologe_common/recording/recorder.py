"""The recorder: the messages that each core of a process receives and sends, in a bounded ring, for a replay.

A segment is a snapshot of a core, followed by its messages and ticks from then on. Tensors are recorded as sizes; for a
core with `records_predictions = True`, as summaries (tensor_summary.py). The ring is written to a file on SIGUSR1, at
stop, and when a core raises. The file is a bug report; `horologe_sim.replay` makes a test of it.

Each snapshot pauses the core, once per `messages`: 40 us for each open request (0.4 s with 10,000 open requests, on a
busy machine). Therefore recording is off by default.
"""

from __future__ import annotations

import signal
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import s
from horologe_common.core.protocol import Out, role
from horologe_common.recording.recording_file import Called, Handled, Segment, Ticked, write_segments
from horologe_common.recording.snapshot import snapshot, strip_tensors
from horologe_common.recording.tensor_summary import summarize_tensors
from horologe_common.service.log import logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.hosting import CoreHost
    from horologe_common.core.protocol import Buffer, Core
    from horologe_common.recording.tensor_summary import TensorSummary

log = logger("recorder")

FAULT_EVERY_NS = s(60)
"""Shortest time between two recordings because of faults."""
SEGMENTS = 2
"""Segments per core. The oldest is dropped."""


class RecorderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Recording of messages for a replay."""

    directory: str = ""
    """Folder for recordings, written on SIGUSR1, at stop and when a core raises. Empty: recording is off."""
    messages: int = 20_000
    """Messages and ticks after which a new snapshot of the core is taken. The last two snapshots are kept."""
    roles: tuple[str, ...] = ()
    """Roles of the cores to record, such as `controller`. Empty: all."""


class Recorder:
    """A `CoreObserver`: one ring of segments per core, at most `segments` * `messages` entries each."""

    def __init__(self, settings: RecorderSettings, process: str, segments: int = SEGMENTS) -> None:
        self.settings = settings
        self.segments = segments
        self.process = process
        self.write_reason = ""
        """Reason to write a file after this turn; empty: do not write."""
        self._rings: dict[str, deque[Segment]] = {}
        self._not_recordable: dict[str, bool] = {}
        self._written = 0
        self._fault_ns = 0

    def observe_message(self, now_ns: int, core: Core, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Record a message before the core handles it."""
        if (segment := self._segment(now_ns, core)) is not None:
            segment.entries.append(Handled(now_ns, sender, strip_tensors(message), summarize(core, message, buffers)))

    def observe_tick(self, now_ns: int, core: Core, outs: Sequence[Out]) -> None:
        """Record a tick and its messages, and write a file if one was requested."""
        ring = self._rings.get(core.address)
        if ring:
            sent = tuple(
                (out.to, strip_tensors(out.message), summarize(core, out.message, out.buffers)) for out in outs
            )
            ring[-1].entries.append(Ticked(now_ns, sent))
            if len(ring[-1].entries) >= self.settings.messages:
                self._begin_segment(now_ns, core, ring)
        if self.write_reason:
            reason, self.write_reason = self.write_reason, ""
            self.write(reason)

    def observe_call(self, now_ns: int, core: Core, method: str, arguments: tuple[int, ...]) -> None:
        """Record a call of another method of the core."""
        if ring := self._rings.get(core.address):
            ring[-1].entries.append(Called(now_ns, method, arguments))

    def observe_fault(self, now_ns: int, core: Core) -> None:
        """Request a file after this turn, unless a fault has requested one recently."""
        if now_ns - self._fault_ns > FAULT_EVERY_NS:
            self._fault_ns = now_ns
            self.write_reason = "fault"

    def write(self, reason: str) -> Path | None:
        """Write the rings to a new file and return its path. If that fails, log an error and return None."""
        self._written += 1
        path = Path(self.settings.directory) / f"{self.process}-{self._written:03}-{reason}.rec"
        segments = [segment for ring in self._rings.values() for segment in ring]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                write_segments(file, segments, reason)
        except OSError as error:
            log.error("recording not written", path=str(path), error=str(error))
            return None
        log.info("recording written", path=str(path), entries=sum(len(segment.entries) for segment in segments))
        return path

    def _segment(self, now_ns: int, core: Core) -> Segment | None:
        ring = self._rings.get(core.address)
        if ring is None:
            if core.address in self._not_recordable or not self._is_selected(core):
                return None
            ring = deque(maxlen=self.segments)
            self._begin_segment(now_ns, core, ring)
            if not ring:
                return None
            self._rings[core.address] = ring
        return ring[-1]

    def _is_selected(self, core: Core) -> bool:
        roles = self.settings.roles
        return getattr(core, "recorded", True) and (not roles or role(core.address) in roles)

    def _begin_segment(self, now_ns: int, core: Core, ring: deque[Segment]) -> None:
        try:
            ring.append(Segment(core.address, now_ns, snapshot(core), []))
        except Exception as error:  # a value that cannot be pickled must not stop the core
            self._not_recordable[core.address] = True
            self._rings.pop(core.address, None)
            log.exception("core not recorded", core=core.address, error=str(error))


def summarize(core: Core, message: Any, buffers: Sequence[Buffer]) -> tuple[TensorSummary, ...]:
    """Return the summaries to record of a message's tensors."""
    if buffers and getattr(core, "records_predictions", False):
        return summarize_tensors(message, buffers)
    return tuple(map(len, buffers))


def install(host: CoreHost, settings: RecorderSettings, process: str) -> Recorder | None:
    """Record the cores of a process if recording is on, and write on SIGUSR1. Call it on the main thread.

    If recording is off, SIGUSR1 is logged: by default, it would end the process.
    """
    if not settings.directory:
        signal.signal(signal.SIGUSR1, lambda *_: log.warning("no recording: recorder.directory is empty"))
        return None
    recorder = Recorder(settings, process)
    host.observer = recorder

    def request_file(*_: Any) -> None:
        recorder.write_reason = "asked"

    signal.signal(signal.SIGUSR1, request_file)
    return recorder
