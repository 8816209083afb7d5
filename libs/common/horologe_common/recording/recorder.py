"""The recorder: what every core of a process was told and what it said, in a bounded ring, to be replayed later.

A segment is a snapshot of a core followed by the messages and ticks it got from then on. Tensors are kept as sizes,
and of a core that says `records_predictions = True` as outlines (outlines.py).
Written out (on SIGUSR1, at stop, when a core faults), it is a bug report; fed to `horologe_sim.replay`, a test.

File: records, each four bytes of length (little-endian) and so many bytes of msgpack.

- the first: `{"format", "version", "protocol", "reason", "segments"}`
- for each segment: `{"core", "start_ns", "snapshot", "entries"}` (snapshot.py), then as many entries:
  `["handled", now_ns, sender, message, outlines]` or `["ticked", now_ns, [[to, message, outlines]...]]`, where a
  message is `["wire", msgpack]` as in a packet, or `["local", pickle]` for those that never leave a process, and an
  outline a number, bytes or an array of numbers.

Taking a snapshot pauses the core once per `messages`: 40 us for each open request (0.4 s with 10,000 of them, on a
busy machine). That is why nothing is recorded unless asked for.
"""

from __future__ import annotations

import signal
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from horologe_common.clock import s
from horologe_common.core.protocol import Out, role
from horologe_common.recording.snapshot import dump_message, load_message, snapshot, strip_tensors
from horologe_common.recording.tensor_summary import summarize_tensors
from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_common.wire import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.core.hosting import CoreHost
    from horologe_common.core.protocol import Buffer, Core
    from horologe_common.recording.tensor_summary import TensorSummary

log = logger("recorder")

FORMAT = "horologe-recording"
VERSION = 2
RECORD_LIMIT = 1 << 30
FAULT_EVERY_NS = s(60)
"""A core that faults all the time is not written out more often."""


class RecorderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is remembered for a replay."""

    directory: str = ""
    """Where recordings are written on SIGUSR1, at stop, and when a core faults; empty: nothing is recorded."""
    messages: int = 20_000
    """Messages and ticks in a segment; then a new one begins, with a snapshot of the core."""
    segments: int = 2
    """Segments kept per core; the oldest is dropped."""
    roles: tuple[str, ...] = ()
    """Of the cores to record, as in `controller`; empty: all."""


class Handled(msgspec.Struct, frozen=True, gc=False):
    """A core was handed a message, with tensors."""

    now_ns: int
    sender: str
    message: Any
    outlines: tuple[TensorSummary, ...] = ()


class Ticked(msgspec.Struct, frozen=True, gc=False):
    """A core was ticked and put this out: `(to, message, outlines)`."""

    now_ns: int
    outs: tuple[tuple[str, Any, tuple[TensorSummary, ...]], ...] = ()


class Segment(msgspec.Struct):
    core: str
    start_ns: int
    snapshot: bytes
    entries: list[Handled | Ticked]


class Recorder:
    """A `CoreObserver`: one ring of segments per core, at most `segments` * `messages` entries each."""

    def __init__(self, settings: RecorderSettings, process: str) -> None:
        self.settings = settings
        self.process = process
        self.wanted = ""
        """Write out after this turn; why."""
        self._rings: dict[str, deque[Segment]] = {}
        self._unable: dict[str, bool] = {}
        self._written = 0
        self._fault_ns = 0

    def observe_message(self, now_ns: int, core: Core, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Called before the core's `handle`."""
        if (segment := self._segment(now_ns, core)) is not None:
            segment.entries.append(Handled(now_ns, sender, strip_tensors(message), seen(core, message, buffers)))

    def observe_tick(self, now_ns: int, core: Core, outs: Sequence[Out]) -> None:
        """Called after the core's `tick`."""
        ring = self._rings.get(core.address)
        if ring:
            told = tuple((out.to, strip_tensors(out.message), seen(core, out.message, out.buffers)) for out in outs)
            ring[-1].entries.append(Ticked(now_ns, told))
            if len(ring[-1].entries) >= self.settings.messages:
                self._begin(now_ns, core, ring)
        if self.wanted:
            reason, self.wanted = self.wanted, ""
            self.write(reason)

    def observe_fault(self, now_ns: int, core: Core) -> None:
        """A core raised: what led to it is written out after this turn."""
        if now_ns - self._fault_ns > FAULT_EVERY_NS:
            self._fault_ns = now_ns
            self.wanted = "fault"

    def write(self, reason: str) -> Path | None:
        """Write everything remembered to a new file; None (and a log line) where that cannot be done."""
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
        log.info("recording written", path=str(path), entries=sum(len(one.entries) for one in segments))
        return path

    def _segment(self, now_ns: int, core: Core) -> Segment | None:
        ring = self._rings.get(core.address)
        if ring is None:
            if core.address in self._unable or not getattr(core, "recorded", True) or not self._asked_for(core):
                return None
            ring = deque(maxlen=self.settings.segments)
            self._begin(now_ns, core, ring)
            if not ring:
                return None
            self._rings[core.address] = ring
        return ring[-1]

    def _asked_for(self, core: Core) -> bool:
        return not self.settings.roles or role(core.address) in self.settings.roles

    def _begin(self, now_ns: int, core: Core, ring: deque[Segment]) -> None:
        try:
            ring.append(Segment(core.address, now_ns, snapshot(core), []))
        except Exception as error:  # whatever a core holds must not stop it from working
            self._unable[core.address] = True
            self._rings.pop(core.address, None)
            log.exception("core not recorded", core=core.address, error=str(error))


