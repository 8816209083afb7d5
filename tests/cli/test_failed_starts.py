"""A machine without a process or descriptor to spare: whoever starts a process tries again, and leaks nothing."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from harness.model_folders import a_python_model, an_emulated_model
from harness.pipeline_folders import CHAIN, write_pipelines
from horologe_cli.local.supervisor import ChildSpec, Supervisor
from horologe_cli.local.worker_pool import WorkerPool
from horologe_common.service.processes import MAX_DELAY_S, Backoff, start_isolated, start_patiently
from horologe_common.wire import DriverReady
from horologe_gpu_worker.measurement import cache_counters
from horologe_gpu_worker.measurement.share_connection import Ready, ShareConnection, ShareFailed, ShareJob
from horologe_gpu_worker.runtimes.python.python_runtime import PythonRuntime
from horologe_gpu_worker.settings import WorkerSettings
from horologe_selector.driver import DriverEnded
from horologe_selector.drivers.driver_processes import DriverProcesses
from horologe_selector.settings import SelectorSettings

if TYPE_CHECKING:
    from pathlib import Path

SHORTAGES = [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE]
X = {"x": np.ones((1, 4), np.float32)}


class Shortage:
    """Makes the next starts of a process fail. `failed` counts them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.failed = 0
        self._left = 0
        self._error = 0
        genuine: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]

        def execute(process: Any, *arguments: Any) -> None:
            if self._left:
                self._left -= 1
                self.failed += 1
                raise OSError(self._error, os.strerror(self._error))
            genuine(process, *arguments)

        monkeypatch.setattr(subprocess.Popen, "_execute_child", execute)

    def begin(self, starts: int, error: int = errno.EAGAIN) -> None:
        self._left, self._error = starts, error


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> Shortage:
    return Shortage(monkeypatch)


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_delays_double_up_to_a_bound_and_begin_anew() -> None:
    backoff = Backoff(immediate=4)
    delays = [backoff.next_delay_s() for _ in range(40)]
    assert delays[:4] == [0.0] * 4
    assert delays[4] > 0
    assert delays == sorted(delays)
    assert delays[-1] == MAX_DELAY_S
    backoff.reset()
    assert backoff.next_delay_s() == 0.0


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "no such file"), RuntimeError("another"), ValueError("x")])
def test_other_errors_are_raised_at_once(error: Exception) -> None:
    calls = []

    def start() -> None:
        calls.append(1)
        raise error

    with pytest.raises(type(error)):
        start_patiently("a process", start)
    assert len(calls) == 1


def test_patience_ends_with_the_error(shortage: Shortage) -> None:
    shortage.begin(1_000)
    with pytest.raises(BlockingIOError):
        start_patiently("a process", lambda: subprocess.Popen(["true"]), 0.5)
    assert shortage.failed > 1


@pytest.mark.parametrize("error", SHORTAGES)
def test_failed_starts_of_an_isolated_process_leave_no_descriptor_open(shortage: Shortage, error: int) -> None:
    before = descriptors()
    shortage.begin(3, error)
    for _ in range(3):
        with pytest.raises(OSError, match=os.strerror(error)):
            start_isolated("module", {})
    assert descriptors() == before


