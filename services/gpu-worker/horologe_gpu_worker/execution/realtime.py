"""Exact waits of threads: real-time priority, no timer slack, a pinned CPU."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from horologe_common.service.log import logger
from horologe_gpu_worker.file_lock import lock_file

if TYPE_CHECKING:
    from pathlib import Path

PR_SET_TIMERSLACK = 29
PRIORITY = 10
PINNING_CPUS_MIN = 4
"""On fewer CPUs a pinned lane would wait for other threads on its CPU."""

log = logger("waiting")


class RealtimePriority:
    """Real-time priority of the calling thread, used for waits only.

    With both CPUs 40% busy, a wait ended 635 us late (p99) without it and 2 us late with it. A thread that computed at
    real-time priority would starve the event loop and other processes.
    """

    def __init__(self, permitted: bool) -> None:
        self.permitted = permitted
        self._raised = False

    def raise_priority(self) -> None:
        """Raise the priority, before a wait."""
        if self.permitted and not self._raised:
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))
            self._raised = True

    def lower_priority(self) -> None:
        """Lower the priority, before computing."""
        if self._raised:
            os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
            self._raised = False


def realtime_permitted() -> bool:
    """Return True if a thread may raise its priority and lower it again. Tries both on the calling thread."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except (OSError, AttributeError) as error:
        log.warning(
            "no real-time priority for lanes: on a busy machine operations may start up to a millisecond late",
            error=str(error),
            remedy="grant CAP_SYS_NICE (or an rtprio limit), or set worker.realtime = false",
        )
        return False
    return True


def disable_timer_slack() -> None:
    """Set the calling thread's timer slack to 1 ns. Linux' default lets timed waits end up to 50 us late."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    except (OSError, AttributeError):
        log.warning("cannot set the timer slack: operations may start about 50 us late")


class CpuClaims:
    """CPUs that the EXEC lanes of this process own. No two workers with the same `folder` own the same CPU."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._locks: list[int] = []

    def claim(self, cpus: set[int]) -> int | None:
        """Return a free CPU, from the last one down; None if none is left. Half stay free for other threads."""
        if len(cpus) < PINNING_CPUS_MIN:
            return None
        try:
            for cpu in sorted(cpus, reverse=True)[: len(cpus) // 2]:
                if (lock := lock_file(self._folder / str(cpu))) is not None:
                    self._locks.append(lock)
                    return cpu
        except OSError as error:
            log.warning("lane not pinned", error=str(error))
        return None

    def release(self) -> None:
        """Release all claimed CPUs."""
        for lock in self._locks:
            os.close(lock)
        self._locks.clear()


def pin_thread(cpu: int | None) -> None:
    """Pin the calling thread to a CPU, if one is given."""
    if cpu is not None:
        try:
            os.sched_setaffinity(0, {cpu})
        except OSError as error:
            log.warning("lane not pinned", cpu=cpu, error=str(error))
