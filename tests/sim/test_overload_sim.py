"""Turns of the edge that take time: many clients in flight are served, and a stall is over when it is over."""

from __future__ import annotations

from horologe_common.clock import ms, s, us
from horologe_sim.scenario.workload import LoadPhase
from sim.sim_builders import a_scenario, an_entry, played, stall, with_network

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
