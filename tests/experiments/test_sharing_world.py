"""Shadows in the simulator: the real controller and tuner cores, emulated co-located shares, and a scaler."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from horologe_common.clock import ms, s
from horologe_common.interference.prediction import DEFAULT_INTERFERENCE_MODEL
from horologe_common.interference.v100 import CALIBRATED
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_experiments.igniter.shared_models import EmulatedHardware
from horologe_experiments.igniter.sharing_world import TUNER, SharingWorld
from horologe_planning.plan import Plan
from horologe_planning.provisioning.device_shares import shares_by_device, with_shares
from horologe_planning.provisioning.provisioner import provision
from horologe_planning.provisioning.workloads import GpuType, ProvisioningOptions, Workload
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.controller_only.request_load import Chunk
from horologe_sim.engine.noise import NOISES
from horologe_tuner.core.tuner import Tuner
from horologe_tuner.settings import TunerSettings

V100 = GpuType(*CALIBRATED)
WORKLOADS = [Workload("search", "alexnet", 600.0, 10.0), Workload("photos", "resnet50", 200.0, 30.0)]
SETTING = ClusterSettings(noise=NOISES["none"], grace_ns=s(1))


def make_plans() -> tuple[Plan, ...]:
    """Return plans on one GPU with 5% more for each workload than the least, so that it holds without an error."""
    plans = provision(WORKLOADS, [V100], ProvisioningOptions(free_margin=1.0)).plans
    (shares,) = shares_by_device(plans).values()
    larger = [
        share._replace(placement=msgspec.structs.replace(share.placement, percent=share.placement.percent + 5))
        for share in shares
    ]
    return with_shares(plans, larger)


def requests(seconds: float, workloads: list[Workload]) -> Chunk:
    times = [(0.5 + np.arange(int(seconds * workload.rate))) * 1e9 / workload.rate for workload in workloads]
    owners = np.concatenate([np.full(len(at), number) for number, at in enumerate(times)])
    merged = np.concatenate(times).astype(np.int64)
    order = np.argsort(merged, kind="stable")
    slos = np.array([ms(workload.slo_ms) for workload in workloads])[owners]
    return Chunk(merged[order].tolist(), owners[order].tolist(), slos[order].tolist(), owners[order].tolist())


def a_world(seconds: float, **tuner: Any) -> SharingWorld:
    plans = make_plans()
    by_name = {workload.name: workload for workload in WORKLOADS}
    ordered = [by_name[plan.name] for plan in plans]
    ledger = IntervalLedger([workload.name for workload in ordered], len(ordered), ms(100))
    core = Tuner(TUNER, TunerSettings(scaler="process"), **tuner)
    hardware = EmulatedHardware({"v100": V100}, DEFAULT_INTERFERENCE_MODEL)
    return SharingWorld(SETTING, plans, hardware, ledger, 1, core, [requests(seconds, ordered)])


def slow_down(world: SharingWorld, at_s: float, factor: float, workload: str = "search") -> None:
    """Change the times of a workload."""
    world.schedule(world.begin_ns + s(at_s), lambda now_ns, _: world.set_slowness(workload, factor), None)


def in_time(world: SharingWorld, workload: str, from_s: float, until_s: float) -> float:
    """Return the part of the requests sent in a stretch that were answered within the SLO."""
    group = world.ledger.groups.index(workload)
    lines = [panel.lines[group] for panel in world.ledger.panels[round(10 * from_s) : round(10 * until_s)]]
    return sum(line.ok for line in lines) / max(1, sum(line.sent for line in lines))


def switches(world: SharingWorld) -> list[tuple[float, str]]:
    """Return time in seconds since the start of the load and event of each switch."""
    events = ("switched up", "switched back", "failed over", "moved")
    return [((entry.at_ns - world.begin_ns) / 1e9, entry.event) for entry in world.journal if entry.event in events]


def test_a_plan_that_predicts_well_needs_no_switch() -> None:
    world = a_world(4)
    world.run(s(4))
    world.check()
    assert switches(world) == []
    assert in_time(world, "search", 0, 4) == in_time(world, "photos", 0, 4) == 1.0
    assert not world.open


def test_a_prediction_error_is_repaired_within_one_and_a_half_seconds() -> None:
    world = a_world(5)
    slow_down(world, 1.0, 1.6)
    world.run(s(5))
    world.check()
    ((at_s, event),) = switches(world)
    assert event == "switched up"
    assert at_s <= 2.5
    assert in_time(world, "search", 1.0, at_s) < 0.95
    assert in_time(world, "search", 2.5, 5) >= 0.99
    assert in_time(world, "photos", 0, 5) >= 0.99
    assert not world.open


def test_switches_there_and_back_lose_no_request() -> None:
    world = a_world(18, shadow_calm_ns=s(1))
    for period in range(3):
        slow_down(world, 6 * period + 0.5, 1.6)
        slow_down(world, 6 * period + 2.0, 1.0)
    world.run(s(18))
    world.check()
    assert [event for _, event in switches(world)] == ["switched up", "switched back"] * 3
    assert not world.open
    line = world.ledger.line("search")
    assert line.sent == line.ok + line.late + line.lost + line.refused == 10_800


@pytest.mark.parametrize("victim", ["shadow", "planned"])
def test_a_worker_that_dies_in_the_middle_of_a_switch_loses_no_request(victim: str) -> None:
    world = a_world(6)
    slow_down(world, 1.0, 1.6)

    def kill(now_ns: int, _: object) -> None:
        if not any(event == "switched up" for _, event in switches(world)):
            world.schedule(now_ns + ms(1), kill, None)
            return
        shares = [share.wanted for share in world.running.values() if share.wanted.models == ("search",)]
        chosen = max if victim == "shadow" else min
        world.lose_worker(chosen(shares, key=lambda share: share.percent).worker, restart_ns=s(1))

    world.schedule(world.begin_ns, kill, None)
    world.run(s(6))
    world.check()
    assert not world.open
    line = world.ledger.line("search")
    assert line.sent == line.ok + line.late + line.lost + line.refused
    assert in_time(world, "search", 4.5, 6) >= 0.99
    assert in_time(world, "photos", 0, 6) >= 0.99
