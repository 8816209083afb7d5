"""What makes a thread's waits exact: real-time priority, no timer slack, a core of its own."""

from __future__ import annotations

import ctypes
import os
from typing import TYPE_CHECKING

from horologe_common.service.log import logger

if TYPE_CHECKING:
    from horologe_gpu_worker.settings import WorkerSettings

PR_SET_TIMERSLACK = 29
PRIORITY = 10
CORES_TO_PIN = 4
"""On fewer cores a pinned lane waits for whatever else runs on its core."""

log = logger("waiting")


class Priority:
    """Real-time priority of the calling thread, for its waits only.

    With both cores 40% busy a wait ended 635 us late (p99) without and 2 us with it. Computing at real-time priority
    would starve the loop and the neighbours instead.
    """

    def __init__(self, permitted: bool) -> None:
        self.permitted = permitted
        self._raised = False

    def raise_(self) -> None:
        """Before a wait."""
        if self.permitted and not self._raised:
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))
            self._raised = True

    def lower(self) -> None:
        """Before computing."""
        if self._raised:
            os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
            self._raised = False


def realtime_permitted() -> bool:
    """Whether a thread may take real-time priority and give it back. Tries it on the calling one."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(PRIORITY))
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except (OSError, AttributeError) as error:
        log.warning(
            "no real-time priority for lanes: their waits may end up to a millisecond late on a busy machine",
            error=str(error),
            remedy="grant CAP_SYS_NICE (or an rtprio limit), or set worker.realtime = false",
        )
        return False
    return True


def sharp_timers() -> None:
    """End timed waits of the calling thread when they are due instead of up to 50 us later (Linux' timer slack)."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    except (OSError, AttributeError):
        log.warning("timer slack cannot be set: waits end about 50 us late")


def exec_core(settings: WorkerSettings, share: int, cores: set[int]) -> int | None:
    """The core for the EXEC lane of a share, the last ones first; None where lanes are not to be pinned.

    Workers of one machine are told apart by their number, so that no two take the same core; at least half of the
    cores stay free for everything else.
    """
    if not settings.pin or len(cores) < CORES_TO_PIN or not settings.name.isdecimal():
        return None
    place = int(settings.name) * settings.shares + share
    return sorted(cores)[-1 - place] if place < len(cores) // 2 else None


def pin(core: int | None) -> None:
    """Bind the calling thread to a core."""
    if core is not None:
        try:
            os.sched_setaffinity(0, {core})
        except OSError as error:
            log.warning("lane not pinned", core=core, error=str(error))
