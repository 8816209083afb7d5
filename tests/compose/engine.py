"""The Docker engine of this machine, or the reason why container tests are skipped."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import docker
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PROBE_S = 20.0
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


@cache
def _explain_once() -> str:
    return explain_no_engine()


def require_engine() -> None:
    """Skip the test if no engine can be used. The engine is probed once per process."""
    if reason := _explain_once():
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
