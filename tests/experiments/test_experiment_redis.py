"""The Redis of an experiment: no process is left if it cannot be used."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from horologe_experiments.clipper.feedback_process.redis_server import RedisServer

if TYPE_CHECKING:
    from pathlib import Path

PROGRAMS = {"silent": "exec sleep 60", "ended": "exit 1"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_server_that_does_not_answer_is_stopped(
    program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redis-server").write_text(f"#!/bin/sh\n{PROGRAMS[program]}\n")
    (tmp_path / "redis-server").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    server = RedisServer("redis", tmp_path, start_s=0.2)
    with pytest.raises(RuntimeError, match="redis-server does not answer"), server:
        pass
    assert server._process is not None
    assert server._process.poll() is not None


def test_a_client_package_that_cannot_be_imported_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "redis-server").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "redis-server").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    server = RedisServer("redis", tmp_path)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ModuleNotFoundError), server:
        pass
    assert server._process is not None
    assert server._process.poll() is not None


def test_without_the_program_redis_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert RedisServer("redis", tmp_path).missing
    assert not RedisServer("sqlite", tmp_path).missing
