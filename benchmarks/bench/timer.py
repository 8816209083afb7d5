"""A timer that wakes the loop when it was told to: an event loop's own timers are up to a millisecond off."""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)
CLOCK_MONOTONIC, TFD_NONBLOCK, TFD_TIMER_ABSTIME = 1, 0o4000, 1


class _Time(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("interval_s", "interval_ns", "s", "ns"))


class Timer:
    """Calls `fire()` on the running loop at or after the time given to `at`, never before it. Linux (timerfd)."""

    def __init__(self, fire: Callable[[], None]) -> None:
        self._fd = _libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._fire = fire
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._fd, self._ready)

    def at(self, when_ns: int) -> None:
        """Fire once at `when_ns` of CLOCK_MONOTONIC; replaces what was set before."""
        when_ns = max(when_ns, time.monotonic_ns() + 1)
        value = _Time(0, 0, when_ns // 1_000_000_000, when_ns % 1_000_000_000)
        _libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, ctypes.byref(value), None)

    def _ready(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            return
        self._fire()

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
