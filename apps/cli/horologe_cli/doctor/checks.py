"""Checks of `horologe doctor`: causes of unpredictable latency on this machine, each with a hint how to fix it.

The checks of installed packages import no heavy package.
"""

from __future__ import annotations

import ctypes
import os
import resource
import runpy
import sqlite3
import sys
import threading
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_cli.doctor.finding import Finding, graded
from horologe_cli.doctor.gpu_checks import check_gpus
from horologe_cli.local.ports import is_port_in_use
from horologe_cli.local.topology import default_workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

MIN_OPEN_FILES = 4096
MIN_LOCKED_BYTES = 1 << 30
PORTS = {"HTTP": 8000, "metrics": 8002, "SDK": 8003}
PACKAGES = ("horologe", "pyzmq", "msgspec", "numpy", "uvloop", "structlog", "prometheus_client", "httptools")
FAST_CLOCK_SOURCES = ("tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "unknown")


def run_checks(workers: int = 0, root: Path = Path("/")) -> list[Finding]:
    """Run every check in order. `root`: folder that contains proc and sys.

    A check that this system does not support yields a warning.
    """
    checks: list[Callable[[], Iterable[Finding]]] = [
        lambda: _check_cores(workers or default_workers()), lambda: _check_quota(root), lambda: _check_governor(root),
        _check_realtime, _check_limits, lambda: _check_huge_pages(root), lambda: _check_swap(root),
        lambda: _check_clock(root), _check_load, _check_ports, check_gpus, check_packages, check_runtimes,
        check_stores,
    ]  # fmt: skip
    findings: list[Finding] = []
    for check in checks:
        try:
            findings.extend(check())
        except (OSError, ValueError, AttributeError) as error:
            findings.append(Finding("check", "warn", f"not possible on this system: {error}"))
    return findings


def _check_cores(workers: int) -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0))
    needed = workers + 1
    use = f"{cores} for {workers} worker{'s' if workers > 1 else ''} and the edge"
    hint = "clients and other programs compete for these cores; add cores"
    if cores < needed:
        hint = f"run at most {max(1, cores - 1)} (--workers), or add cores"
    yield graded("cores", cores >= 2 * needed or cores >= needed + 2, use, hint)


def _check_quota(root: Path) -> Iterator[Finding]:
    """Check for a CPU quota of the cgroup: it stops every thread of the group for the rest of a period."""
    quota, period = _read_quota(root / "sys/fs/cgroup")
    if quota is None:
        yield Finding("CPU quota", "ok", "none")
        return
    hint = "a quota stops all threads for up to a period; use a cpuset (docker --cpuset-cpus) instead of --cpus"
    yield Finding("CPU quota", "warn", f"{quota / period:.2f} cores per {period / 1000:g} ms", hint)


def _read_quota(group: Path) -> tuple[int | None, int]:
    """Return quota (None: unlimited) and period in microseconds, of cgroup v2, else of v1."""
    if text := _read(group / "cpu.max"):
        quota, period = text.split()
        return (None if quota == "max" else int(quota)), int(period)
    quota_us = int(_read(group / "cpu/cpu.cfs_quota_us") or -1)
    return (None if quota_us < 0 else quota_us), int(_read(group / "cpu/cpu.cfs_period_us") or 100_000)


def _check_governor(root: Path) -> Iterator[Finding]:
    files = (root / "sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    governors = sorted({text for file in files if (text := _read(file))})
    names = ", ".join(governors) or "no governor to choose (virtual machine or fixed frequency)"
    hint = "cpupower frequency-set -g performance (as root)"
    yield graded("CPU governor", governors in ([], ["performance"]), names, hint)


def _check_realtime() -> Iterator[Finding]:
    hint = "allow it: ulimit -r 1, LimitRTPRIO=1 (systemd), or --cap-add SYS_NICE --ulimit rtprio=1 (docker)"
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


def _check_limits() -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    hint = f"ulimit -n {MIN_OPEN_FILES}: every connection needs an open file"
    yield graded("open files", soft >= MIN_OPEN_FILES, f"{soft} (at most {hard})", hint)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = locked == resource.RLIM_INFINITY
    limit = "unlimited" if unlimited else f"{locked >> 10} KiB"
    hint = "ulimit -l unlimited: needed only for pinned buffers of GPUs"
    yield graded("locked memory", unlimited or locked >= MIN_LOCKED_BYTES, limit, hint)


def _check_huge_pages(root: Path) -> Iterator[Finding]:
    text = _read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    mode = text.partition("[")[2].partition("]")[0] if text else "not available"
    hint = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled: compaction delays memory allocations"
    yield graded("transparent huge pages", mode != "always", mode, hint)


def _check_swap(root: Path) -> Iterator[Finding]:
    lines = (_read(root / "proc/meminfo") or "").splitlines()
    fields = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines)}
    total, free = fields.get("SwapTotal", 0), fields.get("SwapFree", 0)
    unused = f"{total >> 10} MiB, unused" if total else "none"
    in_use = f"{(total - free) >> 10} of {total >> 10} MiB in use"
    hint = "reading a page from disk takes milliseconds: swapoff -a, or vm.swappiness=1"
    yield graded("swap", free >= total, in_use if free < total else unused, hint)


