"""The recorder: the messages that each core of a process receives and sends, in a bounded ring, for a replay.

A segment is a snapshot of a core, followed by its messages and ticks from then on. Tensors are recorded as sizes; for a
core with `records_predictions = True`, as summaries (tensor_summary.py). The ring is written to a file on SIGUSR1, at
stop, and when a core raises. The file is a bug report; `horologe_sim.replay` makes a test of it.

File: records, each a length of four bytes (little-endian) and this number of bytes of msgpack.

- the first: `{"format", "version", "protocol", "reason", "segments"}`
- for each segment: `{"core", "start_ns", "snapshot", "entries"}` (snapshot.py), then as many entries:
  `["handled", now_ns, sender, message, summaries]`, `["ticked", now_ns, [[to, message, summaries]...]]`, or
  `["called", now_ns, method, arguments]` (`end_turn`, `drain`). A message is
  `["wire", msgpack]` as in a packet, or `["local", pickle]` if it never leaves a process. A summary is a number, bytes
  or an array of numbers.

Each snapshot pauses the core, once per `messages`: 40 us for each open request (0.4 s with 10,000 open requests, on a
busy machine). Therefore recording is off by default.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta

from horologe_common import partial_decoding
from horologe_common.clock import s
from horologe_common.core.protocol import Out, role
from horologe_common.recording.snapshot import dump_message, load_message, snapshot, strip_tensors
from horologe_common.recording.tensor_summary import summarize_tensors
from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_common.status import HorologeError, describe_error, describe_exception
from horologe_common.wire import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.core.hosting import CoreHost
    from horologe_common.core.protocol import Buffer, Core
    from horologe_common.recording.tensor_summary import TensorSummary

log = logger("recorder")

FORMAT = "horologe-recording"
VERSION = 3
METHODS = ("end_turn", "drain")
"""Methods of cores, besides those of `Core`, whose calls are recorded."""
RECORD_LIMIT = 1 << 30
DAMAGE = (*partial_decoding.DAMAGE, AttributeError, EOFError, LookupError, HorologeError)
"""Errors of reading a record of any bytes."""
FAULT_EVERY_NS = s(60)
"""Shortest time between two recordings because of faults."""


class RecorderSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Recording of messages for a replay."""

    directory: str = ""
    """Folder for recordings, written on SIGUSR1, at stop and when a core raises. Empty: recording is off."""
    messages: int = 20_000
    """Messages and ticks in a segment. The next segment begins with a new snapshot of the core."""
    segments: Annotated[int, Meta(ge=1, le=1000)] = 2
    """Segments per core. The oldest is dropped."""
    roles: tuple[str, ...] = ()
    """Roles of the cores to record, such as `controller`. Empty: all."""


class Handled(msgspec.Struct, frozen=True, gc=False):
    """A message that a core received."""

    now_ns: int
    sender: str
    message: Any
    summaries: tuple[TensorSummary, ...] = ()


class Ticked(msgspec.Struct, frozen=True, gc=False):
    """A tick of a core, and the messages that it sent: `(to, message, summaries)`."""

    now_ns: int
    outs: tuple[tuple[str, Any, tuple[TensorSummary, ...]], ...] = ()


class Called(msgspec.Struct, frozen=True, gc=False):
    """A call of another method of a core: one of `METHODS`, with numbers."""

    now_ns: int
    method: str
    arguments: tuple[int, ...] = ()


Entry = Handled | Ticked | Called


class Segment(msgspec.Struct):
    """A snapshot of a core, and what happened from then on."""

    core: str
    start_ns: int
    snapshot: bytes
    entries: list[Entry]
    damage: str = ""
    """Why the entries after these could not be read from a file; empty: these are all."""


class Recorder:
    """A `CoreObserver`: one ring of segments per core, at most `segments` * `messages` entries each."""

    def __init__(self, settings: RecorderSettings, process: str) -> None:
        self.settings = settings
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
            if (
                core.address in self._not_recordable
                or not getattr(core, "recorded", True)
                or not self._is_selected(core)
            ):
                return None
            ring = deque(maxlen=self.settings.segments)
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


def write_segments(file: BinaryIO, segments: Sequence[Segment], reason: str) -> None:
    """Write the file format of the module's docstring."""
    _write_record(
        file, {"format": FORMAT, "version": VERSION, "protocol": PROTOCOL, "reason": reason, "segments": len(segments)}
    )
    for segment in segments:
        entries = _encode_entries(segment)
        _write_record(
            file,
            {
                "core": segment.core,
                "start_ns": segment.start_ns,
                "snapshot": segment.snapshot,
                "entries": len(entries),
            },
        )
        for entry in entries:
            _write_bytes(file, entry)


def _encode_entries(segment: Segment) -> list[bytes]:
    """Encode the entries of a segment, up to the first one that cannot be encoded. That one is named in the log."""
    encoded: list[bytes] = []
    for entry in list(segment.entries):
        try:
            encoded.append(msgspec.msgpack.encode(_entry_record(entry)))
        except Exception as error:  # a message may hold any object of a core
            log.warning(
                "recording ends early: an entry cannot be encoded",
                core=segment.core, entry=len(encoded) + 1, error=describe_exception(error),
            )  # fmt: skip
            break
    return encoded


