"""The file of a recording: segments of entries, read up to the first damage.

File: records, each a length of four bytes (little-endian) and this number of bytes of msgpack.

- the first: `{"format", "version", "protocol", "reason", "segments"}`
- for each segment: `{"core", "start_ns", "snapshot", "entries"}` (snapshot.py), then as many entries:
  `["handled", now_ns, sender, message, summaries]`, `["ticked", now_ns, [[to, message, summaries]...]]`, or
  `["called", now_ns, method, arguments]` (`end_turn`, `drain`). A message is
  `["wire", msgpack]` as in a packet, or `["local", pickle]` if it never leaves a process. A summary is a number, bytes
  or an array of numbers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from horologe_common import partial_decoding
from horologe_common.recording.snapshot import dump_message, load_message
from horologe_common.recording.tensor_summary import TensorSummary
from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_common.status import HorologeError, describe_error, describe_exception
from horologe_common.wire import PROTOCOL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

log = logger("recorder")

FORMAT = "horologe-recording"
VERSION = 3
METHODS = ("end_turn", "drain")
"""Methods of cores, besides those of `Core`, whose calls are recorded."""
RECORD_LIMIT = 1 << 30
DAMAGE = (*partial_decoding.DAMAGE, AttributeError, EOFError, LookupError, HorologeError)
"""Errors of reading a record of any bytes."""


class Handled(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="handled"):
    """A message that a core received."""

    now_ns: int
    sender: str
    message: Any
    summaries: tuple[TensorSummary, ...] = ()


class Ticked(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="ticked"):
    """A tick of a core, and the messages that it sent: `(to, message, summaries)`."""

    now_ns: int
    outs: tuple[tuple[str, Any, tuple[TensorSummary, ...]], ...] = ()


class Called(msgspec.Struct, frozen=True, gc=False, array_like=True, tag="called"):
    """A call of another method of a core: one of `METHODS`, with numbers."""

    now_ns: int
    method: str
    arguments: tuple[int, ...] = ()


Entry = Handled | Ticked | Called
_decoder = msgspec.msgpack.Decoder(Entry)


class Segment(msgspec.Struct):
    """A snapshot of a core, and what happened from then on."""

    core: str
    start_ns: int
    snapshot: bytes
    entries: list[Entry]
    damage: str = ""
    """Why the entries after these could not be read from a file; empty: these are all."""


def write_segments(file: BinaryIO, segments: Sequence[Segment], reason: str) -> None:
    """Write the file format of the module's docstring."""
    head = {"format": FORMAT, "version": VERSION, "protocol": PROTOCOL, "reason": reason, "segments": len(segments)}
    _write_record(file, msgspec.msgpack.encode(head))
    for segment in segments:
        entries = _encode_entries(segment)
        head = {"core": segment.core, "start_ns": segment.start_ns, "snapshot": segment.snapshot}
        _write_record(file, msgspec.msgpack.encode(head | {"entries": len(entries)}))
        for entry in entries:
            _write_record(file, entry)


def _encode_entries(segment: Segment) -> list[bytes]:
    """Encode the entries of a segment, up to the first one that cannot be encoded. That one is named in the log."""
    encoded: list[bytes] = []
    for entry in list(segment.entries):
        try:
            encoded.append(msgspec.msgpack.encode(_with_messages(entry, dump_message)))
        except Exception as error:  # a message may hold any object of a core
            log.warning(
                "recording ends early: an entry cannot be encoded",
                core=segment.core,
                entry=len(encoded) + 1,
                error=describe_exception(error),
            )
            break
    return encoded


def _with_messages(entry: Entry, convert: Callable[[Any], Any]) -> Entry:
    """Return the entry with converted messages."""
    match entry:
        case Handled():
            return msgspec.structs.replace(entry, message=convert(entry.message))
        case Ticked():
            outs = tuple((to, convert(message), summaries) for to, message, summaries in entry.outs)
            return Ticked(entry.now_ns, outs)
        case Called():
            return entry


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
                path=str(path),
                core=segment.core,
                entries=len(segment.entries),
                error=segment.damage,
            )
        yield segment


def _read_head(path: str | Path, file: BinaryIO) -> int:
    """Return the number of segments. Raises `SettingsError` if the file is not a recording of this version."""
    try:
        head = msgspec.msgpack.decode(_read_record(file))
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise SettingsError(f"recording {path}: not a recording")
        if (head.get("version"), head.get("protocol")) != (VERSION, PROTOCOL):
            raise SettingsError(f"recording {path}: version {head.get('version')}, wanted {VERSION}")
        return int(head["segments"])
    except DAMAGE as error:
        raise SettingsError(f"recording {path}: {type(error).__name__}: {error}") from error


def _read_segment_head(file: BinaryIO) -> tuple[Segment, int]:
    """Return the next segment without its entries, and the number of these. Raises `DAMAGE`."""
    head = msgspec.msgpack.decode(_read_record(file))
    return Segment(str(head["core"]), int(head["start_ns"]), bytes(head["snapshot"]), []), int(head["entries"])


def _read_entries(file: BinaryIO, segment: Segment, count: int) -> None:
    """Read entries up to the first damaged one. The rest of the segment is skipped, because it depends on that one."""
    for number in range(count):
        try:
            record = _read_record(file)
            if not segment.damage:
                segment.entries.append(_decode_entry(record))
        except DAMAGE as error:
            segment.damage = segment.damage or f"entry {number + 1} of {count}: {error or type(error).__name__}"
            if isinstance(error, EOFError):
                return


def _decode_entry(record: bytes) -> Entry:
    """Raises `DAMAGE`."""
    entry = _decoder.decode(record)
    if isinstance(entry, Called) and entry.method not in METHODS:
        raise ValueError(f"method: got {entry.method!r}, wanted one of {', '.join(METHODS)}")
    return _with_messages(entry, _load_struct)


def _load_struct(dumped: Any) -> msgspec.Struct:
    """Return a recorded message. Raises `DAMAGE`."""
    message = load_message(dumped)
    if not isinstance(message, msgspec.Struct):
        raise ValueError(f"message: got {type(message).__name__}, wanted a struct")
    return message


def _write_record(file: BinaryIO, body: bytes) -> None:
    file.write(len(body).to_bytes(4, "little") + body)


def _read_record(file: BinaryIO) -> bytes:
    length = int.from_bytes(file.read(4), "little")
    remaining = os.fstat(file.fileno()).st_size - file.tell()
    if not 0 < length <= min(remaining, RECORD_LIMIT):
        raise EOFError(f"truncated: got {remaining} bytes, wanted a record of {length}")
    return file.read(length)
