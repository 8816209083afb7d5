"""Damaged recordings: read and replayed up to the damage, which the report names."""

from __future__ import annotations

import errno
import os
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from harness.damaged_files import damaged_values, make_folder
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerConnected
from horologe_common.recording.recorder import Recorder, RecorderSettings
from horologe_common.recording.recording_file import read_segments
from horologe_common.service.settings import SettingsError
from horologe_common.wire import Pong, Tune
from horologe_sim.replay import replay_recording
from profiler.profiler_builders import a_profiler
from tuner.tuner_bench import CONTROLLER, FRONTEND, Bench

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FIRST, SECOND = "profiler/0#1", "tuner/0#1"


def a_recording(folder: Path, entries: int = 20) -> Path:
    """Write a recording of two cores, with as many messages and ticks of each."""
    recorder = Recorder(RecorderSettings(str(folder)), "edge")
    cores: list[Any] = [a_profiler(), Bench().tuner]
    for core in cores:
        core.out.clear()
    for number in range(entries):
        for core in cores:
            now_ns = ms(2_000_000 + number)
            local, remote = PeerConnected(CONTROLLER), Tune(number, "status")
            for message in (local, remote if core.address == SECOND else Pong(1, 2)):
                recorder.observe_message(now_ns, core, FRONTEND, message, ())
                core.handle(now_ns, FRONTEND, message, ())
            core.tick(now_ns)
            outs, core.out = core.out, []
            recorder.observe_tick(now_ns, core, outs)
    path = recorder.write("asked")
    assert path
    return path


def read_records(path: Path) -> list[bytes]:
    body, records = path.read_bytes(), []
    while body:
        length = int.from_bytes(body[:4], "little")
        records.append(body[4 : 4 + length])
        body = body[4 + length :]
    return records


def write_records(path: Path, records: list[bytes]) -> None:
    path.write_bytes(b"".join(len(record).to_bytes(4, "little") + record for record in records))


def test_an_undamaged_recording_is_replayed_as_a_whole(tmp_path: Path) -> None:
    report = replay_recording(a_recording(tmp_path))
    assert report.identical, report.table()
    assert [core.ticks for core in report.cores.values()] == [20, 20]


def replace_records(path: Path, replace: Callable[[list[bytes]], list[bytes]]) -> None:
    write_records(path, replace(read_records(path)))


MIDDLE = 30
"""Number of an entry of the first core."""
HUGE = (1 << 31).to_bytes(4, "little")
ENTRY_DAMAGE: dict[str, bytes] = {
    "no entry": b"",
    "random bytes": random.Random(7).randbytes(60),
    "another type": msgspec.msgpack.encode({"a": 1}),
    "another kind": msgspec.msgpack.encode(["removed", 5, "x"]),
    "unknown message": msgspec.msgpack.encode(["handled", 5, "x", ["wire", b"\x91\xcd\xff\xff"], []]),
    "no pickle": msgspec.msgpack.encode(["handled", 5, "x", ["local", b"nothing"], []]),
    "a pickle of a function": msgspec.msgpack.encode(["handled", 5, "x", ["local", b"cos\nsystem\n."], []]),
    "a pickle of a number": msgspec.msgpack.encode(["handled", 5, "x", ["local", b"I7\n."], []]),
    "another method": msgspec.msgpack.encode(["called", 5, "handle", []]),
    "no time": msgspec.msgpack.encode(["called", "now", "drain", []]),
    "missing fields": msgspec.msgpack.encode(["handled", 5]),
    "nested": b"\x91" * 50_000,
    "huge length": b"\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("damage", ENTRY_DAMAGE)
def test_a_damaged_entry_ends_its_segment_and_no_other(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    path, data = a_recording(tmp_path), ENTRY_DAMAGE[damage]
    replace_records(path, lambda records: [*records[:MIDDLE], data, *records[MIDDLE + 1 :]])
    report = replay_recording(path)
    first = report.cores[FIRST]
    assert 0 < first.ticks < 20
    assert first.damage.startswith(f"entry {MIDDLE - 1} of 60: ")
    assert not first.difference
    if data:
        assert (report.cores[SECOND].ticks, report.cores[SECOND].damage) == (20, "")
    assert not report.identical
    assert "recording damaged: read up to the damage" in caplog.text


@pytest.mark.parametrize("at", range(1, 100, 7))
def test_a_truncated_recording_is_read_up_to_its_end(tmp_path: Path, at: int) -> None:
    path = a_recording(tmp_path)
    os.truncate(path, path.stat().st_size * at // 100)
    try:
        report = replay_recording(path)
    except SettingsError:
        assert at < 20, "not even the first snapshot is left"
    else:
        assert not report.identical or SECOND not in report.cores
        assert not any(core.difference for core in report.cores.values()), report.table()
        assert report.identical or "not complete: entry" in report.table()


def test_a_length_that_is_too_large_ends_the_reading(tmp_path: Path) -> None:
    path = a_recording(tmp_path)
    records = read_records(path)
    at = sum(4 + len(record) for record in records[:MIDDLE])
    content = path.read_bytes()
    path.write_bytes(content[:at] + HUGE + content[at + 4 :])
    (segment,) = read_segments(path)
    assert len(segment.entries) == MIDDLE - 2
    assert "truncated: got" in segment.damage


@pytest.mark.parametrize("snapshot", [b"", b"nothing", b"I7\n.", b"cos\nsystem\n.", b"\x80\x05" + b"(" * 50_000])
def test_a_damaged_snapshot_costs_its_segment_only(tmp_path: Path, snapshot: bytes) -> None:
    path = a_recording(tmp_path)
    records = read_records(path)
    head = msgspec.msgpack.decode(records[1])
    records[1] = msgspec.msgpack.encode({**head, "snapshot": snapshot})
    write_records(path, records)
    report = replay_recording(path)
    assert report.cores[FIRST].damage.startswith("snapshot: ")
    assert report.cores[FIRST].ticks == 0
    assert (report.cores[SECOND].ticks, report.cores[SECOND].damage) == (20, "")


@pytest.mark.parametrize("record", [0, 1, 62])
def test_damage_of_any_value_of_a_head_is_an_error_or_ends_the_reading(tmp_path: Path, record: int) -> None:
    path = a_recording(tmp_path, 20)
    records = read_records(path)
    head = msgspec.msgpack.decode(records[record])
    assert isinstance(head, dict)
    for name, damaged in damaged_values(head):
        try:
            write_records(path, [*records[:record], msgspec.msgpack.encode(damaged), *records[record + 1 :]])
        except OverflowError:
            continue
        try:
            cores = replay_recording(path).cores
        except SettingsError:
            cores = {}
        assert record < 2 or FIRST in cores, name


@pytest.mark.parametrize("content", [b"", b"RIFF....", b"\x05\0\0\0hello", b"\xff\xff\xff\xff"])
def test_what_is_no_recording_is_an_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.rec"
    with pytest.raises(SettingsError, match="No such file"):
        replay_recording(file)
    file.write_bytes(content)
    with pytest.raises(SettingsError, match="recording"):
        replay_recording(file)
    make_folder(file)
    with pytest.raises(SettingsError, match="Is a directory"):
        replay_recording(file)


def test_a_full_disk_costs_the_recording_and_not_the_core(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("horologe_common.recording.recording_file._write_record", fail)
    recorder = Recorder(RecorderSettings(str(tmp_path)), "edge")
    assert recorder.write("asked") is None
    assert "recording not written" in caplog.text