def _check_clock(root: Path) -> Iterator[Finding]:
    source = _read(root / "sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    hint = "reading this clock is a system call; boot with clocksource=tsc if the processor's is stable"
    yield graded("clock source", source in FAST_CLOCK_SOURCES, source, hint)


def _check_load() -> Iterator[Finding]:
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    hint = "other programs use this machine; stop them, or requests will miss deadlines"
    yield graded("load", load <= cores / 2, f"{load:.1f} on {cores} cores", hint)


def _check_ports() -> Iterator[Finding]:
    for name, port in PORTS.items():
        used = is_port_in_use("127.0.0.1", port)
        hint = "fine if Horologe uses it; else choose another port (--http, --metrics, --client)"
        yield graded(f"port {port}", not used, f"{'in use' if used else 'free'} ({name})", hint)


def check_packages() -> Iterator[Finding]:
    """Check the packages that every installation needs."""
    yield Finding("Python", "ok", f"{sys.version.split()[0]} ({sys.implementation.name})")
    versions = {name: _version(name) for name in PACKAGES}
    missing = [name for name, number in versions.items() if not number]
    yield Finding("packages", "ok", ", ".join(f"{name} {number}" for name, number in versions.items() if number))
    if missing:
        hint = 'pip install "horologe[edge,worker,onnx,cli]"'
        yield Finding("packages", "fail", f"missing: {', '.join(missing)}", hint)


def check_runtimes() -> Iterator[Finding]:
    """Check the packages of model runtimes. Only a missing `onnx` is a warning: the demo needs no other runtime."""
    if not find_spec("onnxruntime"):
        yield Finding("runtime onnx", "warn", "onnxruntime is missing", 'pip install "horologe[onnx]"')
    elif number := _version("onnxruntime-gpu"):
        yield Finding("runtime onnx", "ok", f"onnxruntime-gpu {number}, {_describe_devices('CUDA')}")
    else:
        yield Finding("runtime onnx", "ok", f"onnxruntime {_version('onnxruntime')}, CPU")
    if torch := find_spec("torch"):
        yield Finding("runtime pytorch", "ok", _describe_torch(Path(torch.origin or "")))
    else:
        hint = 'for PyTorch models: pip install "horologe[torch]"'
        yield Finding("runtime pytorch", "ok", "not installed: torch", hint)
    for runtime in ("python", "emulated"):
        available = find_spec("numpy") is not None
        state = "available" if available else "numpy is missing"
        yield graded(f"runtime {runtime}", available, state, "pip install numpy")


def check_stores() -> Iterator[Finding]:
    """Check the stores for applications and their selection states."""
    yield Finding("store sqlite", "ok", sqlite3.sqlite_version)
    if number := _version("redis"):
        yield Finding("store redis", "ok", f"redis {number}")
    else:
        hint = 'for several selectors: pip install "horologe[redis]"'
        yield Finding("store redis", "ok", "not installed: redis", hint)


def _describe_torch(package: Path) -> str:
    """Read PyTorch's version and CUDA version from its version.py: importing torch takes seconds."""
    try:
        variables = runpy.run_path(str(package.parent / "version.py"))
    except (OSError, ImportError):
        variables = {}
    number = variables.get("__version__") or _version("torch")
    if cuda := variables.get("cuda"):
        return f"torch {number}, {_describe_devices(f'CUDA {cuda}')}"
    return f"torch {number}, CPU"


def _describe_devices(platform: str) -> str:
    count = cuda_devices()
    return f"{platform}, {count} device{'s' if count > 1 else ''}" if count else f"{platform}, no device: CPU"


def cuda_devices() -> int:
    """Return the number of CUDA devices visible to this process. 0 without a driver."""
    count = ctypes.c_int()
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
