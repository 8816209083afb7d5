"""State file: measurements survive a kill, and an unreadable file is ignored."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horologe_common.clock import ms, s
from horologe_common.service.state_file import StateFile
from horologe_profiler.core.batch_fit import Point
from horologe_profiler.core.measurements import MeasurementKey, Measurements, ProfilerState, RowTime
from horologe_profiler.core.profiling_rules import ProfilingRules

if TYPE_CHECKING:
    from pathlib import Path


def load(store: StateFile[ProfilerState]) -> tuple[ProfilerState, int] | None:
    loaded: list[tuple[ProfilerState, int]] = []

    def adopt(state: ProfilerState, age_ns: int) -> list[str]:
        loaded.append((state, age_ns))
        return []

    return loaded[0] if store.restore(adopt) else None


KEY = MeasurementKey("m/1", "chat", 96)


def a_state() -> ProfilerState:
    memory = Measurements(ProfilingRules())
    memory.set_content("m/1", "abc")
    memory.record_sample(0, KEY)
    for number in range(6):
        memory.record_row_time(KEY, RowTime(s(number), 90, ms(number + 1)))
    memory.record_batch_time(s(6), "m/1", Point(2, 90, ms(9), 3))
    return memory.to_state(s(10), {})


def test_what_was_saved_is_loaded_with_its_age(tmp_path: Path) -> None:
    times = [s(100), s(130)]
    store = StateFile(ProfilerState, str(tmp_path / "state"), "profiler", lambda: times.pop(0))
    store.save(a_state())
    store = StateFile(ProfilerState, str(tmp_path / "state"), "profiler", lambda: times.pop(0))
    assert load(store) == (a_state(), s(30))


def test_a_clock_that_was_set_back_makes_nothing_younger_than_it_is(tmp_path: Path) -> None:
    StateFile(ProfilerState, str(tmp_path), "profiler", lambda: s(100)).save(a_state())
    assert load(StateFile(ProfilerState, str(tmp_path), "profiler", lambda: s(50))) == (a_state(), 0)


def test_saving_replaces_the_file_as_a_whole(tmp_path: Path) -> None:
    store = StateFile(ProfilerState, str(tmp_path), "profiler")
    for _ in range(2):
        store.save(a_state())
    assert [path.name for path in tmp_path.iterdir()] == ["profiler-0.msgpack"]


def test_nothing_there_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(StateFile(ProfilerState, str(tmp_path), "profiler")) is None
    assert load(StateFile(ProfilerState, "", "profiler")) is None
    StateFile(ProfilerState, "", "profiler").save(a_state())
    assert caplog.text == ""


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"not it at all", b"\x94\x01", b"\x94\xa3abc\x01\x00\x90", b"\x91" * 5000]
)
def test_a_file_that_is_none_is_told_of_and_ignored(
    tmp_path: Path, body: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "profiler-0.msgpack").write_bytes(body)
    assert load(StateFile(ProfilerState, str(tmp_path), "profiler")) is None
    assert "state file damaged" in caplog.text


def test_a_file_cut_short_or_of_another_version_is_ignored(tmp_path: Path) -> None:
    store, path = StateFile(ProfilerState, str(tmp_path), "profiler"), tmp_path / "profiler-0.msgpack"
    store.save(a_state())
    body = path.read_bytes()
    path.write_bytes(body[: len(body) // 2])
    assert load(store) is None
    path.write_bytes(body.replace(b"\x01", b"\x02", 1))
    assert load(store) is None


def test_where_it_cannot_be_kept_that_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    store = StateFile(ProfilerState, str(tmp_path / "file" / "state"), "profiler")
    store.save(a_state())
    store.save(a_state())
    assert caplog.text.count("state file not written") == 1
