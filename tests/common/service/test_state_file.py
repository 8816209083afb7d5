"""State file of a service: it survives a kill, and an unusable one is ignored. The services test damaged ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import s
from horologe_common.service.state_file import StateFile

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


class Counted(msgspec.Struct, array_like=True):
    numbers: list[int] = []


STATE = Counted([1, 2, 3])


def a_file(folder: Path | str, at_ns: int = 0) -> StateFile[Counted]:
    return StateFile(Counted, str(folder), "counter", lambda: at_ns)


def load(store: StateFile[Counted]) -> tuple[Counted, int] | None:
    loaded: list[tuple[Counted, int]] = []

    def adopt(state: Counted, age_ns: int) -> list[str]:
        loaded.append((state, age_ns))
        return []

    return loaded[0] if store.restore(adopt) else None


def test_a_saved_state_is_loaded_with_its_age(tmp_path: Path) -> None:
    for _ in range(2):
        a_file(tmp_path / "state", s(100)).save(STATE)
    assert load(a_file(tmp_path / "state", s(130))) == (STATE, s(30))
    assert load(a_file(tmp_path / "state", s(50))) == (STATE, 0), "the clock was set back"
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["counter-0.msgpack"]


def test_without_a_file_or_a_folder_nothing_is_loaded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(a_file(tmp_path)) is None
    a_file("").save(STATE)
    assert load(a_file("")) is None
    assert caplog.text == ""


def test_a_file_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    store = a_file(tmp_path / "file" / "state")
    store.save(STATE)
    store.save(STATE)
    assert caplog.text.count("state file not written") == 1
