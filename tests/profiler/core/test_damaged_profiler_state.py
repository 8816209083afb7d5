"""A damaged state of the profiler: it starts, says what it dropped, and keeps the other measurements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from harness.builders import a_spec
from harness.damaged_files import EXTREMES, FILE_DAMAGE, damaged_values
from horologe_common.clock import ms, s
from horologe_common.service.state_file import StateFile
from horologe_profiler.core.batch_fit import Point
from horologe_profiler.core.input_dependence import Verdict
from horologe_profiler.core.measurements import BatchTime, MeasurementKey, ProfilerState, RowTime
from profiler.profiler_builders import a_profiler, published_distributions

if TYPE_CHECKING:
    from pathlib import Path

    from horologe_profiler.core.profiler import Profiler

TIMES = [RowTime(-s(number), 90, ms(1 + number)) for number in range(6, 0, -1)]
BATCHES = [BatchTime(-s(2), Point(1, 90, ms(2), 3)), BatchTime(-s(1), Point(2, 90, ms(3), 3))]
KEY, OTHER = MeasurementKey("sum/1", "chat", 96), MeasurementKey("product/1", "", 96)
STATE = ProfilerState(
    {"sum/1": "hash-sum", "product/1": "hash-product"},
    [(KEY, (3, 4), TIMES), (OTHER, (5, 6), TIMES)],
    {"sum/1": BATCHES, "product/1": BATCHES},
    {"sum/1": Verdict(True, 1), "product/1": Verdict(False, 0)},
)


def a_file(folder: Path) -> StateFile[ProfilerState]:
    return StateFile(ProfilerState, str(folder), "profiler")


def write_state(folder: Path, state: Any) -> Path:
    a_file(folder).save(state)
    return folder / "profiler-0.msgpack"


def restart(folder: Path) -> Profiler:
    """Start a profiler with the state file in the folder, as its process does. Let it measure and publish."""
    profiler = a_profiler(a_spec(batch_sizes=(1, 2)), a_spec("product"))
    a_file(folder).restore(lambda state, age_ns: profiler.restore(0, state, age_ns))
    published_distributions(profiler, ms(3), 6)
    profiler.refresh_stats()
    profiler.check()
    return profiler


def count_stored(profiler: Profiler, key: MeasurementKey) -> int:
    return profiler.measurements.count_times(key)


def test_an_undamaged_state_is_restored_as_a_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_state(tmp_path, STATE)
    profiler = restart(tmp_path)
    assert [count_stored(profiler, key) for key in (KEY, OTHER)] == [6, 6]
    assert "damaged" not in caplog.text


@pytest.mark.parametrize("damage", FILE_DAMAGE)
def test_an_unusable_file_is_kept_aside(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    path = write_state(tmp_path, STATE)
    FILE_DAMAGE[damage](path)
    profiler = restart(tmp_path)
    assert [count_stored(profiler, key) for key in (KEY, OTHER)] == [0, 0]
    assert caplog.text.count("state file damaged") == 1
    (aside,) = tmp_path.iterdir()
    assert aside.name.startswith("profiler-0.msgpack.damaged-")


@pytest.mark.parametrize("extreme", EXTREMES)
@pytest.mark.parametrize("field", ["at_ns", "length", "took_ns"])
def test_a_stored_time_out_of_range_is_dropped(tmp_path: Path, field: str, extreme: Any) -> None:
    """A length and a time of 0 and of -1 ns ago can occur; the others cannot."""
    times = [*TIMES[:-1], TIMES[-1]._replace(**{field: extreme})]
    write_state(tmp_path, {**msgspec.structs.asdict(STATE), "windows": [(KEY, (3, 4), times), STATE.windows[1]]})
    profiler = restart(tmp_path)
    usable = isinstance(extreme, int) and (field, extreme) in (("at_ns", -1), ("at_ns", 0), ("length", 0))
    assert (count_stored(profiler, KEY) > 0) == usable
    assert count_stored(profiler, OTHER) == 6


@pytest.mark.parametrize("field", ["contents", "windows", "batches", "verdicts"])
def test_damage_of_any_value_does_not_lose_the_other_measurements(tmp_path: Path, field: str) -> None:
    """Damage each value of the first model in turn: the measurements of the second are restored."""
    content = msgspec.to_builtins(STATE)
    fields = dict(zip(ProfilerState.__struct_fields__, content, strict=True))
    entries = fields[field]
    first = {"sum/1": entries["sum/1"]} if isinstance(entries, dict) else entries[:1]
    for name, damaged in damaged_values(first):
        if type(damaged) is not type(first):
            merged: Any = damaged
        elif isinstance(damaged, dict):
            merged = {**damaged, "product/1": entries["product/1"]}
        else:
            merged = [*damaged, entries[1]]
        path = write_state(tmp_path, [*{**fields, field: merged}.values()])
        profiler = restart(tmp_path)
        assert count_stored(profiler, OTHER) == (6 if field != "windows" or isinstance(merged, list) else 0), name
        path.unlink()


def test_a_damaged_number_of_a_row_is_not_the_next_id(tmp_path: Path) -> None:
    batches = [BatchTime(-1, Point(1, 90, ms(2), (1 << 63) - 1))]
    write_state(tmp_path, {**msgspec.structs.asdict(STATE), "batches": {"sum/1": batches}})
    assert all(task_id < 1 << 53 for task_id in restart(tmp_path).staging.ids())
