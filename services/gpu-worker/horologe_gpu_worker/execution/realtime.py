"""Exact waits of threads: real-time priority, no timer slack, a pinned CPU."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from horologe_common.service.log import logger

if TYPE_CHECKING:
    from horologe_gpu_worker.settings import WorkerSettings

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


def exec_cpu(settings: WorkerSettings, share: int, cpus: set[int]) -> int | None:
    """Return the CPU for the EXEC lane of a share, from the last CPU down; None if the lane is not pinned.

    The worker's instance number selects the CPU, so that no two workers of a machine share one. At least half of the
    CPUs stay free for other threads.
    """
    if not settings.pin or len(cpus) < PINNING_CPUS_MIN or not settings.name.isdecimal():
        return None
    index = int(settings.name) * settings.shares + share
    return sorted(cpus)[-1 - index] if index < len(cpus) // 2 else None


def pin_thread(cpu: int | None) -> None:
    """Pin the calling thread to a CPU, if one is given."""
    if cpu is not None:
        try:
            os.sched_setaffinity(0, {cpu})
        except OSError as error:
            log.warning("lane not pinned", cpu=cpu, error=str(error))
