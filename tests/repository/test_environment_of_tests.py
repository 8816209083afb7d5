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
TESTS = (
    "tests/system/sockets/test_sdk.py::test_arrays_in_arrays_out",
    "tests/common/service/test_settings.py",
    "tests/repository/test_environment_of_tests.py::test_files_can_be_read_by_other_users",
    "tests/system/commands/test_cli.py::test_every_command_has_help_with_examples[up]",
)
"""Tests of sockets, settings, files and terminals."""


def test_neither_variables_nor_the_umask_of_the_user_matter(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    variables = {
        "TMPDIR": str(folder),
        "HOME": "/nonexistent",
        "HOROLOGE_HTTP_PORT": "no number",
        "HOROLOGE_NONSENSE_X": "1",
        "HOROLOGE_CONFIG": "/nowhere.toml",
        "HOROLOGE_LINKS_BIND": "tcp://127.0.0.1:1",
        "HOROLOGE_WORKER_CACHE": "/nonexistent",
        "FORCE_COLOR": "1",
        "COLUMNS": "20",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    env = os.environ | variables
    done = subprocess.run(command, cwd=ROOT, env=env, umask=0o077, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr


def test_files_can_be_read_by_other_users(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o644


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
