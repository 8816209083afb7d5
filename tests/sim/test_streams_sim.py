"""Streams in the simulator: beside other requests, cancelled, and with workers, selector and controller that die."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.pipeline_folders import write_pipelines
from horologe_common.clock import ms, s
from horologe_common.status import Status
from horologe_sim.engine.simulated_faults import Fault
from horologe_sim.engine.simulated_readers import SimulatedReaders
from horologe_sim.replay import replay_recording
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase
from sim.sim_builders import a_scenario, an_entry, kill, poisson, recorded, stall

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ITEMS = 12
TEXT = ModelEntry("text", {1: 5.0, 2: 15.0}, items=ITEMS, first_item_ns=ms(500), gap_ns=ms(300))
UNARY = ModelEntry("unary", {1: 5.0}, slo_ns=ms(100))


def prepare(readers: int, cancel_after: int = 0, **fields: Any) -> tuple[SimulatedCluster, list[SimulatedReaders]]:
    """Return two workers, and readers that will be made for two seconds."""
    cluster = SimulatedCluster(Scenario((UNARY, TEXT), duration_ns=s(2), workers=2, **fields))
    made: list[SimulatedReaders] = []

    def make(process: Any) -> Sequence[Any]:
        spec = cluster.signatures["text"]
        made.append(SimulatedReaders("client/0000000a", spec, readers, s(1), cluster.end_ns, cancel_after))
        return made

    cluster.world.add("readers", make)
    return cluster, made


def run(readers: int, cancel_after: int = 0, **fields: Any) -> tuple[SimulatedCluster, SimulatedReaders]:
    """Run readers on two workers for two seconds, and check that nothing is left open."""
    cluster, made = prepare(readers, cancel_after, **fields)
    cluster.run()
    cluster.world.run(cluster.world.now_ns + s(3))
    cluster.world.check()
    for name in ("frontend", "controller"):
        assert cluster.world.core(f"{name}/0").pending() == 0  # type: ignore[attr-defined]
    assert len(cluster.world.core("selector/0").streams) == 0  # type: ignore[attr-defined]
    assert not any(device.streams for device in cluster.devices.values() if device.process.alive)
    assert not any(meter.violations for meter in cluster.meters.values())
    return cluster, made[0]


def test_streams_and_requests_share_devices() -> None:
    load = (LoadPhase(rate=200, models=("unary",)),)
    cluster, readers = run(8, load=load)
    assert cluster.tally.count("OK") == cluster.tally.sent_total > 300
    assert set(readers.ends) <= {Status.OK, Status.REFUSED}  # the first ones come before their model is known
    assert len(readers.gaps_ns) == (ITEMS - 1) * readers.ends[Status.OK] > 100
    assert max(readers.gaps_ns) <= ms(300)


def test_cancelled_streams_leave_nothing_open() -> None:
    _, readers = run(10, cancel_after=3)
    assert readers.cancelled > 100


@pytest.mark.parametrize("victim", ["worker/0", "edge"])
def test_a_process_that_dies_ends_its_streams_once(victim: str) -> None:
    _, readers = run(6, faults=(Fault(ms(700), victim, restart_ns=ms(200)),))
    assert not readers.open
    assert readers.ends[Status.LOST] >= 1
    assert readers.ends[Status.OK] > 10


@pytest.mark.parametrize("messages", [500, 20_000])
def test_every_core_does_again_what_it_did_with_streams(tmp_path: Path, messages: int) -> None:
    cluster, _ = prepare(8, load=(LoadPhase(rate=200, models=("unary",)),))
    report = replay_recording(recorded(tmp_path, cluster, messages))
    assert report.identical, report.table()


def test_streams_of_a_pipeline_are_never_unknown_while_its_selector_restarts(tmp_path: Path) -> None:
    driver = """
        async def run(call, inputs):
            for _ in range(4):
                yield await call("m", inputs)
        """
    folder = write_pipelines(tmp_path / "pipelines", {"p": driver}, "400ms")
    table = tmp_path / "pipelines" / "pipeline.toml"
    table.write_text(f'{table.read_text()}stream = {{ first_item = "200ms", gap = "100ms" }}\n')
    faults = (kill("selector", 300, 20), stall("selector", 321, 60), kill("selector", 700, 100))
    scenario = a_scenario(an_entry(), pipelines=folder, split=True, faults=faults, load=(poisson(10, models=("m",)),))
    (definition,) = scenario.pipeline_definitions()
    cluster = SimulatedCluster(scenario)
    readers = SimulatedReaders("client/0000000a", definition.spec, 6, cluster.begin_ns, cluster.end_ns)
    cluster.world.add("readers", lambda process: [readers])
    cluster.run()
    cluster.world.run(cluster.world.now_ns + s(1))
    assert not readers.open
    assert readers.ends[Status.OK] > 100
    assert set(readers.ends) <= {Status.OK, Status.LOST, Status.LATE, Status.REFUSED}
