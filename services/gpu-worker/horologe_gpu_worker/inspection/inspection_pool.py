"""Inspections beside each other: a bounded number, and none waits long behind slow ones."""

from __future__ import annotations

import os
from collections import deque
from threading import Condition, Thread
from typing import TYPE_CHECKING, NamedTuple

from horologe_common.clock import monotonic_ns, ms, s
from horologe_common.service.log import logger
from horologe_common.status import HorologeError, ModelFailed
from horologe_gpu_worker.inspection.inspector import InspectionEnded, Inspector, Timeout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from horologe_gpu_worker.inspection.inspector import Inspected, InspectionSetup
    from horologe_gpu_worker.repository.version_inspector import VersionReport

QUANTUM_NS = s(3)
"""An inspection that takes longer becomes slow, and another one may begin. Most models are loaded and measured in less;
those that import a framework, download or compile something are not."""
SLOW_MAX = 8
"""Limit of slow inspections. Each is a process with its model in memory."""
RAMP_NS = ms(500)
"""A further process starts when each running inspection has taken this long. A process costs half a second of CPU time
to start, in which it could inspect twenty models whose profiles are known."""
IDLE_NS = s(30)
"""An idle process ends after this time. It holds up to 500 MB with PyTorch, whose import takes seconds."""
STOP_S = 1.0
"""Seconds in which killed inspections end."""

log = logger("inspection")


class InspectionRequest(NamedTuple):
    """A version to inspect. The functions are called on a thread of the pool."""

    folder: Path
    content_hash: str
    on_progress: Callable[[str], None]
    adopt: Callable[[Inspected, Timeout], VersionReport]
    """Prepare the inspected version in this process, within the timeout. May block; raises `HorologeError`."""
    stop_adopting: Callable[[], None]
    """Make `adopt` fail soon, if it can be stopped. Called on another thread."""
    on_result: Callable[[VersionReport | HorologeError], None]
    """Receives the result or the error, once."""


class _Running:
    def __init__(self, request: InspectionRequest, slow: bool) -> None:
        self.request = request
        self.begin_ns = monotonic_ns()
        self.slow = slow
        self.inspector: Inspector | None = None
        """Its process, until that has answered."""
        self.adopts = False
        """The process has answered, and the version is adopted."""
        self.preempted = False
        """It is stopped, because it took too long while others wait. It begins again as a slow one."""

    def stop(self) -> None:
        """Stop the process, or the adoption. Call with the lock of the pool."""
        if self.inspector is not None:
            self.inspector.kill()
        else:
            self.request.stop_adopting()


