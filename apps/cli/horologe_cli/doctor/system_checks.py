"""Checks of memory and clocks, and of the limits of a process."""

from __future__ import annotations

import ctypes
import resource
from typing import TYPE_CHECKING

from horologe_cli.doctor.finding import Finding, graded, read_fields, read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from horologe_gpu_worker.settings import WorkerSettings

FAST_SOURCES = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "unknown")
TIME_ERROR = 5
TIMEX_BYTES = 512
"""More than the 208 bytes of struct timex. All zero: read only."""
MIN_OPEN_FILES = 4096
MIN_LOCKED_BYTES = 1 << 30
UNLIMITED = 1 << 60
"""cgroup v1 writes about 2^63 for no limit."""
GIB = 1 << 30


def check_memory(settings: WorkerSettings, workers: int, root: Path) -> Iterator[Finding]:
    """Check that the caches of the workers fit, if they fill: weights, inputs, and models that stay open."""
    needed = workers * (settings.shares * settings.pages_bytes + settings.io_cache_bytes + settings.host_bytes)
    fields = read_fields(root / "proc/meminfo")
    available, limit = fields.get("MemAvailable", 0) << 10, _read_limit(root / "sys/fs/cgroup")
    limited = f"limit of the container {limit / GIB:.1f} GiB" if limit else "no limit"
    found = (
        f"{available / GIB:.1f} GiB available, {limited}; {workers} x worker: up to {needed / workers / GIB:.1f} GiB"
    )
    hint = "set worker.pages_bytes to what the models need, or add memory; the kernel kills a worker that exceeds it"
    yield graded("memory", min(available, limit or available) >= needed, found, hint)


def _read_limit(group: Path) -> int:
    """Return the memory limit of the cgroup in bytes, of v2, else of v1. 0: none."""
    text = read_text(group / "memory.max") or read_text(group / "memory/memory.limit_in_bytes")
    return int(text) if text.isdigit() and int(text) < UNLIMITED else 0


def check_limits() -> Iterator[Finding]:
    """Check the limits of open files and of locked memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hint = f"ulimit -n {MIN_OPEN_FILES}: every connection needs an open file"
    yield graded("open files", soft >= MIN_OPEN_FILES, f"{soft} (at most {hard})", hint)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = locked == resource.RLIM_INFINITY
    limit = "unlimited" if unlimited else f"{locked >> 10} KiB"
    hint = "ulimit -l unlimited: needed only for pinned buffers of GPUs"
    yield graded("locked memory", unlimited or locked >= MIN_LOCKED_BYTES, limit, hint)


def check_huge_pages(root: Path) -> Iterator[Finding]:
    """Check that no allocation waits for the kernel to form huge pages."""
    text = read_text(root / "sys/kernel/mm/transparent_hugepage/enabled")
    mode = text.partition("[")[2].partition("]")[0] if text else "not available"
    hint = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: compaction delays memory allocations"
    yield graded("transparent huge pages", mode != "always", mode, hint)


def check_swap(root: Path) -> Iterator[Finding]:
    """Check that no memory is on disk."""
    fields = read_fields(root / "proc/meminfo")
    total, free = fields.get("SwapTotal", 0), fields.get("SwapFree", 0)
    unused = f"{total >> 10} MiB, unused" if total else "none"
    in_use = f"{(total - free) >> 10} of {total >> 10} MiB in use"
    hint = "reading a page from disk takes milliseconds: swapoff -a, or vm.swappiness=1"
    yield graded("swap", free >= total, in_use if free < total else unused, hint)


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
