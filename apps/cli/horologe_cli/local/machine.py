"""Reads what this machine has: CPUs by NUMA node and core, the quota of a control group, CUDA devices, a container."""

from __future__ import annotations

import ctypes
import os
import runpy
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_cli.doctor.finding import read_text
from horologe_cli.local.layout import Gpu, Machine

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_cli.local.layout import Core

BUS_ID_BYTES = 32
CONTAINER_FILES = {".dockerenv": "Docker", "run/.containerenv": "Podman"}
KUBERNETES = "KUBERNETES_SERVICE_HOST"


def container_engine(root: Path = Path("/")) -> str:
    """Return the name of the engine in whose container this process runs; empty if it runs in none."""
    if os.environ.get(KUBERNETES):
        return "Kubernetes"
    return next((name for file, name in CONTAINER_FILES.items() if (root / file).exists()), "")


def read_machine(root: Path = Path("/"), *, gpus: bool = True) -> Machine:
    """Return the machine as far as this process may use it. `root`: folder that contains sys.

    `gpus`: look for CUDA devices, if an installed package of a runtime can use them.
    """
    allowed = os.sched_getaffinity(0)
    system = root / "sys/devices/system"
    folders = sorted(system.glob("node/node[0-9]*"), key=lambda folder: int(folder.name[4:]))
    by_node = [parse_cpus(read_text(folder / "cpulist")) & allowed for folder in folders]
    nodes = tuple(_cores(system, cpus) for cpus in by_node if cpus) or (_cores(system, allowed),)
    quota, period = read_quota(root / "sys/fs/cgroup")
    limit = 0 if quota is None else max(1, ceil(quota / period))
    numbers = [int(folder.name[4:]) for folder, cpus in zip(folders, by_node, strict=True) if cpus]
    found = _read_gpus(root, numbers) if gpus and has_cuda_runtime() else ()
    return Machine(nodes, found, limit)


def parse_cpus(text: str) -> set[int]:
    """Return the numbers of a list of CPUs as in sysfs: `0-3,8`."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def _cores(system: Path, cpus: Iterable[int]) -> tuple[Core, ...]:
    """Return the cores of these CPUs. A CPU whose siblings are not known is a core."""
    cores: dict[int, list[int]] = {}
    for cpu in sorted(cpus):
        siblings = parse_cpus(read_text(system / f"cpu/cpu{cpu}/topology/thread_siblings_list")) or {cpu}
        cores.setdefault(min(siblings), []).append(cpu)
    return tuple(map(tuple, cores.values()))


def read_quota(group: Path) -> tuple[int | None, int]:
    """Return quota (None: unlimited) and period in microseconds, of cgroup v2, else of v1."""
    if text := read_text(group / "cpu.max"):
        quota, period = text.split()
        return (None if quota == "max" else int(quota)), int(period)
    quota_us = int(read_text(group / "cpu/cpu.cfs_quota_us") or -1)
    return (None if quota_us < 0 else quota_us), int(read_text(group / "cpu/cpu.cfs_period_us") or 100_000)


def has_cuda_runtime() -> bool:
    """Return whether onnxruntime-gpu, or PyTorch with CUDA, is installed. Imports neither."""
    try:
        return bool(version("onnxruntime-gpu"))
    except PackageNotFoundError:
        torch = find_spec("torch")
    return bool(torch and read_torch_version(Path(torch.origin or "")).get("cuda"))


def read_torch_version(package: Path) -> dict[str, object]:
    """Return the variables of PyTorch's version.py: importing torch takes seconds."""
    try:
        return runpy.run_path(str(package.parent / "version.py"))
    except (OSError, ImportError):
        return {}


def cuda_devices() -> int:
    """Return the number of CUDA devices visible to this process. 0 without a driver."""
    count = ctypes.c_int()
    driver = _open_driver()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def _open_driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _read_gpus(root: Path, nodes: list[int]) -> tuple[Gpu, ...]:
    """Return the CUDA devices, each with the position of its NUMA node in `nodes`."""
    count, driver = cuda_devices(), _open_driver()
    gpus = []
    for number in range(count):
        bus_id = ctypes.create_string_buffer(BUS_ID_BYTES)
        known = driver is not None and driver.cuDeviceGetPCIBusId(bus_id, BUS_ID_BYTES, number) == 0
        device = bus_id.value.decode().lower() if known else "unknown"
        node = int(read_text(root / f"sys/bus/pci/devices/{device}/numa_node") or -1)
        gpus.append(Gpu(number, nodes.index(node) if node in nodes else -1))
    return tuple(gpus)