def _entry_record(entry: Entry) -> list[Any]:
    match entry:
        case Handled():
            return ["handled", entry.now_ns, entry.sender, dump_message(entry.message), entry.summaries]
        case Ticked():
            outs = [(to, dump_message(message), summaries) for to, message, summaries in entry.outs]
            return ["ticked", entry.now_ns, outs]
        case Called():
            return ["called", entry.now_ns, entry.method, entry.arguments]


def read_segments(path: str | Path) -> Iterator[Segment]:
    """Yield the segments of a recording. One that is damaged has the entries before the damage, and its `damage`.

    Raises `SettingsError` if the file is not a recording, or damaged so that nothing of it can be read.
    """
    try:
        with Path(path).open("rb") as file:
            yield from _read_segments(path, file)
    except OSError as error:
        raise SettingsError(f"recording {path}: {describe_error(error)}") from error


def _read_segments(path: str | Path, file: BinaryIO) -> Iterator[Segment]:
    count = _read_head(path, file)
    for number in range(count):
        try:
            segment, entries = _read_segment_head(file)
        except DAMAGE as error:
            reason = f"recording {path}: segment {number + 1} of {count}: {error or type(error).__name__}"
            if not number:
                raise SettingsError(reason) from error
            log.warning("recording damaged: read up to the damage", path=str(path), error=reason)
            return
        _read_entries(file, segment, entries)
        if segment.damage:
            log.warning(
                "recording damaged: read up to the damage",
                path=str(path), core=segment.core, entries=len(segment.entries), error=segment.damage,
            )  # fmt: skip
        yield segment


def _read_head(path: str | Path, file: BinaryIO) -> int:
    """Return the number of segments. Raises `SettingsError` if the file is not a recording of this version."""
    try:
        head = _read_record(file)
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise SettingsError(f"recording {path}: not a recording")
        if (head.get("version"), head.get("protocol")) != (VERSION, PROTOCOL):
            raise SettingsError(f"recording {path}: version {head.get('version')}, wanted {VERSION}")
        return int(head["segments"])
    except DAMAGE as error:
        raise SettingsError(f"recording {path}: {type(error).__name__}: {error}") from error


def _read_segment_head(file: BinaryIO) -> tuple[Segment, int]:
    """Return the next segment without its entries, and the number of these. Raises `DAMAGE`."""
    head = _read_record(file)
    return Segment(str(head["core"]), int(head["start_ns"]), bytes(head["snapshot"]), []), int(head["entries"])


def _read_entries(file: BinaryIO, segment: Segment, count: int) -> None:
    """Read entries up to the first damaged one. The rest of the segment is skipped, because it depends on that one."""
    for number in range(count):
        try:
            record = _read_record(file)
            if not segment.damage:
                segment.entries.append(_to_entry(record))
        except DAMAGE as error:
            segment.damage = segment.damage or f"entry {number + 1} of {count}: {error or type(error).__name__}"
            if isinstance(error, EOFError):
                return


def _to_entry(record: Any) -> Entry:
    """Convert a record. Raises `DAMAGE`."""
    kind, now_ns, *rest = record
    if not isinstance(now_ns, int):
        raise ValueError(f"now_ns: got {now_ns!r}, wanted a number")
    if kind == "handled":
        sender, message, summaries = rest
        return Handled(now_ns, str(sender), _to_message(message), _to_summaries(summaries))
    if kind == "called":
        method, arguments = rest
        if method not in METHODS:
            raise ValueError(f"method: got {method!r}, wanted one of {', '.join(METHODS)}")
        return Called(now_ns, method, tuple(arguments))
    if kind != "ticked":
        raise ValueError(f"entry: got {kind!r}, wanted handled, ticked or called")
    outs = tuple((str(to), _to_message(message), _to_summaries(summaries)) for to, message, summaries in rest[0])
    return Ticked(now_ns, outs)


def _to_message(dumped: Any) -> msgspec.Struct:
    """Return a recorded message. Raises `DAMAGE`."""
    message = load_message(dumped)
    if not isinstance(message, msgspec.Struct):
        raise ValueError(f"message: got {type(message).__name__}, wanted a struct")
    return message


def _to_summaries(decoded: list[Any]) -> tuple[TensorSummary, ...]:
    return tuple(tuple(item) if isinstance(item, list) else item for item in decoded)


def _write_record(file: BinaryIO, record: Any) -> None:
    _write_bytes(file, msgspec.msgpack.encode(record))


def _write_bytes(file: BinaryIO, body: bytes) -> None:
    file.write(len(body).to_bytes(4, "little") + body)


def _read_record(file: BinaryIO) -> Any:
    length = int.from_bytes(file.read(4), "little")
    remaining = os.fstat(file.fileno()).st_size - file.tell()
    if not 0 < length <= min(remaining, RECORD_LIMIT):
        raise EOFError(f"truncated: got {remaining} bytes, wanted a record of {length}")
    return msgspec.msgpack.decode(file.read(length))
