"""Checks of clocks: the cost of reading the time, and its agreement with other machines."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from horologe_cli.doctor.finding import Finding, graded, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

FAST_SOURCES = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "unknown")
TIME_ERROR = 5
TIMEX_BYTES = 512
"""More than the 208 bytes of struct timex. All zero: read only."""


def check_clock(root: Path) -> Iterator[Finding]:
    """Check that reading the clock needs no system call."""
    source = read_text(root / "sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    hint = "reading this clock is a system call; boot with clocksource=tsc if the processor's is stable"
    yield graded("clock source", source in FAST_SOURCES, source, hint)


def read_clock_state() -> int:
    """Return the result of adjtimex: `TIME_ERROR` if the clock is not synchronized. Negative if it may not be read."""
    return int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES)))


def check_synchronization(read_state: Callable[[], int] = read_clock_state) -> Iterator[Finding]:
    """Check that the time of day follows a time server. Deadlines do not depend on it."""
    state = read_state()
    if state < 0:
        yield Finding("time server", "ok", "unknown: the clock may not be read here")
        return
    found = "not synchronized" if state == TIME_ERROR else "synchronized"
    hint = "logs and traces of several machines cannot be compared: run chrony or systemd-timesyncd (on the host)"
    yield graded("time server", state != TIME_ERROR, found, hint)
