"""The layout of a machine: which processes run on which CPUs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from horologe_cli.local import machine as machine_module
from horologe_cli.local.layout import Gpu, Layout, Machine, Wanted, describe_cpus, plan_layout
from horologe_cli.local.machine import parse_cpus, read_machine
from horologe_common.service.settings import SettingsError

if TYPE_CHECKING:
    from pathlib import Path


def machine(*nodes: int, threads: int = 1, gpus: tuple[Gpu, ...] = (), quota: int = 0) -> Machine:
    """Return a machine with so many cores in each node, numbered in order."""
    first = 0
    built = []
    for count in nodes:
        built.append(tuple(tuple(range(cpu, cpu + threads)) for cpu in range(first, first + count * threads, threads)))
        first += count * threads
    return Machine(tuple(built), gpus, quota)


def names(layout: Layout) -> list[str]:
    return [placement.name for placement in layout.services]


@pytest.mark.parametrize(
    ("cores", "services", "workers", "shared"),
    [
        (1, ["edge"], 1, ""),
        (2, ["edge"], 1, ""),
        (4, ["edge"], 3, ""),
        (8, ["edge"], 6, "0-1"),
        (16, ["frontend-0", "frontend-1", "selector", "controller"], 10, "0-5"),
        (64, [*(f"frontend-{number}" for number in range(4)), "selector", "controller"], 50, "0-13"),
    ],
)
def test_more_cores_run_more_workers_and_frontends(cores: int, services: list[str], workers: int, shared: str) -> None:
    layout = plan_layout(machine(cores), Wanted())
    assert names(layout) == services
    assert len(layout.workers) == workers
    assert describe_cpus(layout.background_cpus) == shared
    assert all(describe_cpus(placement.cpus) == shared for placement in layout.services)
    lanes = [cpu for worker in layout.workers for cpu in worker.exec_cpus]
    assert lanes == ([] if not shared else list(range(cores - workers, cores)))
    assert all({*worker.cpus} == {*layout.background_cpus, *worker.exec_cpus} for worker in layout.workers)


def test_workers_stay_in_one_node_and_services_in_the_first() -> None:
    layout = plan_layout(machine(32, 32), Wanted())
    first, second = set(range(32)), set(range(32, 64))
    assert all({*placement.cpus} <= first for placement in layout.services)
    assert all({*worker.cpus} <= first or {*worker.cpus} <= second for worker in layout.workers)
    assert sum({*worker.cpus} <= second for worker in layout.workers) == 28
    assert len({cpu for worker in layout.workers for cpu in worker.exec_cpus}) == len(layout.workers) == 50


def test_fewer_workers_have_more_cores_each() -> None:
    layout = plan_layout(machine(16), Wanted(workers=2))
    assert [describe_cpus(worker.cpus) for worker in layout.workers] == ["0-10", "0-5,11-15"]
    assert [worker.exec_cpus for worker in layout.workers] == [(10, 9, 8, 7, 6), (15, 14, 13, 12, 11)]


def test_a_lane_has_a_core_with_both_threads() -> None:
    layout = plan_layout(machine(8, threads=2), Wanted())
    assert [worker.exec_cpus for worker in layout.workers] == [(cpu,) for cpu in range(4, 16, 2)]
    assert {5, 4} <= {*layout.workers[0].cpus}


def test_each_gpu_has_a_worker_in_its_node() -> None:
    gpus = tuple(Gpu(number, number // 2) for number in range(4))
    layout = plan_layout(machine(16, 16, gpus=gpus), Wanted())
    assert [worker.gpu for worker in layout.workers] == [0, 1, 2, 3]
    assert [worker.exec_cpus[0] >= 16 for worker in layout.workers] == [False, False, True, True]
    assert [worker.gpu for worker in plan_layout(machine(2, gpus=gpus[:1]), Wanted(workers=2)).workers] == [0, None]


def test_settings_win() -> None:
    assert names(plan_layout(machine(16), Wanted(split=False))) == ["edge"]
    assert names(plan_layout(machine(2), Wanted(split=True))) == ["frontend", "selector", "controller"]
    assert names(plan_layout(machine(2), Wanted(frontends=2)))[:2] == ["frontend-0", "frontend-1"]
    assert not any(worker.cpus for worker in plan_layout(machine(16), Wanted(pin=False)).workers)
    crowded = plan_layout(machine(8), Wanted(workers=8))
    assert not any(placement.cpus for placement in (*crowded.services, *crowded.workers))
    with pytest.raises(SettingsError, match="--frontends: got 2 with --no-split, wanted 1"):
        plan_layout(machine(16), Wanted(frontends=2, split=False))


def test_a_quota_counts_as_so_many_cores_and_pins_nothing() -> None:
    layout = plan_layout(machine(64, quota=2), Wanted())
    assert (names(layout), len(layout.workers), layout.background_cpus) == (["edge"], 1, ())


def test_the_machine_is_read_from_sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(7)))
    monkeypatch.setattr(machine_module, "has_cuda_runtime", lambda: False)
    files = {"node/node0/cpulist": "0-1,4-5", "node/node1/cpulist": "2-3,6-7"}
    files |= {f"cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 4},{cpu % 4 + 4}" for cpu in range(8)}
    for name, text in files.items():
        path = tmp_path / "sys/devices/system" / name
        path.parent.mkdir(parents=True)
        path.write_text(text + "\n")
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("150000 100000")
    assert read_machine(tmp_path) == Machine((((0, 4), (1, 5)), ((2, 6), (3,))), (), 2)
    assert read_machine(tmp_path / "empty").nodes == (tuple((cpu,) for cpu in range(7)),)
    assert describe_cpus(parse_cpus("0-1,4")) == "0-1,4"
