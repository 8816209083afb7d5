"""Builds and runs scenarios for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import ms, s
from horologe_common.recording.recorder import Recorder, RecorderSettings
from horologe_controller.settings import ControllerSettings
from horologe_sim.engine.network import NetworkSettings
from horologe_sim.engine.simulated_faults import Fault
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase

if TYPE_CHECKING:
    from pathlib import Path

if TYPE_CHECKING:
    pass


def an_entry(name: str = "m", exec_ms: Any = None, **fields: Any) -> ModelEntry:
    """Return a model that returns its inputs, so that swapped answers are detected."""
    facts = {"load_ms": 4.0, "slo_ns": ms(50), "echo": True} | fields
    return ModelEntry(name, exec_ms or {1: 2.0, 2: 3.0, 4: 5.0, 8: 9.0}, **facts)


def poisson(rate: float, **fields: Any) -> LoadPhase:
    return LoadPhase("poisson", rate=rate, **fields)


def a_scenario(
    *models: ModelEntry, load: Any = (), scheduler: str = "horologe", split: bool = False, **fields: Any
) -> Scenario:
    """Return a scenario. Default: two seconds with 200 requests per second."""
    facts: dict[str, Any] = {
        "duration_ns": s(2),
        "settle_ns": ms(200),
        "network": NetworkSettings(split=split),
        "controller": ControllerSettings(scheduler=scheduler),
    }
    return Scenario(models or (an_entry(),), tuple(load) or (poisson(200),), **(facts | fields))


def with_network(scenario: Scenario, **fields: Any) -> Scenario:
    return msgspec.structs.replace(scenario, network=msgspec.structs.replace(scenario.network, **fields))


def recorded_slow_worker(folder: Path, rate: float, at_ms: float, factor: float) -> Path:
    """Return a recording of requests with an SLO of 20 ms, whose only worker is `factor` times as slow from `at_ms`."""
    fault = Fault(ms(at_ms), "worker/0", "slow", factor=factor)
    model = an_entry("m", slo_ns=ms(20))
    scenario = a_scenario(model, load=[poisson(rate)], duration_ns=ms(800), faults=(fault,))
    return recorded(folder, SimulatedCluster(scenario))


def kill(process: str, at_ms: float, restart_ms: float = 200, **fields: Any) -> Fault:
    return Fault(ms(at_ms), process, "kill", ms(restart_ms), **fields)


def stall(process: str, at_ms: float, for_ms: float) -> Fault:
    return Fault(ms(at_ms), process, "stall", for_ns=ms(for_ms))


def cut(process: str, at_ms: float, for_ms: float) -> Fault:
    return Fault(ms(at_ms), process, "cut", for_ns=ms(for_ms))


def played(scenario: Scenario) -> SimulatedCluster:
    """Run the scenario, and check the invariants of every core and of every run."""
    house = SimulatedCluster(scenario)
    house.run()
    house.world.check()
    assert_one_answer_each(house)
    return house


def recorded(
    folder: Path, house: SimulatedCluster, messages: int = 20_000, segments: int = 2, roles: tuple[str, ...] = ()
) -> Path:
    """Run a cluster, and return a recording of its cores."""
    recorder = Recorder(RecorderSettings(str(folder), messages, roles=roles), "sim", segments)
    house.world.observer = recorder
    house.run()
    path = recorder.write("stop")
    assert path is not None
    return path


def assert_one_answer_each(house: SimulatedCluster) -> None:
    """Assert that every request has ended, with its own outputs, no model was unknown, and no device broke a rule."""
    assert house.tally.sent_total == house.tally.ended_total, (
        f"{house.tally.sent_total - house.tally.ended_total} unanswered"
    )
    assert not house.client.open
    assert house.tally.swapped == []
    assert house.tally.count("UNKNOWN_MODEL") == 0
    for meter in house.meters.values():
        assert meter.violations == []


def assert_at_rest(house: SimulatedCluster) -> None:
    """Assert that no core has pending requests, and that the controller's page tables are correct."""
    house.world.run(house.world.now_ns + s(2))
    house.world.check()
    for name, process in house.world.processes.items():
        for core in process.cores.values():
            pending = getattr(core, "pending", None)
            assert not (pending and pending()), f"{name}: {core.address} still has requests"
    assert_mirror(house)


def assert_mirror(house: SimulatedCluster) -> None:
    """Assert that the controller's page tables equal the workers'. No LOAD or UNLOAD may be in flight."""
    controller: Any = house.world.core("controller/0")
    mirrored = {(share.worker, share.number): share for share in controller.cluster.shares()}
    for name in house.meters:
        for worker in house.world.processes[name].cores.values():
            for number, held in enumerate(worker.shares):  # type: ignore[attr-defined]
                share, pages = mirrored[worker.address, number], held.pages
                on_worker = dict(sorted(pages.held.items()))
                mirrored_models = dict(sorted(share.resident.items()))
                assert mirrored_models == on_worker, (
                    f"{worker.address}, share {number}: {mirrored_models} is not {on_worker}"
                )
                assert share.pages_free == pages.free_pages
                assert not share.exec.pending, "a lane waits for an action that has ended"
