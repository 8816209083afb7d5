"""One-shot timer of an asyncio loop, exact to microseconds."""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
from typing import TYPE_CHECKING, Any

from horologe_common.clock import NEVER_NS, monotonic_ns, s

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

TFD_TIMER_ABSTIME = 1
SHORTEST_S = 0.001
"""Shortest delay without timerfd. A loop turns with less into an immediate callback."""


class Alarm:
    """Calls `callback` on the loop's thread once the monotonic clock has reached the time set.

    uvloop rounds delays to milliseconds: a callback that is due in 0.4 ms is called at once. A core that waits for a
    time then causes turn after turn. They were 39,000 of 49,000 turns of an edge that loaded 250 models per second.
    timerfd_create(2) has no such limit. Where there is none, the callback may be called up to 1 ms late.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self.at_ns = NEVER_NS
        """Time that is set."""
        self._handle: asyncio.TimerHandle | None = None
        self._libc: Any = ctypes.CDLL(None, use_errno=True)
        create = getattr(self._libc, "timerfd_create", None)
        self._fd = create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC) if create else -1
        if self._fd >= 0:
            loop.add_reader(self._fd, self._on_readable)

    def set(self, at_ns: int) -> None:
        """Call the callback at this time, and not at the one set before."""
        self.at_ns = at_ns
        if self._fd >= 0:
            interval_and_time = (ctypes.c_long * 4)(0, 0, *divmod(max(1, at_ns), s(1)))
            self._libc.timerfd_settime(self._fd, TFD_TIMER_ABSTIME, interval_and_time, None)
            return
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_later(max(SHORTEST_S, (at_ns - monotonic_ns()) / 1e9), self._expire)

    def close(self) -> None:
        """Never call the callback again."""
        if self._handle is not None:
            self._handle.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _on_readable(self) -> None:
        with contextlib.suppress(BlockingIOError):  # set again in this turn of the loop, before this callback
            os.read(self._fd, 8)
            self._expire()

    def _expire(self) -> None:
        self.at_ns = NEVER_NS
        self._callback()
