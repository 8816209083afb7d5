"""Checks of CPUs: how many there are, and who else takes their time."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from horologe_cli.doctor.finding import Finding, graded, read_fields, read_text
from horologe_cli.local.machine import read_quota
from horologe_gpu_worker.execution.realtime import PINNING_CPUS_MIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from horologe_cli.local.layout import Layout

STEAL_MAX = 0.01
"""Share of the time that a hypervisor may take for other machines. 1%: a batch of 10 ms then takes 10.1 ms on average,
but the time comes in slices of milliseconds."""
STEAL_SAMPLE_S = 0.5
STEAL, GUEST = 7, 8
"""Position of `steal`, and of `guest`, which `user` includes, in the line `cpu` of /proc/stat."""


def check_layout(layout: Layout) -> Iterator[Finding]:
    """Name the processes that `horologe up` would run."""
    services, gpus = ", ".join(place.name for place in layout.services), sum(w.gpu is not None for w in layout.workers)
    found = f"{services}, {_plural(len(layout.workers), 'worker')}" + (f", {gpus} on a GPU" if gpus else "")
    yield Finding("layout", "ok", found, "" if len(layout.services) == 1 else "all CPUs: horologe up --dry-run")


def check_cores(layout: Layout) -> Iterator[Finding]:
    """Check that every worker and every service have a core of their own."""
    cores, services, workers = len(os.sched_getaffinity(0)), len(layout.services), len(layout.workers)
    needed = workers + services
    use = f"{cores} for {_plural(workers, 'worker')} and {'the edge' if services == 1 else f'{services} services'}"
    hint = "clients and other programs compete for these cores; add cores"
    if cores < needed:
        hint = f"run at most {max(1, cores - services)} (--workers), or add cores"
    yield graded("cores", bool(layout.background_cpus) or cores >= 2 * needed or cores >= needed + 2, use, hint)


def check_lanes(layout: Layout) -> Iterator[Finding]:
    """Check that the EXEC lane of every worker can be pinned to a core of its own."""
    cores, workers = len(os.sched_getaffinity(0)), len(layout.workers)
    pinned = min(workers, cores // 2 if cores >= PINNING_CPUS_MIN else 0)
    if layout.background_cpus:
        pinned = workers
    hint = (
        f"an unpinned lane starts late if its core is busy: at least {PINNING_CPUS_MIN} cores, and two for each EXEC "
        "lane (docker: cpuset)"
    )
    yield graded("EXEC lanes", pinned == workers, f"{pinned} of {workers} pinned to a core", hint)


def check_quota(root: Path) -> Iterator[Finding]:
    """Check for a CPU quota of the cgroup: it stops every thread of the group for the rest of a period."""
    quota, period = read_quota(root / "sys/fs/cgroup")
    if quota is None:
        yield Finding("CPU quota", "ok", "none")
        return
    stopped = read_fields(root / "sys/fs/cgroup/cpu.stat").get("nr_throttled", 0)
    hint = "a quota stops all threads for up to a period; use a cpuset (docker --cpuset-cpus) instead of --cpus"
    found = f"{quota / period:.2f} cores per {period / 1000:g} ms, reached {_plural(stopped, 'time')}"
    yield Finding("CPU quota", "warn", found, hint)


def check_sessions(root: Path) -> Iterator[Finding]:
    """Check that Linux does not divide the processors by session: a thread then waits longer for its turn.

    It does so only with processes that no cgroup with a CPU controller holds.
    """
    by_session = read_text(root / "proc/sys/kernel/sched_autogroup_enabled") == "1" and not _in_cpu_group(root)
    hint = "sysctl kernel.sched_autogroup_enabled=0 (as root): it halves the p99 of latencies on busy cores"
    yield graded("scheduling", not by_session, "by session" if by_session else "by thread or cgroup", hint)


def _in_cpu_group(root: Path) -> bool:
    """Return whether a cgroup with a CPU controller holds this process, of v1 or v2."""
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(","):
            return path != "/"
        if not controllers and (root / "sys/fs/cgroup" / path.lstrip("/") / "cpu.weight").exists():
            return True
    return False


def check_governor(root: Path) -> Iterator[Finding]:
    """Check that no governor lowers the frequency of idle cores."""
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    governors = sorted({text for file in files if (text := read_text(file))})
    names = ", ".join(governors) or "no governor to choose (virtual machine or fixed frequency)"
    hint = "cpupower frequency-set -g performance (as root, on the host)"
    yield graded("CPU governor", governors in ([], ["performance"]), names, hint)


def check_steal(root: Path, sleep: Callable[[float], None] = time.sleep) -> Iterator[Finding]:
    """Check the time that a hypervisor took from this machine since it started, and during `STEAL_SAMPLE_S`."""
    before = _read_times(root)
    sleep(STEAL_SAMPLE_S)
    after = _read_times(root)
    if len(after) <= STEAL:
        yield Finding("steal", "ok", "not reported: no virtual machine")
        return
    since_start, now = _steal(after), _steal([last - first for first, last in zip(before, after, strict=True)])
    hint = "other virtual machines use these cores: reserve cores (dedicated or bare-metal machines, CPU pinning)"
    found = f"{now:.1%} now, {since_start:.1%} since the machine started"
    yield graded("steal", max(now, since_start) <= STEAL_MAX, found, hint)


def _read_times(root: Path) -> list[int]:
    line = read_text(root / "proc/stat").partition("\n")[0].split()
    return [int(ticks) for ticks in line[1 : GUEST + 1]]


def _steal(ticks: list[int]) -> float:
    return ticks[STEAL] / sum(ticks) if sum(ticks) else 0.0


def check_realtime() -> Iterator[Finding]:
    """Check that a thread may raise its priority."""
    hint = "allow it: ulimit -r 50, LimitRTPRIO=50 (systemd), --ulimit rtprio=50 (docker), WORKER_RTPRIO=50 (compose)"
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(_may_be_realtime()))  # only this thread gets the priority
    thread.start()
    thread.join()
    permitted = results == [True]
    permission = "permitted" if permitted else "not permitted: actions start later than planned"
    yield graded("real-time priority", permitted, permission, hint)


def _may_be_realtime() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    return True


def check_load() -> Iterator[Finding]:
    """Check that other programs leave the cores idle."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    hint = "other programs use this machine; stop them, or requests will miss deadlines"
    yield graded("load", load <= cores / 2, f"{load:.1f} on {cores} cores", hint)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
