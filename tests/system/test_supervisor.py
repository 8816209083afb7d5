"""The supervisor with small children of its own: restarts, order of the end, and that none is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from horologe_cli.local.supervisor import (
    IMMEDIATE_RESTARTS,
    MAX_DELAY_S,
    STEADY_S,
    ChildExit,
    ChildSpec,
    RestartBackoff,
    Supervisor,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

CHILD = """
import os, signal, sys, time
name, mode = sys.argv[1:]

def told(number, frame):
    print(f"{name} told", flush=True)
    if mode == "slow":
        time.sleep(0.3)
    if mode != "deaf":
        print(f"{name} done", flush=True)
        raise SystemExit(0)

signal.signal(signal.SIGTERM, told)
print(f"{name} pid {os.getpid()} nice {os.nice(0)} {os.environ.get('COLOUR', '')}", flush=True)
if mode == "broken":
    raise SystemExit(3)
while True:
    time.sleep(0.05)
"""
PATIENCE_S = 10.0


class Said:
    """Lines and exits, with waiting."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.exits: list[ChildExit] = []
        self._news = threading.Condition()

    def line(self, name: str, line: str) -> None:
        with self._news:
            self.lines.append(line)
            self._news.notify_all()

    def exit(self, exit: ChildExit) -> None:
        with self._news:
            self.exits.append(exit)
            self._news.notify_all()

    def until(self, fulfilled: Callable[[], bool]) -> None:
        with self._news:
            assert self._news.wait_for(fulfilled, PATIENCE_S), self.lines

    def started(self, name: str) -> list[str]:
        return [line for line in self.lines if line.startswith(f"{name} pid ")]


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def supervise(tmp_path: Path, said: Said, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Supervisor]]:
    (tmp_path / "small_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made: list[Supervisor] = []

    def make(*specs: ChildSpec) -> Supervisor:
        made.append(Supervisor(specs, said.line, said.exit))
        made[-1].start()
        return made[-1]

    yield make
    for supervisor in made:
        supervisor.abort()


def child(name: str, mode: str = "good", stage: int = 0, nice: int = 0) -> ChildSpec:
    return ChildSpec(name, "small_child", (name, mode), stage, nice, {"COLOUR": "red"})


def test_forwards_lines_environment_and_niceness(supervise: Callable[..., Supervisor], said: Said) -> None:
    supervise(child("a", nice=3))
    said.until(lambda: bool(said.started("a")))
    assert said.started("a")[0].endswith(f"nice {os.nice(0) + 3} red")


def test_a_killed_child_is_started_again(supervise: Callable[..., Supervisor], said: Said) -> None:
    supervisor = supervise(child("a"), child("b"))
    said.until(lambda: bool(said.started("a") and said.started("b")))
    first = supervisor.pids()
    os.kill(first["a"], signal.SIGKILL)
    said.until(lambda: len(said.started("a")) == 2)
    second = supervisor.pids()
    assert second["a"] != first["a"]
    assert second["b"] == first["b"]
    assert supervisor.restarts() == {"a": 1, "b": 0}
    assert said.exits == [ChildExit("a", -signal.SIGKILL, False)]


def test_children_are_drained_stage_by_stage(supervise: Callable[..., Supervisor], said: Said) -> None:
    supervisor = supervise(child("worker", stage=2), child("front", "slow"), child("middle", stage=1))
    said.until(lambda: all(said.started(name) for name in ("front", "middle", "worker")))
    assert supervisor.drain(PATIENCE_S)
    order = [line for line in said.lines if line.endswith(("told", "done"))]
    assert order == [f"{name} {what}" for name in ("front", "middle", "worker") for what in ("told", "done")]
    assert supervisor.pids() == {}
    assert all(exit.expected for exit in said.exits)


def test_a_child_that_does_not_end_is_killed(supervise: Callable[..., Supervisor], said: Said) -> None:
    supervisor = supervise(child("a", "deaf"), child("b", stage=1))
    said.until(lambda: bool(said.started("a") and said.started("b")))
    assert not supervisor.drain(0.3)
    assert supervisor.pids() == {}
    assert "b done" in said.lines


def test_a_crash_loop_is_reported_and_slows_down(supervise: Callable[..., Supervisor], said: Said) -> None:
    supervisor = supervise(child("a", "broken"))
    said.until(lambda: len(said.exits) >= 3)
    assert {exit.code for exit in said.exits} == {3}
    supervisor.drain(PATIENCE_S)
    assert supervisor.pids() == {}


def test_delays_grow_to_a_bound_and_start_anew_after_a_steady_life() -> None:
    backoff = RestartBackoff()
    delays = [backoff.delay_s(0.1) for _ in range(IMMEDIATE_RESTARTS + 10)]
    assert delays[:IMMEDIATE_RESTARTS] == [0.0] * IMMEDIATE_RESTARTS
    assert delays[IMMEDIATE_RESTARTS] > 0
    assert delays == sorted(delays)
    assert delays[-1] == MAX_DELAY_S
    assert backoff.delay_s(STEADY_S) == 0.0


PARENT = """
import os, time
from horologe_cli.local.supervisor import ChildSpec, Supervisor
supervisor = Supervisor([ChildSpec(name, "small_child", (name, "deaf")) for name in "ab"],
                        lambda name, line: os.write(1, f"{line}\\n".encode()))  # print is two writes, by two threads
supervisor.start()
time.sleep(60)
"""


def test_children_die_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "small_child.py").write_text(CHILD)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env=env) as parent:
        assert parent.stdout is not None
        pids = [int(parent.stdout.readline().split()[2]) for _ in "ab"]
        parent.kill()
    assert all(_ends(pid) for pid in pids)


def _ends(pid: int) -> bool:
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if _is_zombie(pid):  # nobody reaps orphans in some containers
            return True
        time.sleep(0.02)
    return False


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
