"""The environment of all tests. It does not depend on settings, folders, umask and proxies of their user."""

from __future__ import annotations

import os
import shutil
import tempfile
from typing import TYPE_CHECKING

import hypothesis

from harness.short_paths import choose_temporary_folder

if TYPE_CHECKING:
    import pytest

STATE_VARIABLES = tuple(
    f"HOROLOGE_{name}"
    for name in ("WORKER_CACHE", "PROFILER_STATE", "SELECTOR_STATE", "TUNER_STATE", "CONTROLLER_STATE")
)
"""Settings of the folders to which services write."""
OPTIONS_OF_TESTS = ("HOROLOGE_IGNITER_DATA", "HOROLOGE_SWARM_TESTS", "HOROLOGE_WRITE_CLIENTS")
TERMINAL = ("FORCE_COLOR", "CLICOLOR_FORCE", "NO_COLOR", "COLUMNS", "LINES")
"""Variables that change the output of commands."""

# Hypothesis has two checks that fail on a slow machine, not because of the code.
hypothesis.settings.register_profile(
    "any-speed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any-speed")


def pytest_configure(config: pytest.Config) -> None:
    """Clean the environment of this process, which its child processes inherit."""
    for name in list(os.environ):
        if name in TERMINAL or (name.startswith("HOROLOGE_") and name not in OPTIONS_OF_TESTS):
            del os.environ[name]
    os.umask(0o022)  # models that run as another user read the files of tests
    for name in ("no_proxy", "NO_PROXY"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost,::1")))
    os.environ["TMPDIR"] = tempfile.tempdir = choose_temporary_folder(tempfile.gettempdir())
    state = tempfile.mkdtemp(prefix="horologe-tests-")
    config.add_cleanup(lambda: shutil.rmtree(state, ignore_errors=True))
    os.environ |= dict.fromkeys(STATE_VARIABLES, state)
