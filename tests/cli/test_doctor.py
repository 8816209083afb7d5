"""Checks of `horologe doctor` against files of /proc and /sys, those of containers too."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import pytest

from fakes.authority import Authority
from horologe_cli.doctor.certificate_checks import check_certificates, read_expiries
from horologe_cli.doctor.checks import check_container, run_checks
from horologe_cli.doctor.cpu_checks import (
    check_cores,
    check_governor,
    check_lanes,
    check_quota,
    check_sessions,
    check_steal,
)
from horologe_cli.doctor.system_checks import (
    TIME_ERROR,
    check_clock,
    check_huge_pages,
    check_memory,
    check_swap,
    check_synchronization,
    read_clock_state,
)
from horologe_cli.local.layout import Machine, Wanted, plan_layout
from horologe_frontend.tls import TlsSettings
from horologe_gpu_worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from horologe_cli.doctor.finding import Finding

EIGHT_CORES = Machine((tuple((cpu,) for cpu in range(8)),))
MEMORY = "MemTotal: 16000000 kB\nMemAvailable: 12582912 kB\nSwapTotal: {total} kB\nSwapFree: {free} kB\n"


def write(root: Path, **files: str) -> None:
    """Write files of a fake root folder. `__` in a name is a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def write_group(root: Path, name: str, text: str) -> None:
    path = root / "sys/fs/cgroup" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def only(findings: Iterable[Finding]) -> Finding:
    (finding,) = findings
    return finding


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(
    ("workers", "core_level", "lanes"),
    [
        (1, "ok", "1 of 1 pinned to a core"),
        (4, "ok", "4 of 4 pinned to a core"),
        (8, "warn", "4 of 8 pinned to a core"),
    ],
)
def test_cores_are_compared_with_workers_and_their_lanes(workers: int, core_level: str, lanes: str) -> None:
    layout, crowded = (plan_layout(EIGHT_CORES, Wanted(count)) for count in (workers, 8))
    cores, lane = only(check_cores(layout)), only(check_lanes(layout))
    assert cores.level == core_level
    assert lane.found == lanes
    assert lane.level == ("ok" if workers <= 4 else "warn")
    assert "at most 7" in only(check_cores(crowded)).hint


def test_a_quota_of_the_container_is_found_with_the_times_it_was_reached(tmp_path: Path) -> None:
    write_group(tmp_path, "cpu.max", "max 100000")
    assert only(check_quota(tmp_path)).level == "ok"
    write_group(tmp_path, "cpu.max", "150000 100000")
    write_group(tmp_path, "cpu.stat", "usage_usec 5\nnr_periods 40\nnr_throttled 7")
    found = only(check_quota(tmp_path))
    assert (found.level, found.found) == ("warn", "1.50 cores per 100 ms, reached 7 times")
    assert "cpuset" in found.hint


@pytest.mark.parametrize(
    ("enabled", "group", "level"),
    [
        ("1", "0::/", "warn"),
        ("0", "0::/", "ok"),
        ("1", "0::/user.slice", "warn"),
        ("1", "0::/pod", "ok"),
        ("1", "4:memory:/pod\n1:cpu,cpuacct:/", "warn"),
        ("1", "4:memory:/\n1:cpu,cpuacct:/pod\n0::/", "ok"),
    ],
)
def test_scheduling_by_session_is_found_outside_cgroups_with_a_cpu_controller(
    tmp_path: Path, enabled: str, group: str, level: str
) -> None:
    write(tmp_path, proc__sys__kernel__sched_autogroup_enabled=enabled, proc__self__cgroup=group)
    write_group(tmp_path, "pod/cpu.weight", "100")
    assert only(check_sessions(tmp_path)).level == level


def test_a_kernel_without_groups_of_sessions_is_fine(tmp_path: Path) -> None:
    assert only(check_sessions(tmp_path)).level == "ok"


def test_a_quota_of_an_older_cgroup_is_found(tmp_path: Path) -> None:
    write_group(tmp_path, "cpu/cpu.cfs_quota_us", "200000")
    write_group(tmp_path, "cpu/cpu.cfs_period_us", "100000")
    assert only(check_quota(tmp_path)).found.startswith("2.00 cores")


@pytest.mark.parametrize(("governor", "level"), [("performance", "ok"), ("powersave", "warn")])
def test_a_governor_that_lowers_the_frequency_is_found(tmp_path: Path, governor: str, level: str) -> None:
    write(tmp_path, sys__devices__system__cpu__cpu0__cpufreq__scaling_governor=governor)
    assert only(check_governor(tmp_path)).level == level


