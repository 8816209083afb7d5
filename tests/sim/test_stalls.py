"""Processes that stand still and go on: their requests are OK, LATE or REFUSED. LOST means that a process died."""

from __future__ import annotations

import pytest

from horologe_common.clock import ms, s
from sim.sim_builders import a_scenario, an_entry, assert_at_rest, played, poisson, stall


@pytest.mark.parametrize(
    ("victim", "for_ms"),
    [("worker/0", 120), ("worker/0", 900), ("edge", 180), ("frontend", 180), ("selector", 900), ("controller", 900)],
)
@pytest.mark.parametrize("slo_ms", [50, 1000])
def test_a_process_that_stalls_loses_no_request(victim: str, for_ms: int, slo_ms: int) -> None:
    scenario = a_scenario(
        an_entry(slo_ns=ms(slo_ms)),
        workers=2,
        load=[poisson(300)],
        split=victim in ("frontend", "selector", "controller"),
        faults=(stall(victim, 300, for_ms),),
        duration_ns=s(2),
    )
    house = played(scenario)
    assert_at_rest(house)
    (line,) = house.tally.counts.values()
    assert line.statuses["LOST"] == 0, line.statuses
    assert line.statuses["OK"] > 200, line.statuses
