"""What keeps this machine from being predictable: one small check per cause, each with what to do about it."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_cli.doctor.finding import Finding
from horologe_cli.doctor.installed_packages import packages, runtimes, stores
from horologe_cli.local.ports import is_port_in_use
from horologe_cli.local.topology import default_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

WANTED_FILES = 4096
WANTED_LOCKED = 1 << 30
PORTS = {"HTTP": 8000, "metrics": 8002, "SDK": 8003}


def examine(workers: int = 0, root: Path = Path("/")) -> list[Finding]:
    """Every check in order. `root`: where /proc and /sys are. A check that cannot be made on this system says so."""
    checks: list[Callable[[], Iterable[Finding]]] = [
        lambda: _cores(workers or default_workers()),
        lambda: _quota(root),
        lambda: _governor(root),
        _realtime,
        _limits,
        lambda: _huge_pages(root),
        lambda: _swap(root),
        lambda: _clock(root),
        _load,
        _ports,
        packages,
        runtimes,
        stores,
    ]
    findings: list[Finding] = []
    for check in checks:
        try:
            findings.extend(check())
        except (OSError, ValueError, AttributeError) as error:
            findings.append(Finding("check", "warn", f"could not be made here: {error}"))
    return findings


def _cores(workers: int) -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    wanted = workers + 1
    found = f"{cores} for {workers} worker{'s' if workers > 1 else ''} and the edge"
    if cores >= 2 * wanted or cores >= wanted + 2:
        yield Finding("cores", "ok", found)
    elif cores >= wanted:
        yield Finding(
            "cores", "warn", found, "whatever else runs (clients too) takes time from them; give it more cores"
        )
    else:
        hint = f"run at most {max(1, cores - 1)} (--workers), or allow more cores"
        yield Finding("cores", "warn", found, hint)


def _quota(root: Path) -> Iterator[Finding]:
    """cgroup v2, then v1: a quota stops every thread of the group for the rest of its period."""
    quota, period = _quota_of(root / "sys/fs/cgroup")
    if quota is None:
        yield Finding("CPU quota", "ok", "none")
        return
    hint = "a quota pauses all threads for up to a period; use a cpuset (docker --cpuset-cpus) instead of --cpus"
    yield Finding("CPU quota", "warn", f"{quota / period:.2f} cores per {period / 1000:g} ms", hint)


def _quota_of(group: Path) -> tuple[int | None, int]:
    if text := _read(group / "cpu.max"):
        quota, period = text.split()
        return (None if quota == "max" else int(quota)), int(period)
    quota_us = int(_read(group / "cpu/cpu.cfs_quota_us") or -1)
    return (None if quota_us < 0 else quota_us), int(_read(group / "cpu/cpu.cfs_period_us") or 100_000)


def _governor(root: Path) -> Iterator[Finding]:
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    governors = sorted({text for file in files if (text := _read(file))})
    if not governors:
        yield Finding("CPU governor", "ok", "not ours to choose here (virtual machine, or fixed frequency)")
    elif governors == ["performance"]:
        yield Finding("CPU governor", "ok", "performance")
    else:
        yield Finding("CPU governor", "warn", ", ".join(governors), "cpupower frequency-set -g performance (as root)")


def _realtime() -> Iterator[Finding]:
    hint = "allow it: ulimit -r 1, LimitRTPRIO=1 (systemd), or --cap-add SYS_NICE --ulimit rtprio=1 (docker)"
    tried: list[bool] = []
    thread = threading.Thread(target=lambda: tried.append(_may_be_realtime()))  # it alone gets the priority
    thread.start()
    thread.join()
    permitted = tried == [True]
    if permitted:
        yield Finding("real-time priority", "ok", "permitted")
    else:
        yield Finding("real-time priority", "warn", "not permitted: waits for a window end later", hint)


def _may_be_realtime() -> bool:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    return True


def _limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft >= WANTED_FILES
    hint = "" if enough else f"ulimit -n {WANTED_FILES}: every connection takes one"
    yield Finding("open files", "ok" if enough else "warn", f"{soft} (at most {hard})", hint)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    enough = locked == resource.RLIM_INFINITY or locked >= WANTED_LOCKED
    found = "unlimited" if locked == resource.RLIM_INFINITY else f"{locked >> 10} KiB"
    hint = "" if enough else "ulimit -l unlimited: only pinned buffers for GPUs ask for it"
    yield Finding("locked memory", "ok" if enough else "warn", found, hint)


def _huge_pages(root: Path) -> Iterator[Finding]:
    text = _read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    chosen = text.partition("[")[2].partition("]")[0] if text else "not offered"
    if chosen == "always":
        hint = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: compaction stalls whoever allocates"
        yield Finding("transparent huge pages", "warn", chosen, hint)
    else:
        yield Finding("transparent huge pages", "ok", chosen)


def _swap(root: Path) -> Iterator[Finding]:
    lines = (_read(root / "proc/meminfo") or "").splitlines()
    fields = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    total, free = fields.get("SwapTotal", 0), fields.get("SwapFree", 0)
    if not total:
        yield Finding("swap", "ok", "none")
    elif free < total:
        hint = "a page that must come back from disk costs milliseconds: swapoff -a, or vm.swappiness=1"
        yield Finding("swap", "warn", f"{(total - free) >> 10} of {total >> 10} MiB in use", hint)
    else:
        yield Finding("swap", "ok", f"{total >> 10} MiB, unused")


def _clock(root: Path) -> Iterator[Finding]:
    source = _read(root / "sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    fast = source in ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "unknown")
    hint = "" if fast else "reading it is a system call; boot with clocksource=tsc if the processor's is stable"
    yield Finding("clock source", "ok" if fast else "warn", source, hint)


def _load() -> Iterator[Finding]:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    busy = load > cores / 2
    hint = "something else is working here; what it takes, deadlines lose" if busy else ""
    yield Finding("load", "warn" if busy else "ok", f"{load:.1f} on {cores} cores", hint)


def _ports() -> Iterator[Finding]:
    for name, port in PORTS.items():
        if is_port_in_use("127.0.0.1", port):
            hint = "fine if that is Horologe; else choose another (--http, --metrics, --client)"
            yield Finding(f"port {port}", "warn", f"in use ({name})", hint)
        else:
            yield Finding(f"port {port}", "ok", f"free ({name})")


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