@pytest.mark.parametrize(
    ("first", "last", "level", "found"),
    [
        ("0 0 0 9900 0 0 0 0", "0 0 0 19900 0 0 0 0", "ok", "0.0% now, 0.0% since the machine started"),
        ("0 0 0 9900 0 0 0 0", "0 0 0 19700 0 0 0 200", "warn", "2.0% now, 1.0% since the machine started"),
        ("0 0 0 9000 0 0 0 1000", "0 0 0 9900 0 0 0 1000", "warn", "0.0% now, 9.2% since the machine started"),
    ],
)
def test_time_that_a_hypervisor_takes_is_found(tmp_path: Path, first: str, last: str, level: str, found: str) -> None:
    write(tmp_path, proc__stat=f"cpu  {first} 0 0\ncpu0 {first} 0 0")
    finding = only(check_steal(tmp_path, lambda seconds: write(tmp_path, proc__stat=f"cpu  {last} 0 0")))
    assert (finding.level, finding.found) == (level, found)


@pytest.mark.parametrize(
    ("limit", "workers", "level"),
    [("max", 2, "ok"), ("max", 3, "warn"), (str(4 << 30), 1, "warn"), (str(8 << 30), 1, "ok"), ("", 2, "ok")],
)
def test_memory_is_compared_with_the_caches_of_the_workers(
    tmp_path: Path, limit: str, workers: int, level: str
) -> None:
    write(tmp_path, proc__meminfo=MEMORY.format(total=0, free=0))
    write_group(tmp_path, "memory.max", limit)
    finding = only(check_memory(WorkerSettings(), workers, tmp_path))
    assert finding.level == level, finding
    assert "12.0 GiB available" in finding.found
    assert only(check_memory(WorkerSettings(pages_bytes=64 << 20), workers, tmp_path)).level == "ok"


def test_swap_and_huge_pages(tmp_path: Path) -> None:
    write(tmp_path, proc__meminfo=MEMORY.format(total=2048, free=1024))
    write(tmp_path, sys__kernel__mm__transparent_hugepage__enabled="[always] madvise never")
    assert only(check_swap(tmp_path)).found == "1 of 2 MiB in use"
    assert only(check_huge_pages(tmp_path)).level == "warn"


def test_clocks(tmp_path: Path) -> None:
    write(tmp_path, sys__devices__system__clocksource__clocksource0__current_clocksource="hpet")
    assert only(check_clock(tmp_path)).level == "warn"
    levels = [only(check_synchronization(partial(int, state))).level for state in (0, TIME_ERROR, -1)]
    assert levels == ["ok", "warn", "ok"]
    assert -1 <= read_clock_state() <= TIME_ERROR


def test_the_container_engine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert only(check_container(tmp_path)).found == "none"
    (tmp_path / ".dockerenv").touch()
    write_group(tmp_path, "cgroup.controllers", "cpu memory")
    assert only(check_container(tmp_path)).found == "Docker, cgroup v2"
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    assert only(check_container(tmp_path)).found == "Kubernetes, cgroup v2"


@pytest.mark.parametrize(
    ("days", "level", "word"), [(-31, "ok", "expires"), (-29, "warn", "expires"), (1, "warn", "expired")]
)
def test_certificates_that_expire_are_named_with_their_dates(tmp_path: Path, days: int, level: str, word: str) -> None:
    authority = Authority(tmp_path, "authority", days=20_000)  # after 2049: a year of four digits
    pair = authority.sign("server")
    (expiry,) = read_expiries(pair.certificate.read_text())
    settings = TlsSettings(str(pair.certificate), str(pair.key), str(authority.pair.certificate))
    served, clients = check_certificates(settings, expiry + timedelta(days=days))
    assert (served.level, clients.level) == (level, "ok")
    assert served.found == f"{pair.certificate}: {word} on {expiry:%Y-%m-%d %H:%M} UTC"
    assert timedelta(hours=23) < expiry - datetime.now(UTC) <= timedelta(days=1)
    # an intermediate certificate of the chain counts too
    pair.certificate.write_text(authority.pair.certificate.read_text() + pair.certificate.read_text())
    assert min(read_expiries(pair.certificate.read_text())) == expiry


def test_a_certificate_without_its_key_is_a_failure(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "authority")
    settings = TlsSettings(str(authority.pair.certificate), str(authority.sign("other").key))
    assert only(check_certificates(settings)).level == "fail"
    assert only(check_certificates(TlsSettings())).level == "ok"


def test_every_warning_says_what_to_do(tmp_path: Path) -> None:
    findings = run_checks(64, tmp_path)
    subjects = {finding.subject for finding in findings}
    assert subjects >= {
        "cores", "EXEC lanes", "CPU quota", "CPU governor", "steal", "real-time priority", "load", "memory", "swap",
        "open files", "clock source", "time server", "port 8000", "GPUs", "packages", "system",
    }  # fmt: skip
    assert all(finding.hint for finding in findings if finding.level != "ok" and finding.subject != "check")
