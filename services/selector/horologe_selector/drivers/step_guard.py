"""Limit on the time that a driver's code may execute at a stretch: a timer signal interrupts it with an exception.

A run counts as blocked if its step lasts too long and its thread has waited in the kernel meanwhile. A step that lasts
long because other processes have the processor is not interrupted.
"""

from __future__ import annotations

import resource
import signal
import time
from typing import TYPE_CHECKING

from horologe_selector.drivers.driver_runs import StepTooLong

if TYPE_CHECKING:
    from types import FrameType, TracebackType

    from horologe_selector.drivers.driver_loop import DriverLoop

CHECKS = 4
"""Checks per limit. A step is interrupted after 1 to 1 + 1 / CHECKS of the limit."""


class StepGuard:
    """Context manager around `DriverRuns.step`. `limit_ns` 0: no limit. Only for the main thread."""

    def __init__(self, loop: DriverLoop, limit_ns: int) -> None:
        self._loop = loop
        self._limit_ns = limit_ns
        self._interval_s = limit_ns / CHECKS / 1e9
        self._step = self._begin_ns = self._cpu_ns = self._waits = 0
        if limit_ns:
            signal.signal(signal.SIGALRM, self._check)

    def __enter__(self) -> None:
        if self._limit_ns:
            self._step = -1
            signal.setitimer(signal.ITIMER_REAL, self._interval_s, self._interval_s)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._limit_ns:
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _check(self, number: int, frame: FrameType | None) -> None:
        """Raise `StepTooLong` in the code that executes if its step has lasted too long."""
        if not self._loop.running:
            return
        waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        if self._loop.steps != self._step:
            self._step, self._waits = self._loop.steps, waits
            self._begin_ns, self._cpu_ns = time.monotonic_ns(), time.thread_time_ns()
            return
        limit_ns = self._limit_ns - self._limit_ns // CHECKS  # the step began up to an interval before the first check
        blocked = waits > self._waits and time.monotonic_ns() - self._begin_ns >= limit_ns
        if blocked or time.thread_time_ns() - self._cpu_ns >= limit_ns:
            self._step = -1  # code that suppresses the exception is interrupted again after another limit
            what = "blocked" if blocked else "executed"
            limit = f"{self._limit_ns / 1e6:g} ms (selector.pipeline_step_ns)"
            raise StepTooLong(f"the driver {what} for more than {limit} without a call")
