"""Overload: turns of the edge that take time, stalls, and execution times that vary."""

from __future__ import annotations

import pytest

from horologe_common.clock import ms, s, us
from horologe_sim.engine.noise import Noise
from horologe_sim.scenario.workload import LoadPhase
from sim.sim_builders import a_scenario, an_entry, played, poisson, stall, with_network

EXEC_MS = {1: 0.012, 2: 0.013, 4: 0.015, 8: 0.018, 16: 0.025}


def test_256_in_flight_are_served_in_full_batches() -> None:
    """A turn with 256 requests takes 18 of their 25 ms. With 32 of them served in each turn, most would be refused."""
    scenario = a_scenario(
        an_entry(exec_ms=EXEC_MS, slo_ns=ms(25)), load=[LoadPhase("closed", clients=256)], duration_ns=s(1) // 2
    )
    total = played(with_network(scenario, message_ns=us(17), turn_ns=us(30))).report().total
    assert total.ok >= 0.95 * total.sent


def test_after_a_stall_of_the_edge_nothing_is_refused() -> None:
    """The requests of the stall are late; those that come afterwards are served as before."""
    scenario = a_scenario(
        an_entry(exec_ms=EXEC_MS, slo_ns=ms(25)),
        load=[LoadPhase("closed", clients=64)],
        duration_ns=s(1),
        faults=(stall("edge", 400, 90),),
    )
    total = played(with_network(scenario, message_ns=us(17), turn_ns=us(30))).report().total
    assert total.sent - total.ok <= 2 * 64
    assert total.refused <= 64


@pytest.mark.parametrize("over", [1.2, 3.0])
def test_beyond_the_capacity_a_model_with_varying_times_is_served_as_at_it(over: float) -> None:
    """Requests that are in time only if their batch is fast would fill the queue, and leave only small batches."""
    exec_ms = {1: 3.2, 2: 5.8, 4: 10.6, 8: 19.8, 16: 38.5}
    capacity = 2 * 16_000 / exec_ms[16]
    scenario = a_scenario(
        an_entry(exec_ms=exec_ms, slo_ns=ms(100)),
        load=[poisson(over * capacity)],
        noise=Noise(sigma=0.1),
        path="direct",
        workers=2,
        warmup_ns=s(1),
        duration_ns=s(3),
    )
    total = played(scenario).report().total
    assert total.ok >= 0.94 * 2 * capacity
    assert total.sent - total.ok - total.refused <= 0.03 * total.sent
