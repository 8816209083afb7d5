"""Settings from file, environment and flags; durations and sizes; errors that name the setting."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from horologe_common.service.settings import DURATIONS, SIZES, SettingsError, load_settings, parse_quantity


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scheduler: str = "clockwork"
    grace_ns: int = 50_000_000
    limit_bytes: int = 1 << 20
    bind: tuple[str, ...] = ()
    workers: int = 1
    recording: bool = False


def a_file(folder: Path, text: str) -> Path:
    (folder / "horologe.toml").write_text(text)
    return folder / "horologe.toml"


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    file = a_file(tmp_path, '[controller]\nscheduler = "edf"\ngrace_ns = "5ms"\nworkers = 2\n[hardware]\nx = 1\n')
    env = {"HOROLOGE_CONTROLLER_GRACE_NS": "6ms", "HOROLOGE_CONTROLLER_WORKERS": "3", "HOROLOGE_OTHER_X": "1"}
    settings = load_settings(Settings, "controller", file, env, {"workers": "4", "scheduler": None})
    assert settings == Settings(scheduler="edf", grace_ns=6_000_000, workers=4)


def test_text_is_converted_to_the_type_of_the_field() -> None:
    env = {
        "HOROLOGE_X_GRACE_NS": "1.5s",
        "HOROLOGE_X_LIMIT_BYTES": "2 MiB",
        "HOROLOGE_X_BIND": "ipc://a, tcp://b:1,",
        "HOROLOGE_X_RECORDING": "true",
    }
    assert load_settings(Settings, "x", None, env) == Settings(
        grace_ns=1_500_000_000, limit_bytes=2 << 20, bind=("ipc://a", "tcp://b:1"), recording=True
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[s]\nschedular = 'edf'", r"setting s\.schedular: unknown; the settings are scheduler, grace_ns"),
        ("[s]\ngrace_ns = 'soon'", r"setting s\.grace_ns: got 'soon', wanted a number with one of ns, us, ms, s, min"),
        ("[s]\nlimit_bytes = '5'", r"setting s\.limit_bytes: got '5', wanted a number with one of B, KiB"),
        ("[s]\nworkers = 'many'", r"setting s\.workers: got \'many\', wanted 1 to 1000000000"),
        ("s = 3", r"s: got int, wanted a table"),
        ("[s", r"settings file .*horologe\.toml"),
    ],
)
def test_an_error_names_the_setting(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        load_settings(Settings, "s", a_file(tmp_path, text), {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml"):
        load_settings(Settings, "s", tmp_path / "nowhere.toml", {})


@pytest.mark.parametrize("text", ["9999999999s", "-9999999999s", "1e300s", "1e400s"])
def test_a_quantity_that_the_wire_cannot_carry_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="wanted a number"):
        parse_quantity("x", text, DURATIONS)


def test_quantities() -> None:
    durations = {"0": 0, "7ns": 7, "2us": 2_000, "0.5 ms": 500_000, "3s": 3_000_000_000, "1min": 60_000_000_000}
    assert {text: parse_quantity("x", text, DURATIONS) for text in durations} == durations
    sizes = {"1B": 1, "1KiB": 1024, "16MiB": 16 << 20, "1GiB": 1 << 30}
    assert {text: parse_quantity("x", text, SIZES) for text in sizes} == sizes