def seen(core: Core, message: Any, buffers: Sequence[Buffer]) -> tuple[TensorSummary, ...]:
    """What is recorded of a message's tensors."""
    if buffers and getattr(core, "records_predictions", False):
        return summarize_tensors(message, buffers)
    return tuple(map(len, buffers))


def install(host: CoreHost, settings: RecorderSettings, process: str) -> Recorder | None:
    """Record the cores of a process, if `settings` want it, and write on SIGUSR1. For the main thread."""
    if not settings.directory:
        return None
    recorder = Recorder(settings, process)
    host.observer = recorder

    def ask(*_: Any) -> None:
        recorder.wanted = "asked"

    signal.signal(signal.SIGUSR1, ask)
    return recorder


def write_segments(file: BinaryIO, segments: Sequence[Segment], reason: str) -> None:
    """The file format of the module's docstring."""
    _put(
        file, {"format": FORMAT, "version": VERSION, "protocol": PROTOCOL, "reason": reason, "segments": len(segments)}
    )
    for segment in segments:
        entries = list(segment.entries)
        _put(
            file,
            {
                "core": segment.core,
                "start_ns": segment.start_ns,
                "snapshot": segment.snapshot,
                "entries": len(entries),
            },
        )
        for entry in entries:
            match entry:
                case Handled():
                    _put(file, ["handled", entry.now_ns, entry.sender, dump_message(entry.message), entry.outlines])
                case Ticked():
                    outs = [(to, dump_message(message), told) for to, message, told in entry.outs]
                    _put(file, ["ticked", entry.now_ns, outs])


def read_segments(path: str | Path) -> Iterator[Segment]:
    """The segments of a recording. Raises `SettingsError` for a file that is none, or is cut short."""
    try:
        with Path(path).open("rb") as file:
            head = _get(file)
            if not isinstance(head, dict) or head.get("format") != FORMAT:
                raise SettingsError(f"recording {path}: not a recording")
            if (head.get("version"), head.get("protocol")) != (VERSION, PROTOCOL):
                raise SettingsError(f"recording {path}: version {head.get('version')}, wanted {VERSION}")
            for _ in range(head["segments"]):
                yield _read_segment(file)
    except SettingsError:
        raise
    except Exception as error:  # any bytes may be in it
        raise SettingsError(f"recording {path}: {type(error).__name__}: {error}") from error


def _read_segment(file: BinaryIO) -> Segment:
    head = _get(file)
    segment = Segment(str(head["core"]), int(head["start_ns"]), bytes(head["snapshot"]), [])
    for _ in range(head["entries"]):
        kind, now_ns, *rest = _get(file)
        if kind == "handled":
            sender, message, told = rest
            segment.entries.append(Handled(now_ns, sender, load_message(message), _outlines(told)))
        else:
            outs = tuple((to, load_message(message), _outlines(told)) for to, message, told in rest[0])
            segment.entries.append(Ticked(now_ns, outs))
    return segment


def _outlines(read: list[Any]) -> tuple[TensorSummary, ...]:
    return tuple(tuple(one) if isinstance(one, list) else one for one in read)


def _put(file: BinaryIO, record: Any) -> None:
    body = msgspec.msgpack.encode(record)
    file.write(len(body).to_bytes(4, "little") + body)


def _get(file: BinaryIO) -> Any:
    length = int.from_bytes(file.read(4), "little")
    body = file.read(min(length, RECORD_LIMIT))
    if not length or len(body) < length:
        raise EOFError("cut short")
    return msgspec.msgpack.decode(body)
