"""Tests pass in any environment: long TMPDIR, settings of the user, proxies, colours, two runs at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from conftest import STATE_VARIABLES
from harness.short_paths import SOCKET_PATH_BYTES, choose_temporary_folder

ROOT = Path(__file__).resolve().parents[2]
SOCKETS = "tests/system/sockets/test_sdk.py::test_arrays_in_arrays_out"
SETTINGS = "tests/common/service/test_settings.py"
UMASK = "tests/repository/test_environment_of_tests.py::test_files_can_be_read_by_other_users"
HELP = "tests/system/commands/test_cli.py::test_every_command_has_help_with_examples[up]"


def run_test(test: str, variables: dict[str, str], umask: int = 0o022) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **variables}, umask=umask, capture_output=True, text=True, timeout=100,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def test_sockets_fit_below_a_long_temporary_folder(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    run_test(SOCKETS, {"TMPDIR": str(folder)})


@pytest.mark.parametrize(
    ("test", "variables"),
    [
        (HELP, {"HOROLOGE_HTTP_PORT": "no number", "HOROLOGE_NONSENSE_X": "1"}),
        (HELP, {"HOROLOGE_CONFIG": "/nowhere.toml"}),
        (HELP, {"FORCE_COLOR": "1", "COLUMNS": "20"}),
        (SOCKETS, {"HOME": "/nonexistent"}),
        (SETTINGS, {"HOROLOGE_LINKS_BIND": "tcp://127.0.0.1:1", "HOROLOGE_WORKER_CACHE": "/nonexistent"}),
    ],
)
def test_variables_of_the_user_do_not_matter(test: str, variables: dict[str, str]) -> None:
    run_test(test, variables)


def test_files_can_be_read_by_other_users(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


def test_the_umask_of_the_user_does_not_matter() -> None:
    run_test(UMASK, {}, umask=0o077)


def test_the_speed_of_the_machine_fails_no_check_of_hypothesis() -> None:
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings(max_examples=5).suppress_health_check


def test_services_write_to_a_folder_of_this_test_process() -> None:
    (folder,) = {os.environ[name] for name in STATE_VARIABLES}
    assert Path(folder).is_relative_to(tempfile.gettempdir())
    assert not Path(folder).is_relative_to(ROOT)


@pytest.mark.parametrize("length", [5, 20, 60, 120, 4000])
def test_a_temporary_folder_is_kept_unless_sockets_do_not_fit(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "name")
    folder = "/" + "f" * (length - 1)
    chosen = choose_temporary_folder(folder)
    assert chosen in (folder, "/tmp")
    assert (chosen == folder) == (length <= 20)
    assert len(chosen) < SOCKET_PATH_BYTES


def test_a_user_without_a_name_has_temporary_folders(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000)
    assert choose_temporary_folder("/tmp") == "/tmp"
