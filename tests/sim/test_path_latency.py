"""Admission knows the latency of the whole path: services that are far apart refuse what they cannot answer in time."""

from __future__ import annotations

import pytest

from horologe_common.clock import ms, s
from horologe_sim.engine.network import NetworkSettings
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase

RATE = 280
SEGMENT_NS = ms(20)
TIMES = {1: 1.0, 2: 1.4, 4: 2.0, 8: 3.5, 16: 6.0}


def outcomes(slo_ns: int, slow_links: tuple[tuple[str, str], ...] = ()) -> dict[str, float]:
    """Return the shares of requests by status. All links between services, or only `slow_links`, take 20 ms."""
    everywhere = 0 if slow_links else SEGMENT_NS
    scenario = Scenario(
        models=(ModelEntry("m", TIMES, slo_ns=slo_ns),),
        load=(LoadPhase(rate=RATE),),
        duration_ns=s(5),
        warmup_ns=s(3),
        network=NetworkSettings(split=True, delay_ns=everywhere),
    )
    cluster = SimulatedCluster(scenario)
    network = cluster.world.network
    for near, far in slow_links or (("client", "frontend"),):
        delay_ns = SEGMENT_NS if slow_links else 0
        network.delays_ns |= {(near, far): delay_ns, (far, near): delay_ns}
    cluster.run()
    total = cluster.report().total
    return {name: getattr(total, name) / total.sent for name in ("ok", "refused", "late")}


@pytest.mark.parametrize("slo_ns", [ms(40), ms(60), ms(70)])
def test_a_deadline_that_the_path_alone_exceeds_is_refused(slo_ns: int) -> None:
    """Submit, Dispatch, Ship and Outputs take 20 ms each."""
    assert outcomes(slo_ns) == {"ok": 0, "refused": 1, "late": 0}


def test_near_the_length_of_the_path_requests_are_refused_rather_than_late() -> None:
    shares = outcomes(ms(90))
    assert shares["late"] < shares["ok"] / 5
    assert outcomes(ms(100))["late"] < 0.01


def test_a_deadline_beyond_the_path_is_met() -> None:
    shares = outcomes(ms(150))
    assert shares["ok"] > 0.99
    assert shares["late"] == 0


@pytest.mark.parametrize("link", [("frontend", "controller"), ("worker/0", "frontend"), ("worker/0", "controller")])
def test_each_link_of_the_path_counts(link: tuple[str, str]) -> None:
    assert outcomes(ms(30), (link,))["late"] < 0.01
    assert outcomes(ms(120), (link,))["ok"] > 0.99
