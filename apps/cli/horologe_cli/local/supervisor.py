"""Keeps the processes of one machine running: starts, restarts and ends them, and forwards what they say.

Each child has a keeper thread that starts it and waits for it. The keeper outlives its child, which the kernel's
parent-death signal asks for: it fires when the thread that started the child ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

STEADY_S = 10.0
"""A child that lived this long was no part of a crash loop."""
AT_ONCE = 4
"""So many deaths in a row are followed by a restart without delay."""
FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0


class ChildSpec(NamedTuple):
    """A process to keep. Children of a lower `stage` are ended first, and have ended before the next stage is told."""

    name: str
    module: str
    """Run as `python -m` does."""
    arguments: tuple[str, ...] = ()
    stage: int = 0
    nice: int = 0
    env: Mapping[str, str] = {}

    def command(self) -> list[str]:
        nice = ["--nice", str(self.nice)] if self.nice else []
        launcher = [sys.executable, "-m", "horologe_cli.local.child_process", "--parent", str(os.getpid()), *nice]
        return [*launcher, self.module, *self.arguments]


class ChildExit(NamedTuple):
    """How a child ended. `code` is negative for a signal; `expected`: it had been told to stop."""

    name: str
    code: int
    expected: bool


class Backoff:
    """How long to wait before the next restart of one child."""

    def __init__(self) -> None:
        self._deaths = 0

    def delay_s(self, lived_s: float) -> float:
        """After a death at the age of `lived_s` seconds: nothing at first, then doubling up to `LONGEST_DELAY_S`."""
        self._deaths = 1 if lived_s >= STEADY_S else self._deaths + 1
        if self._deaths <= AT_ONCE:
            return 0.0
        return float(min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** (self._deaths - AT_ONCE - 1)))


class Supervisor:
    """Children by name. `on_line(name, line)` and `on_exit(exit)` are called from the keepers' threads."""

    def __init__(
        self,
        specs: Sequence[ChildSpec],
        on_line: Callable[[str, str], None],
        on_exit: Callable[[ChildExit], None] = lambda _: None,
    ) -> None:
        self._keepers = [ChildKeeper(spec, on_line, on_exit) for spec in specs]

    def start(self) -> None:
        for keeper in self._keepers:
            keeper.start()

    def pids(self) -> dict[str, int]:
        """Of the children that run now, by name."""
        return {keeper.spec.name: pid for keeper in self._keepers if (pid := keeper.pid())}

    def restarts(self) -> dict[str, int]:
        """How often each child had to be started again."""
        return {keeper.spec.name: keeper.restarts for keeper in self._keepers}

    def drain(self, bound_s: float) -> bool:
        """End the children, stage by stage, each stage within `bound_s` or by force; True if force was not needed."""
        clean = True
        for stage in sorted({keeper.spec.stage for keeper in self._keepers}):
            keepers = [keeper for keeper in self._keepers if keeper.spec.stage == stage]
            for keeper in keepers:
                keeper.send_signal(signal.SIGTERM)
            end = time.monotonic() + bound_s
            for keeper in keepers:
                if not keeper.join(max(0.0, end - time.monotonic())):
                    clean = False
                    keeper.send_signal(signal.SIGKILL)
            for keeper in keepers:
                keeper.join(None)
        return clean

    def abort(self) -> None:
        """Kill all children at once."""
        for keeper in self._keepers:
            keeper.send_signal(signal.SIGKILL)
        for keeper in self._keepers:
            keeper.join(None)


class ChildKeeper:
    """One child, started again whenever it ends, until it is told to stop."""

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
        self._thread = threading.Thread(target=self._run_child, name=f"keeper {spec.name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def pid(self) -> int | None:
        process = self._process
        return process.pid if process and process.poll() is None else None

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal and start no more."""
        self._stopping.set()
        with self._lock:
            if self._process and self._process.poll() is None:
                self._process.send_signal(number)

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the end of a child that was told to stop."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run_child(self) -> None:
        backoff = Backoff()
        while True:
            began = time.monotonic()
            with self._lock:
                if self._stopping.is_set():
                    return
                self._process = process = self._spawn()
            reader = threading.Thread(target=self._forward, args=(process,), daemon=True)
            reader.start()
            code = process.wait()
            reader.join(1.0)  # a grandchild may hold the pipe open longer
            self._on_exit(ChildExit(self.spec.name, code, self._stopping.is_set()))
            if self._stopping.wait(backoff.delay_s(time.monotonic() - began)):
                return
            self.restarts += 1

    def _spawn(self) -> subprocess.Popen[str]:
        """In a process group of its own: ^C in the terminal is the supervisor's to hear, or nothing could drain."""
        return subprocess.Popen(
            self.spec.command(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **self.spec.env},
            text=True,
            errors="replace",
            bufsize=1,
            process_group=0,
        )

    def _forward(self, process: subprocess.Popen[str]) -> None:
        if process.stdout is None:
            return
        with process.stdout as lines:
            for line in lines:
                self._on_line(self.spec.name, line.rstrip("\n"))
