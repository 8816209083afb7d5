"""The supervisor with small child processes: restarts, order of stopping, no process left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from horologe_cli.local.supervisor import (
    ChildExit,
    ChildSpec,
    Supervisor,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CHILD = """
import os, signal, sys, time
name, mode = sys.argv[1:]

def stop(number, frame):
    print(f"{name} stopping", flush=True)
    if mode == "slow":
        time.sleep(0.3)
    if mode != "deaf":
        print(f"{name} done", flush=True)
        raise SystemExit(0)

signal.signal(signal.SIGTERM, stop)
print(f"{name} pid {os.getpid()} nice {os.nice(0)} {os.environ.get('COLOUR', '')}", flush=True)
if mode == "broken":
    raise SystemExit(3)
while True:
    time.sleep(0.05)
"""
PATIENCE_S = 10.0


class Events:
    """Log lines and exits of children. `wait_until` waits for them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.exits: list[ChildExit] = []
        self._changed = threading.Condition()

    def line(self, name: str, line: str) -> None:
        with self._changed:
            self.lines.append(line)
            self._changed.notify_all()

    def exit(self, exit: ChildExit) -> None:
        with self._changed:
            self.exits.append(exit)
            self._changed.notify_all()

    def wait_until(self, fulfilled: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(fulfilled, PATIENCE_S), self.lines

    def started(self, name: str) -> list[str]:
        return [line for line in self.lines if line.startswith(f"{name} pid ")]


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
def supervise(tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Supervisor]]:
    (tmp_path / "small_child.py").write_text(CHILD)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made: list[Supervisor] = []

    def make(*specs: ChildSpec) -> Supervisor:
        made.append(Supervisor(specs, events.line, events.exit))
        made[-1].start()
        return made[-1]

    yield make
    for supervisor in made:
        supervisor.abort()


def child(name: str, mode: str = "good", stage: int = 0, nice: int = 0) -> ChildSpec:
    return ChildSpec(name, "small_child", (name, mode), stage, nice, {"COLOUR": "red"})


def test_forwards_lines_environment_and_niceness(supervise: Callable[..., Supervisor], events: Events) -> None:
    supervise(child("a", nice=3))
    events.wait_until(lambda: bool(events.started("a")))
    assert events.started("a")[0].endswith(f"nice {os.nice(0) + 3} red")


def test_every_child_has_a_session_whose_priority_follows_its_niceness(
    supervise: Callable[..., Supervisor], events: Events
) -> None:
    supervisor = supervise(child("a"), child("b", nice=3))
    events.wait_until(lambda: bool(events.started("a") and events.started("b")))
    pids = supervisor.pids()
    assert {name: os.getsid(pid) for name, pid in pids.items()} == pids
    group = Path(f"/proc/{pids['b']}/autogroup")
    if group.exists() and os.geteuid() == 0:  # others may change a session's priority only ten times a second
        assert group.read_text().endswith(f"nice {os.nice(0) + 3}\n")


def test_a_child_uses_the_cpus_of_its_specification(supervise: Callable[..., Supervisor], events: Events) -> None:
    last = max(os.sched_getaffinity(0))
    supervisor = supervise(child("a")._replace(cpus=(last,)))
    events.wait_until(lambda: bool(events.started("a")))
    assert os.sched_getaffinity(supervisor.pids()["a"]) == {last}


def test_a_killed_child_is_started_again(supervise: Callable[..., Supervisor], events: Events) -> None:
    supervisor = supervise(child("a"), child("b"))
    events.wait_until(lambda: bool(events.started("a") and events.started("b")))
    first = supervisor.pids()
    os.kill(first["a"], signal.SIGKILL)
    events.wait_until(lambda: len(events.started("a")) == 2)
    second = supervisor.pids()
    assert second["a"] != first["a"]
    assert second["b"] == first["b"]
    assert supervisor.restarts() == {"a": 1, "b": 0}
    assert events.exits == [ChildExit("a", -signal.SIGKILL, False)]


def test_children_are_drained_stage_by_stage(supervise: Callable[..., Supervisor], events: Events) -> None:
    supervisor = supervise(child("worker", stage=2), child("front", "slow"), child("middle", stage=1))
    events.wait_until(lambda: all(events.started(name) for name in ("front", "middle", "worker")))
    assert supervisor.drain(PATIENCE_S)
    order = [line for line in events.lines if line.endswith(("stopping", "done"))]
    assert order == [f"{name} {word}" for name in ("front", "middle", "worker") for word in ("stopping", "done")]
    assert supervisor.pids() == {}
    assert all(exit.expected for exit in events.exits)


def test_a_child_that_does_not_end_is_killed(supervise: Callable[..., Supervisor], events: Events) -> None:
    supervisor = supervise(child("a", "deaf"), child("b", stage=1))
    events.wait_until(lambda: bool(events.started("a") and events.started("b")))
    assert not supervisor.drain(0.3)
    assert supervisor.pids() == {}
    assert "b done" in events.lines


def test_a_crash_loop_is_reported_and_slows_down(supervise: Callable[..., Supervisor], events: Events) -> None:
    supervisor = supervise(child("a", "broken"))
    events.wait_until(lambda: len(events.exits) >= 3)
    assert {exit.code for exit in events.exits} == {3}
    supervisor.drain(PATIENCE_S)
    assert supervisor.pids() == {}


PARENT = """
import os, time
from horologe_cli.local.supervisor import ChildSpec, Supervisor
supervisor = Supervisor([ChildSpec(name, "small_child", (name, "deaf")) for name in "ab"],
                        lambda name, line: os.write(1, f"{line}\\n".encode()))  # print writes twice
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
        if _is_zombie(pid):  # some containers have no init process that reaps orphans
            return True
        time.sleep(0.02)
    return False


def _is_zombie(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
