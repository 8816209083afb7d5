"""Processes that stall, lost connections, and inputs that never come. LOST means that a process died."""

from __future__ import annotations

import pytest

from horologe_common.clock import ms, s
from horologe_gpu_worker.settings import WorkerSettings
from sim.sim_builders import a_scenario, an_entry, assert_at_rest, cut, kill, played, poisson, stall


@pytest.mark.parametrize("at_ms", [100, 101, 102, 103, 104, 105])
@pytest.mark.parametrize("for_ms", [0, 30])
def test_a_workers_share_serves_again_whatever_was_lost(at_ms: int, for_ms: int) -> None:
    house = played(a_scenario(load=[poisson(400)], faults=(cut("worker/0", at_ms, for_ms),), duration_ns=ms(500)))
    assert_at_rest(house)
    (line,) = house.tally.counts.values()
    assert line.statuses["OK"] > 150
    assert line.statuses["LOST"] == 0


@pytest.mark.parametrize("at_ms", [100, 110, 120, 130])
def test_pages_are_known_where_loads_and_unloads_were_lost(at_ms: int) -> None:
    scenario = a_scenario(
        an_entry("m", count=6, weights_mb=16.0, slo_ns=ms(100)),
        load=[poisson(300)],
        worker=WorkerSettings(pages_bytes=3 << 24),
        faults=(cut("worker/0", at_ms, 5),),
        duration_ns=ms(500),
    )
    house = played(scenario)
    assert_at_rest(house)
    assert sum(line.statuses["OK"] for line in house.tally.counts.values()) > 20


def test_a_share_is_not_held_for_inputs_whose_holder_died() -> None:
    """The window of a batch is open for as long as its deadlines allow, here 5 s; those of others pass meanwhile."""
    scenario = a_scenario(
        an_entry("patient", slo_ns=s(5)),
        an_entry("urgent", slo_ns=ms(50)),
        load=[poisson(200, models=("patient",)), poisson(200, models=("urgent",))],
        split=True,
        faults=(stall("frontend", 103, 20), kill("frontend", 118, 50)),
        duration_ns=s(4),
    )
    house = played(scenario)
    assert_at_rest(house)
    ended = next(line.statuses for name, line in house.tally.counts.items() if name.startswith("urgent"))
    assert ended["OK"] > 0.85 * sum(ended.values())


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
