"""A damaged state of the tuner: it starts, says what it dropped, and continues with the other plans."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from harness.damaged_files import EXTREMES, FILE_DAMAGE, damaged_values
from horologe_common.clock import ms, s
from horologe_common.service.state_file import StateFile
from horologe_planning.envelope import TrafficEnvelope
from horologe_tuner.core.plans.running_plan import AppliedPlan
from horologe_tuner.core.tuner import TunerState
from tuner.tuner_bench import PLAN, Bench
from tuner.tuner_state import AUDIO, OTHER, STATE, VIDEO

if TYPE_CHECKING:
    from pathlib import Path


def restart(folder: Path) -> Bench:
    """Start a tuner with the state file in the folder, as its process does. Let it serve for a while."""
    bench = Bench(connect=False, scaler="none")
    a_file(folder).restore(lambda state, age_ns: bench.tuner.restore(bench.now_ns, state))
    bench.connect()
    bench.events(120, 1)
    bench.status()
    bench.tuner.refresh_stats()
    return bench


def a_file(folder: Path) -> StateFile[TunerState]:
    return StateFile(TunerState, str(folder), "tuner")


def write_state(folder: Path, state: Any) -> Path:
    """Write a state, or anything else in its place."""
    a_file(folder).save(state)
    return folder / "tuner-0.msgpack"


def test_an_undamaged_state_is_restored_as_a_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_state(tmp_path, STATE)
    bench = restart(tmp_path)
    assert [*bench.tuner.plans.plans] == ["video", "audio", "chat"]
    assert "damaged" not in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["tuner-0.msgpack"]


@pytest.mark.parametrize("damage", FILE_DAMAGE)
def test_an_unusable_file_is_kept_aside(tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    path = write_state(tmp_path, STATE)
    FILE_DAMAGE[damage](path)
    before = path.read_bytes() if path.is_file() else None
    bench = restart(tmp_path)
    assert not bench.tuner.plans.plans
    assert caplog.text.count("state file damaged") == 1
    (aside,) = tmp_path.iterdir()
    assert aside.name.startswith("tuner-0.msgpack.damaged-")
    assert (aside.read_bytes() if aside.is_file() else None) == before
    bench.apply()
    write_state(tmp_path, bench.saved[-1])
    assert [*restart(tmp_path).tuner.plans.plans] == ["video"]
    assert aside.exists()


@pytest.mark.parametrize(
    "change",
    [
        {"envelope": TrafficEnvelope((), ())},
        {"envelope": TrafficEnvelope((ms(100), s(864_000)), (20, 130))},
        {"envelope": TrafficEnvelope((ms(100), 1 << 62), (20, 130))},
        {"envelope": TrafficEnvelope(tuple(range(1, 1001)), (20,) * 1000)},
        {"envelope": TrafficEnvelope((ms(100),), (1 << 62,))},
        {"name": "audio"},
        *({field: extreme} for field in ("rate",) for extreme in EXTREMES),
        *({"slo_ns": extreme} for extreme in EXTREMES if isinstance(extreme, int)),
    ],
    ids=lambda change: str(change)[:60],
)
def test_a_stored_plan_is_checked_like_one_that_arrives(tmp_path: Path, change: dict[str, Any]) -> None:
    damaged = msgspec.structs.replace(PLAN, **change)
    write_state(tmp_path, msgspec.structs.replace(STATE, applied=(AUDIO, AppliedPlan(damaged, VIDEO.replicas))))
    bench = restart(tmp_path)
    assert [*bench.tuner.plans.plans] == ["audio"]
    arriving = Bench()
    arriving.apply(OTHER)
    if damaged.name != "audio":
        assert arriving.apply(damaged).status


@pytest.mark.parametrize("place", [0, 2], ids=["a pipeline", "a stage on a share"])
def test_damage_of_one_item_does_not_lose_the_others(
    tmp_path: Path, place: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage each value of a plan in turn: the other plans are restored."""
    content = msgspec.to_builtins(STATE)
    others = {applied.plan.name for number, applied in enumerate(STATE.applied) if number != place}
    for name, damaged in damaged_values(content["applied"][place]):
        applied = list(content["applied"])
        applied[place] = damaged
        path = write_state(tmp_path, {**content, "applied": applied})
        caplog.clear()
        bench = restart(tmp_path)
        assert others <= set(bench.tuner.plans.plans), name
        assert (len(bench.tuner.plans.plans) == 3) != ("state file damaged" in caplog.text), (name, caplog.text)
        path.unlink()


@pytest.mark.parametrize("damage", [{"device": "a b"}, {"stage": "w" * 41}])
def test_a_stored_share_that_can_name_no_worker_is_dropped(tmp_path: Path, damage: dict[str, str]) -> None:
    """The names are in those of workers: one that no worker can have would fail every call of the scaler."""
    chat = STATE.applied[2]
    sizes = tuple(msgspec.structs.replace(size, **damage) for size in chat.serving[0].sizes)
    damaged = msgspec.structs.replace(chat, serving=(msgspec.structs.replace(chat.serving[0], sizes=sizes),))
    write_state(tmp_path, msgspec.structs.replace(STATE, applied=(VIDEO, damaged)))
    assert [*restart(tmp_path).tuner.plans.plans] == ["video"]


def test_a_file_of_another_version_is_kept_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_state(tmp_path, {"number": 7, "applied": [], "workloads": [], "sharing_dry_run": False})
    assert not restart(tmp_path).tuner.plans.plans
    assert caplog.text.count("state file damaged") == 1


def test_damage_of_any_field_of_the_state(tmp_path: Path) -> None:
    content = msgspec.to_builtins(STATE)
    for name, damaged in damaged_values({"number": 7}):
        path = write_state(tmp_path, {**content, "number": 7, **damaged} if isinstance(damaged, dict) else damaged)
        bench = restart(tmp_path)
        assert not isinstance(damaged, dict) or "audio" in bench.tuner.plans.plans, name
        path.unlink(missing_ok=True)


def test_a_partly_damaged_file_is_copied_once(tmp_path: Path) -> None:
    write_state(tmp_path, msgspec.structs.replace(STATE, number=-1))
    for _ in range(3):
        assert [*restart(tmp_path).tuner.plans.plans] == ["video", "audio", "chat"]
    assert len([*tmp_path.iterdir()]) == 2


def test_a_full_disk_neither_stops_the_tuner_nor_replaces_a_damaged_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_state(tmp_path, STATE)
    path.write_bytes(b"damaged")

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = a_file(tmp_path)
    with monkeypatch.context() as full:
        full.setattr("pathlib.Path.replace", fail)
        assert not store.restore(lambda state, age_ns: [])
        store.save(STATE)
        assert path.read_bytes() == b"damaged"
    assert "not kept aside yet" in str([vars(record) for record in caplog.records])
    assert caplog.text.count("state file not written") == 1
    store.save(STATE)
    assert len([*tmp_path.iterdir()]) == 2
    assert [*restart(tmp_path).tuner.plans.plans] == ["video", "audio", "chat"]


def test_a_state_that_cannot_be_encoded_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_state(tmp_path, msgspec.structs.replace(STATE, number=1 << 64))
    assert "state file not written" in caplog.text
    assert not [*tmp_path.iterdir()]
