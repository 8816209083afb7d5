"""A share of the machine's CPUs: a quota of CPU time, or CPUs of its own where no quota can be set.

The device is the set of CPUs that the process may use at its start.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_common.service.log import logger
from horologe_common.wire import DeviceInfo
from horologe_gpu_worker.device_shares import EnteredShare, device_id
from horologe_gpu_worker.file_lock import lock_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_gpu_worker.settings import WorkerSettings

PERIOD_US = 10_000
"""Period of the quota. A process that has used its quota stops until the period ends: the default of 100 ms would
exceed the deadlines of most requests."""
QUOTA_LEAST_US = 1000
"""Smallest quota that Linux accepts. Smaller shares have a longer period."""
GROUP = "horologe-"

log = logger("share")


def enter(settings: WorkerSettings, groups: Sequence[Path] | None = None) -> EnteredShare:
    """Move this process to a control group with a quota, else to CPUs that no other share has.

    CPUs of its own are whole: the share is rounded to them. `groups`: control groups in which one may be created; by
    default those of this process.
    """
    cpus = sorted(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    device = DeviceInfo(device_id(settings), settings.hardware or settings.device, memory)
    wanted = settings.share_percent / 100 * len(cpus)
    if set_quota(wanted, own_groups() if groups is None else groups):
        return EnteredShare(device, settings.share_percent)
    own = _claim_cpus(Path(settings.cache) / "claims", cpus, max(1, round(wanted)))
    os.sched_setaffinity(0, own)
    percent = 100 * len(own) / len(cpus)
    log.warning("no quota of CPU time can be set: the share is whole CPUs", cpus=own, percent=percent)
    return EnteredShare(device, percent)


def _claim_cpus(folder: Path, cpus: list[int], count: int) -> list[int]:
    """Return CPUs that no other share has claimed, then any."""
    own: list[int] = []
    with suppress(OSError):  # a folder that is not writable is not shared
        for cpu in cpus:
            if len(own) < count and lock_file(folder / f"cpu-{cpu}.lock") is not None:
                own.append(cpu)
    return own + [cpu for cpu in cpus if cpu not in own][: count - len(own)]


def set_quota(cpus: float, parents: Iterable[Path]) -> bool:
    """Limit this process and its children to `cpus` CPUs of time, by a new control group in one of `parents`.

    Return False if no group can be created there.
    """
    period_us = max(PERIOD_US, round(QUOTA_LEAST_US / cpus))
    quota_us = round(cpus * period_us)
    for parent in parents:
        is_first_version = (parent / "cpu.cfs_quota_us").exists()
        values = {"cpu.cfs_period_us": period_us, "cpu.cfs_quota_us": quota_us}
        files = values if is_first_version else {"cpu.max": f"{quota_us} {period_us}"}
        group = parent / f"{GROUP}{os.getpid()}"
        try:
            _remove_unused(parent)
            group.mkdir(exist_ok=True)
            for name, value in files.items():
                (group / name).write_text(f"{value}\n")
            (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
        except OSError:
            with suppress(OSError):
                group.rmdir()
            continue
        return True
    return False


def own_groups() -> list[Path]:
    """Return the control group of this process and its parent."""
    root, paths = Path("/sys/fs/cgroup"), {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        paths[controllers] = path.lstrip("/")
    first = next((path for controllers, path in paths.items() if "cpu" in controllers.split(",")), None)
    own = root / paths.get("", "") if first is None else root / "cpu" / first
    return [own] if own in (root, root / "cpu") else [own, own.parent]


def _remove_unused(parent: Path) -> None:
    """Remove the groups of processes that have ended. The kernel refuses to remove a group in use."""
    for group in parent.glob(f"{GROUP}[0-9]*"):
        with suppress(OSError):
            group.rmdir()
