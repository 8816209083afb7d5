"""Starts, restarts and stops the processes of one machine, and forwards their log lines.

Each child process has a thread that starts it and waits for it. This thread lives longer than the child, because the
kernel sends the parent-death signal when the thread that started the child ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from horologe_common.service.processes import STEADY_S, Backoff, start_patiently

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

IMMEDIATE_RESTARTS = 4
"""Number of restarts in a row without a delay."""
THREAD_PATIENCE_S = 5.0
LINE_CHARACTERS = 64 << 10
"""Longer lines of a child are split: a child may print without a line feed."""


class ChildSpec(NamedTuple):
    """A process to run. All processes of a `stage` end before processes of a higher stage are stopped."""

    name: str
    module: str
    """Module to run, as with `python -m`."""
    arguments: tuple[str, ...] = ()
    stage: int = 0
    nice: int = 0
    env: Mapping[str, str] = {}
    """Environment variables in addition to those of the supervisor."""
    hidden: tuple[str, ...] = ()
    """Environment variables of the supervisor that the process does not get."""
    cpus: tuple[int, ...] = ()
    """CPUs that the process may use. Empty: those of the supervisor."""

    def command(self) -> list[str]:
        nice = ["--nice", str(self.nice)] if self.nice else []
        cpus = ["--cpus", ",".join(map(str, self.cpus))] if self.cpus else []
        launcher = [sys.executable, "-m", "horologe_cli.local.child_process", "--parent", str(os.getpid())]
        return [*launcher, *nice, *cpus, self.module, *self.arguments]


class ChildExit(NamedTuple):
    """The end of a child process. `code` is negative for a signal. `expected`: the supervisor had stopped it."""

    name: str
    code: int
    expected: bool


class Supervisor:
    """All child processes. `on_line(name, line)` and `on_exit(exit)` are called from the threads of the children."""

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        on_line: Callable[[str, str], None],
        on_exit: Callable[[ChildExit], None] = lambda _: None,
    ) -> None:
        self._on_line = on_line
        self._on_exit = on_exit
        self._children = [self._create(spec) for spec in specs]
        self._draining: list[ChildProcess] = []
        self._closed = False
        self._lock = threading.Lock()

    def _create(self, spec: ChildSpec) -> ChildProcess:
        return ChildProcess(spec, self._on_line, self._on_exit)

    def start(self) -> None:
        for child in self._children:
            child.start()

    def add_child(self, spec: ChildSpec) -> None:
        """Start another child, unless all are being stopped. Raises RuntimeError if it cannot get its thread."""
        with self._lock:
            if not self._closed:
                child = self._create(spec)
                child.start()
                self._children = [*self._children, child]

    def drain_child(self, name: str) -> None:
        """Send SIGTERM to a child, and do not restart it. It may run until all children are stopped."""
        with self._lock:
            leaving = [child for child in self._children if child.spec.name == name]
            self._children = [child for child in self._children if child.spec.name != name]
            self._draining = [child for child in self._draining if not child.join(0)] + leaving
        for child in leaving:
            child.send_signal(signal.SIGTERM)

    def is_draining(self, name: str) -> bool:
        """Return whether a child that `drain_child` has stopped still runs."""
        with self._lock:
            return any(child.spec.name == name and not child.join(0) for child in self._draining)

    def pids(self) -> dict[str, int]:
        """Return the process ids of the running children by name."""
        return {child.spec.name: pid for child in self._children if (pid := child.pid())}

    def forward_signal(self, number: signal.Signals) -> None:
        """Send a signal to every running child. Takes no lock: a signal handler calls it."""
        for pid in self.pids().values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def restarts(self) -> dict[str, int]:
        """Return the number of restarts of each child."""
        return {child.spec.name: child.restarts for child in self._children}

    def drain(self, timeout_s: float) -> bool:
        """Stop the children stage by stage, and kill those of a stage that run longer than `timeout_s`.

        Return whether all children stopped by themselves.
        """
        drained = True
        self._close()
        for stage in sorted({child.spec.stage for child in self._children}):
            children = [child for child in self._children if child.spec.stage == stage]
            for child in children:
                child.send_signal(signal.SIGTERM)
            end = time.monotonic() + timeout_s
            for child in children:
                if not child.join(max(0.0, end - time.monotonic())):
                    drained = False
                    child.send_signal(signal.SIGKILL)
            for child in children:
                child.join(None)
        return drained

    def abort(self) -> None:
        """Kill all children at once."""
        self._close()
        for child in self._children:
            child.send_signal(signal.SIGKILL)
        for child in self._children:
            child.join(None)

    def _close(self) -> None:
        """Start no more children. Those that drain are stopped with the others."""
        with self._lock:
            self._closed = True
            self._children = [*self._children, *self._draining]
            self._draining = []


class ChildProcess:
    """One child process, restarted whenever it ends or cannot be started, until a signal is sent to it."""

    def __init__(
        self, spec: ChildSpec, on_line: Callable[[str, str], None], on_exit: Callable[[ChildExit], None]
    ) -> None:
        self.spec = spec
        self.restarts = 0
        self._on_line = on_line
        self._on_exit = on_exit
        self._process: subprocess.Popen[str] | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run_child, name=f"child {spec.name}", daemon=True)

    def start(self) -> None:
        """Start the thread, which starts the process. Raises RuntimeError after `THREAD_PATIENCE_S`."""
        start_patiently(self.spec.name, self._thread.start, THREAD_PATIENCE_S)

    def pid(self) -> int | None:
        process = self._process
        return process.pid if process and process.poll() is None else None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, and do not restart the child."""
        self._stopping.set()
        with self._lock:
            if self._process and self._process.poll() is None:
                self._process.send_signal(number)

    def join(self, timeout_s: float | None) -> bool:
        """Wait until a stopped child has ended. Return False after `timeout_s` seconds."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run_child(self) -> None:
        exits, failed_starts = Backoff(IMMEDIATE_RESTARTS), Backoff(immediate=0)
        while not self._stopping.is_set():
            started_s = time.monotonic()
            try:
                process, reader = self._spawn_with_reader()
            except (OSError, RuntimeError) as error:  # RuntimeError: no thread, or all children are being stopped
                if self._stopping.is_set():
                    return
                delay_s = failed_starts.next_delay_s()
                reason = f"{self.spec.name} could not be started: {error}; trying again in {delay_s:g} s"
                self._on_line("supervisor", reason)
                self._stopping.wait(delay_s)
                continue
            failed_starts.reset()
            code = process.wait()
            reader.join(1.0)  # a process started by the child may keep the pipe open
            self._on_exit(ChildExit(self.spec.name, code, self._stopping.is_set()))
            if time.monotonic() - started_s >= STEADY_S:
                exits.reset()
            if not self._stopping.wait(exits.next_delay_s()):
                self.restarts += 1

    def _spawn_with_reader(self) -> tuple[subprocess.Popen[str], threading.Thread]:
        """Start the process and the thread that forwards its lines. Raises OSError and RuntimeError."""
        with self._lock:
            if self._stopping.is_set():
                raise RuntimeError("all are being stopped")
            self._process = process = self._spawn()
        reader = threading.Thread(target=self._forward_lines, args=(process,), daemon=True)
        try:
            reader.start()
        except RuntimeError:
            with process:  # its output would block it
                process.kill()
            raise
        return process, reader

    def _spawn(self) -> subprocess.Popen[str]:
        """Start the process in its own session, so that ^C in the terminal reaches the supervisor only.

        Linux schedules sessions as groups with equal parts of the processors (`sched_autogroup_enabled`). In one
        session, all services together would get as much as one busy program beside them: a worker waited for up to
        25 ms, at 16,000 requests/s on two cores.
        """
        inherited = {name: value for name, value in os.environ.items() if name not in self.spec.hidden}
        return subprocess.Popen(
            self.spec.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**inherited, **self.spec.env},
            text=True,
            errors="replace",
            bufsize=1,
            start_new_session=True,
        )

    def _forward_lines(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is None:
            return
        with process.stdout as lines:
            for line in iter(lambda: lines.readline(LINE_CHARACTERS), ""):
                self._on_line(self.spec.name, line.rstrip("\n"))
