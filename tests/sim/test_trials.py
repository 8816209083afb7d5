"""Models that are refused by estimates which nothing would correct, for what is refused is not measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from horologe_common.clock import ms, s
from horologe_sim.engine.noise import Noise
from horologe_sim.engine.simulated_faults import Fault
from sim.sim_builders import a_scenario, an_entry, assert_at_rest, played, poisson

if TYPE_CHECKING:
    from horologe_sim.scenario.scenario import Scenario
    from horologe_sim.scenario.simulated_cluster import SimulatedCluster

EXEC_MS = {1: 5.0, 2: 7.0, 4: 11.0, 8: 19.0}


def part(house: SimulatedCluster, status: str, model: str = "m") -> float:
    """Return the share of a model's requests that ended with the status."""
    ended = next(line.statuses for name, line in house.tally.counts.items() if name.startswith(model))
    return ended[status] / sum(ended.values())


def with_a_tail(share: float, rate: float) -> Scenario:
    """Return a scenario in which a `share` of EXECs takes 80 ms more than the usual 5 ms; the SLO is 50 ms."""
    return a_scenario(an_entry("m", EXEC_MS, noise=Noise(0.02, share, ms(80))), load=[poisson(rate)], duration_ns=s(20))


@pytest.mark.parametrize("scheduler", ["horologe", "clockwork", "edf"])
def test_a_model_with_a_heavy_tail_is_served_again_soon(scheduler: str) -> None:
    scenario = with_a_tail(0.1, 20)
    house = played(a_scenario(*scenario.models, load=scenario.load, duration_ns=s(20), scheduler=scheduler))
    assert part(house, "OK") > 0.4
    assert part(house, "LATE") < 0.15, "the slow ones, and few behind them"
    assert_at_rest(house)


def test_one_that_is_always_slow_is_refused_all_but_always() -> None:
    house = played(with_a_tail(1.0, 60))
    assert part(house, "LATE") < 0.01
    assert part(house, "REFUSED") > 0.99


@pytest.mark.parametrize("rate", [0.5, 20])
def test_a_profile_that_is_three_times_too_long_refuses_no_tight_slo_for_ever(rate: float) -> None:
    """The device takes 3 ms where the profile says 10: at a request every two seconds, each finds no measurement."""
    scenario = a_scenario(
        an_entry("m", {1: 10.0, 2: 14.0, 4: 22.0, 8: 38.0}, slo_ns=ms(8)),
        load=[poisson(rate)],
        duration_ns=s(30),
        faults=(Fault(0, "worker/0", "slow", factor=0.3),),
    )
    house = played(scenario)
    assert part(house, "OK") > 0.8
    assert part(house, "LATE") == 0


def test_a_profile_that_is_right_is_doubted_rarely_and_at_nobodys_expense() -> None:
    scenario = a_scenario(
        an_entry("m", {1: 10.0, 2: 14.0}, slo_ns=ms(8)),
        an_entry("n", slo_ns=ms(20)),
        load=[poisson(100, models=("m",)), poisson(100, models=("n",))],
        duration_ns=s(30),
    )
    house = played(scenario)
    assert part(house, "REFUSED") > 0.995
    assert part(house, "OK", "n") > 0.999