class Lines:
    """Lines of a supervisor. `wait_for` waits for one that contains a text."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self._changed = threading.Condition()

    def add(self, name: str, line: str) -> None:
        with self._changed:
            self.lines.append((name, line))
            self._changed.notify_all()

    def wait_for(self, text: str, times: int = 1) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: sum(text in line for _, line in self.lines) >= times, 15), self.lines


def supervise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str = "") -> tuple[Supervisor, Lines]:
    program = "import time\nprint('child runs', flush=True)\n" + source + "\ntime.sleep(60)\n"
    (tmp_path / "starting_child.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    lines = Lines()
    return Supervisor([ChildSpec("a", "starting_child")], lines.add), lines


@pytest.mark.parametrize("error", SHORTAGES)
def test_the_supervisor_starts_a_child_as_soon_as_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shortage: Shortage, error: int
) -> None:
    supervisor, lines = supervise(tmp_path, monkeypatch)
    shortage.begin(3, error)
    supervisor.start()
    try:
        lines.wait_for("child runs")
        assert sum("could not be started" in line for name, line in lines.lines if name == "supervisor") == 3
        shortage.begin(2, error)
        os.kill(supervisor.pids()["a"], 9)
        lines.wait_for("child runs", 2)
        assert shortage.failed == 5
        assert supervisor.restarts() == {"a": 1}
    finally:
        supervisor.abort()


def test_the_supervisor_starts_a_child_again_that_got_no_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shortage: Shortage
) -> None:
    supervisor, lines = supervise(tmp_path, monkeypatch)
    genuine, failures = threading.Thread.start, [2]

    def start(thread: threading.Thread) -> None:
        if failures[0] and "forward_lines" in thread.name:
            failures[0] -= 1
            raise RuntimeError("can't start new thread")
        genuine(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    supervisor.start()
    try:
        lines.wait_for("child runs")
        lines.wait_for("can't start new thread", 2)
    finally:
        supervisor.abort()


def test_a_supervisor_stops_while_it_cannot_start_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shortage: Shortage
) -> None:
    supervisor, lines = supervise(tmp_path, monkeypatch)
    shortage.begin(1_000_000)
    supervisor.start()
    lines.wait_for("could not be started")
    assert supervisor.drain(5)


def test_a_line_without_end_is_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    supervisor, lines = supervise(
        tmp_path, monkeypatch, "print('x' * 1_000_000, flush=True)\nprint('after', flush=True)"
    )
    supervisor.start()
    try:
        lines.wait_for("after")
    finally:
        supervisor.abort()
    assert max(len(line) for _, line in lines.lines) <= 64 << 10


def test_a_worker_without_a_thread_is_not_counted() -> None:
    class Full(Supervisor):
        def add_child(self, spec: ChildSpec) -> None:
            raise RuntimeError("can't start new thread")

    def a_spec(*_: Any) -> ChildSpec:
        return ChildSpec("worker-1", "module")

    pool = WorkerPool(Full((), lambda name, line: None), {"worker-0": "cpu"}, a_spec, a_spec)
    with pytest.raises(RuntimeError):
        pool.set_workers({"cpu": 2})
    assert pool.count_workers() == {"cpu": 1}


@pytest.mark.parametrize("error", SHORTAGES)
def test_a_python_model_is_opened_as_soon_as_its_process_can_be_started(
    tmp_path: Path, shortage: Shortage, error: int
) -> None:
    folder, runtime = a_python_model(tmp_path), PythonRuntime()
    before = descriptors()
    shortage.begin(3, error)
    model = runtime.open(runtime.inspect(folder), folder)
    np.testing.assert_array_equal(model.run(1, X)["y"], X["x"])
    model.close()
    assert (shortage.failed, descriptors()) == (3, before)


def test_a_driver_is_started_as_soon_as_it_can_be(tmp_path: Path, shortage: Shortage) -> None:
    write_pipelines(tmp_path, {"good": CHAIN})
    messages: list[Any] = []

    async def main() -> None:
        done = asyncio.Event()

        def post(sender: str, core: str, message: Any, buffers: Any) -> None:
            messages.append(message)
            if isinstance(message, DriverReady):
                done.set()

        reactor: Any = SimpleNamespace(loop=asyncio.get_running_loop(), attach=lambda address, deliver: None, post=post)
        processes = DriverProcesses("selector/0", SelectorSettings(pipelines=str(tmp_path)))
        task = asyncio.ensure_future(processes.run(reactor))
        await asyncio.wait_for(done.wait(), 15)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    shortage.begin(3)
    asyncio.run(main())
    ends = [message for message in messages if isinstance(message, DriverEnded)]
    assert len(ends) == 3
    assert "could not be started" in ends[0].reason


def test_a_share_process_is_started_as_soon_as_it_can_be(
    tmp_path: Path, shortage: Shortage, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = an_emulated_model(tmp_path)
    before = descriptors()
    connection = ShareConnection(ShareJob(str(folder), WorkerSettings(cache=str(tmp_path / "cache"))))
    shortage.begin(2)
    connection.start()
    connection.wait_reply(Ready)
    connection.close()
    shortage.begin(1_000, errno.ENOENT)
    with pytest.raises(ShareFailed, match="could not be started"):
        connection.start()
    assert descriptors() == before


def test_a_profiler_of_kernels_is_started_as_soon_as_it_can_be(
    tmp_path: Path, shortage: Shortage, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ncu").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    shortage.begin(3)
    with pytest.raises(cache_counters.CountersFailed, match="exit code 3"):
        cache_counters.count_cache_use(ShareJob("m/1", WorkerSettings(device="cuda:0")), 1)
    assert shortage.failed == 3
