"""The Docker engine of this machine, or the reason why container tests are skipped."""

from __future__ import annotations

import fcntl
import subprocess
import sys
import tempfile
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import docker
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PROBE_S = 20.0
LOCK = "horologe-tests-engine.lock"
"""File that the only test process which uses the engine has locked."""
PROBE = "import sys, docker; docker.from_env(timeout=float(sys.argv[1])).ping()"


def explain_no_engine(timeout_s: float = PROBE_S) -> str:
    """Return the reason why the engine of the environment (`DOCKER_HOST`) cannot be used, or an empty string.

    The probe is a process of its own, because the Docker client does not close the socket of a failed connection.
    """
    command = [sys.executable, "-W", "ignore", "-c", PROBE, str(timeout_s)]
    try:
        probe = subprocess.run(command, capture_output=True, text=True, timeout=3 * timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer within {3 * timeout_s:g} s"
    last_line = next(reversed(probe.stderr.splitlines()), "")
    return last_line or f"exit code {probe.returncode}" if probe.returncode else ""


def lock_engine(path: Path) -> Any:
    """Return a file that keeps other processes from locking `path` until it is closed, or None if one has locked it."""
    with suppress(FileExistsError):
        path.touch(exist_ok=False)
    file = path.open()  # to read: the file may be another user's
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


@cache
def _claim_engine() -> tuple[str, Any]:
    """Probe and lock the engine. Return the reason why it cannot be used, and the locked file.

    Two test processes cannot share an engine: it leaves a swarm with the networks of all containers.
    """
    if reason := explain_no_engine():
        return reason, None
    file = lock_engine(Path(tempfile.gettempdir()) / LOCK)
    return "" if file else "another test process uses it", file


def require_engine() -> None:
    """Skip the test if no engine can be used. The engine is probed, and locked, once per process."""
    if reason := _claim_engine()[0]:
        pytest.skip(f"no Docker engine can be used: {reason}")


@contextmanager
def open_engine(timeout_s: float = 60) -> Iterator[Any]:
    """Yield a client of the engine, and close it. Skips the test if no engine can be used."""
    require_engine()
    client = docker.from_env(timeout=timeout_s)
    try:
        yield client
    finally:
        client.close()
