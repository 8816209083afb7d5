"""Checks of `horologe doctor`: causes of unpredictable latency on this machine, each with a hint how to fix it.

Inside a container, the checks see its limits: CPUs, quota, memory, priorities. They import no heavy package.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_cli.doctor.certificate_checks import check_certificates
from horologe_cli.doctor.cpu_checks import (
    check_cores,
    check_governor,
    check_lanes,
    check_layout,
    check_load,
    check_quota,
    check_realtime,
    check_sessions,
    check_steal,
)
from horologe_cli.doctor.finding import Finding, graded, read_text
from horologe_cli.doctor.gpu_checks import check_gpus
from horologe_cli.doctor.limit_checks import check_limit
from horologe_cli.doctor.package_checks import check_packages, check_runtimes, check_stores
from horologe_cli.doctor.system_checks import (
    check_clock,
    check_huge_pages,
    check_limits,
    check_memory,
    check_swap,
    check_synchronization,
)
from horologe_cli.local.layout import Wanted, plan_layout
from horologe_cli.local.machine import container_engine, read_machine
from horologe_cli.local.ports import is_port_in_use
from horologe_cli.local.topology import parse_flags
from horologe_common.service.settings import load_settings
from horologe_frontend.tls import TlsSettings
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

PORTS = {"HTTP": 8000, "gRPC": 8001, "metrics": 8002, "SDK": 8003}


def run_checks(workers: int = 0, root: Path = Path("/"), config: str = "", sets: Sequence[str] = ()) -> list[Finding]:
    """Run every check in order. `root`: folder that contains proc and sys. `config`, `sets`: as of `horologe up`.

    A check that this system does not support yields a warning. Raises `SettingsError` for an invalid setting.
    """
    file, flags = config or os.environ.get("HOROLOGE_CONFIG"), parse_flags(sets)
    worker = load_settings(WorkerSettings, "worker", file, os.environ, flags.get("worker"))
    tls = load_settings(TlsSettings, "tls", file, os.environ, flags.get("tls"))
    machine = read_machine(root, gpus=worker.device == WorkerSettings().device)
    layout = plan_layout(machine, Wanted(workers, pin=worker.pin))
    workers = len(layout.workers)
    checks: list[Callable[[], Iterable[Finding]]] = [
        partial(check_container, root), partial(check_layout, layout), partial(check_cores, layout),
        partial(check_lanes, layout), partial(check_quota, root), partial(check_governor, root),
        partial(check_steal, root), check_realtime,
        partial(check_sessions, root), check_load, partial(check_memory, worker, workers, root),
        partial(check_huge_pages, root), partial(check_swap, root), check_limits,
        partial(check_clock, root), check_synchronization, check_ports, check_limit,
        partial(check_certificates, tls), check_gpus, check_packages, check_runtimes,
        check_stores,
    ]  # fmt: skip
    findings: list[Finding] = []
    for check in checks:
        try:
            findings.extend(check())
        except (OSError, ValueError, AttributeError) as error:
            findings.append(Finding("check", "warn", f"not possible on this system: {error}"))
    return findings


def check_container(root: Path = Path("/")) -> Iterator[Finding]:
    """Name the container engine, as every other finding is about the container then."""
    engine = container_engine(root)
    version = "v2" if read_text(root / "sys/fs/cgroup/cgroup.controllers") else "v1"
    yield Finding("container", "ok", f"{engine}, cgroup {version}" if engine else "none")


def check_ports() -> Iterator[Finding]:
    """Check the default ports on the loopback interface."""
    for name, port in PORTS.items():
        used = is_port_in_use("127.0.0.1", port)
        hint = "fine if Horologe uses it; else choose another port (--http, --grpc, --metrics, --client)"
        yield graded(f"port {port}", not used, f"{'in use' if used else 'free'} ({name})", hint)