class InspectionPool:
    """At most `limit` inspections run, and up to `slow_max` that have taken longer than `quantum_ns`.

    `limit` 0: one per CPU, at least 2 and at most 8.

    If too many are slow, a further one is stopped while others wait, and repeated when a slow one has ended. Invariant:
    each request gets one result, unless the pool is stopped.
    """

    def __init__(
        self, setup: InspectionSetup, limit: int = 0, quantum_ns: int = QUANTUM_NS, slow_max: int = SLOW_MAX
    ) -> None:
        self._setup = setup
        self._quantum_ns, self._slow_max = quantum_ns, slow_max
        self._limit = limit or min(max(2, len(os.sched_getaffinity(0))), 8)
        self._changed = Condition()
        """Protects all fields, and is notified when the dispatcher may have something to do."""
        self._waiting: deque[InspectionRequest] = deque()
        self._preempted: deque[InspectionRequest] = deque()
        self._running: list[_Running] = []
        self._idle: list[Inspector] = []
        self._stopping = False
        self._dispatcher = Thread(target=self._dispatch, name="inspections", daemon=True)

    def start(self) -> None:
        self._dispatcher.start()

    def submit(self, request: InspectionRequest) -> None:
        """Queue an inspection. Call from any thread."""
        with self._changed:
            self._waiting.append(request)
            self._changed.notify_all()

    def stop(self) -> None:
        """Kill all processes. Requests without a result get none."""
        with self._changed:
            self._stopping = True
            for running in self._running:
                running.stop()
            idle, self._idle = self._idle, []
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._running, STOP_S)
        for inspector in idle:
            inspector.close()

    def _dispatch(self) -> None:
        """Begin inspections and end idle processes, until the pool is stopped."""
        while True:
            with self._changed:
                if self._stopping:
                    return
                now_ns = monotonic_ns()
                self._mark_slow(now_ns)
                for running in self._pop_startable(now_ns):
                    Thread(target=self._run, args=(running,), name="inspection", daemon=True).start()
                ended = self._pop_unused(now_ns)
                if not ended:
                    due_ns = self._due_ns()
                    self._changed.wait(None if due_ns is None else max(0, due_ns - now_ns) / 1e9)
            for inspector in ended:
                inspector.close()

    def _mark_slow(self, now_ns: int) -> None:
        """Mark the inspections that have become slow. Stop those beyond the limit if others wait for their place."""
        slow = sum(running.slow for running in self._running)
        for running in self._running:
            if running.slow or running.preempted or now_ns - running.begin_ns < self._quantum_ns:
                continue
            if slow < self._slow_max:
                running.slow = True
                slow += 1
            elif self._waiting:
                running.preempted = True
                running.stop()

    def _pop_startable(self, now_ns: int) -> list[_Running]:
        """Move the requests that may begin to the running ones, and return them."""
        slow = sum(running.slow for running in self._running)
        started: list[_Running] = []
        while self._waiting and len(self._running) - slow < self._limit and self._has_process(now_ns):
            started.append(_Running(self._waiting.popleft(), slow=False))
            self._running.append(started[-1])
        while self._preempted and slow < self._slow_max and not self._waiting:
            started.append(_Running(self._preempted.popleft(), slow=True))
            self._running.append(started[-1])
            slow += 1
        return started

    def _has_process(self, now_ns: int) -> bool:
        """Return whether a process is idle that no inspection will take, or a further one may start."""
        taking = [running for running in self._running if running.inspector is None and not running.adopts]
        newest_ns = max([running.begin_ns for running in self._running], default=0)
        return len(self._idle) > len(taking) or now_ns - newest_ns >= RAMP_NS

    def _pop_unused(self, now_ns: int) -> list[Inspector]:
        unused = [inspector for inspector in self._idle if now_ns - inspector.idle_since_ns >= IDLE_NS]
        self._idle = [inspector for inspector in self._idle if inspector not in unused]
        return unused

    def _due_ns(self) -> int | None:
        """Return when an inspection becomes slow, a further process may start, or one has been idle for too long.

        None: never.
        """
        ends = [running.begin_ns + self._quantum_ns for running in self._running if not running.slow]
        if self._waiting:
            ends += [running.begin_ns + RAMP_NS for running in self._running]
        ends = [end_ns for end_ns in ends if end_ns > monotonic_ns()]  # the others wait for an event
        return min([*ends, *(inspector.idle_since_ns + IDLE_NS for inspector in self._idle)], default=None)

    def _run(self, running: _Running) -> None:
        """Inspect and adopt the version, deliver the result, and make room for the next one."""
        request, repeat = running.request, False
        result: VersionReport | HorologeError
        try:
            result = request.adopt(*self._inspect(running))
        except HorologeError as error:
            result = error
        except OSError as error:
            result = ModelFailed(f"{request.folder}: no process could be started for it: {error}")
        try:
            failed = isinstance(result, HorologeError) or result.report.profile is None
            repeat = running.preempted and failed
            if not repeat and not self._stopping:
                request.on_result(result)
        except Exception:  # the place must become free
            log.exception("result of an inspection lost", folder=str(request.folder))
        with self._changed:
            self._running.remove(running)
            if repeat:
                self._preempted.append(request)
            self._changed.notify_all()

    def _inspect(self, running: _Running) -> tuple[Inspected, Timeout]:
        """Inspect in an idle process or a new one.

        A process that has inspected other models may end because of them; then the inspection is repeated in a new one.
        """
        while True:
            inspector = self._take_inspector(running)
            repeatable = inspector.inspections > 0
            try:
                inspected = inspector.inspect(
                    running.request.folder, running.request.content_hash, running.request.on_progress
                )
            except InspectionEnded as error:
                with self._changed:
                    running.inspector = None
                inspector.close()
                if not (repeatable and error.crashed) or running.preempted or self._stopping:
                    raise
                continue
            with self._changed:
                running.inspector, running.adopts = None, True
                kept = not self._stopping
                if kept:
                    self._idle.append(inspector)
                    self._changed.notify_all()
            if not kept:
                inspector.close()
            return inspected

    def _take_inspector(self, running: _Running) -> Inspector:
        with self._changed:
            if self._idle:
                running.inspector = self._idle.pop()
                return running.inspector
        inspector = Inspector(self._setup)
        inspector.start()
        with self._changed:
            running.inspector = inspector
            if self._stopping:
                inspector.kill()
        return inspector
