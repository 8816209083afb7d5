"""One stall is not a model's time: after a stall, a model is served at once. A model that became slow is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from horologe_common.clock import ms, s
from horologe_controller.settings import ControllerSettings
from horologe_sim.engine.simulated_faults import Fault
from horologe_sim.scenario.workload import LoadPhase
from sim.sim_builders import a_scenario, an_entry, played, stall

if TYPE_CHECKING:
    from collections import Counter

    from horologe_sim.scenario.scenario import ModelEntry

STALL_MS, BACK_MS = 800, 200
EXEC_MS = {1: 20.0, 2: 30.0}


def statuses_after(
    end_ms: float, *faults: Fault, model: ModelEntry | None = None, rate: float = 5, slo_ms: float = 300, **fields: Any
) -> Counter[str]:
    """Return the statuses of the requests for `m` that are sent from `BACK_MS` after `end_ms` on, for two seconds."""
    until_ns = ms(end_ms + BACK_MS)
    even = LoadPhase("even", rate=rate, models=("m",), slo_ns=ms(slo_ms))
    before = LoadPhase("even", rate=rate, models=("m",), slo_ns=s(3), for_ns=until_ns)
    phases = [
        before,
        LoadPhase("even", rate=25, models=even.models, slo_ns=even.slo_ns, from_ns=until_ns, client="after"),
    ]
    house = played(
        a_scenario(model or an_entry("m", EXEC_MS), load=phases, faults=faults, duration_ns=until_ns + s(2), **fields)
    )
    return house.tally.clients["after"].statuses


@pytest.mark.parametrize("at_ms", [605, 615, 650])
def test_a_stall_during_an_exec(at_ms: float) -> None:
    assert set(statuses_after(at_ms + STALL_MS, stall("worker/0", at_ms, STALL_MS))) == {"OK"}


def test_a_short_stall_that_no_ping_has_met() -> None:
    assert set(statuses_after(730, stall("worker/0", 610, 120))) == {"OK"}


def test_a_stall_during_a_load() -> None:
    """The first request comes at 0 and has the model loaded, which is lost with the worker at 1.5 s."""
    model = an_entry("m", EXEC_MS, load_ms=50)
    faults = stall("worker/0", 20, STALL_MS), Fault(ms(1500), "worker/0", restart_ns=ms(100))
    assert statuses_after(1600, *faults, model=model, controller=ControllerSettings(preload=False))["REFUSED"] == 0


def test_a_stall_during_an_input() -> None:
    model = an_entry("m", EXEC_MS, input_ms=10.0, output_ms=5.0)
    for at_ms in (602, 633):
        assert set(statuses_after(at_ms + STALL_MS, stall("worker/0", at_ms, STALL_MS), model=model)) == {"OK"}


def test_two_stalls_within_ten_measurements() -> None:
    faults = stall("worker/0", 610, STALL_MS), stall("worker/0", 1810, STALL_MS)
    assert set(statuses_after(1810 + STALL_MS, *faults)) == {"OK"}


def test_a_stall_of_the_controller() -> None:
    assert set(statuses_after(610 + STALL_MS, stall("controller", 610, STALL_MS), split=True)) == {"OK"}


def test_a_model_that_has_become_slow_is_learned_from_its_second_batch() -> None:
    """From 600 ms on the device takes 240 ms, which is more than the SLO: some six requests wait behind each batch."""
    slow = Fault(ms(600), "worker/0", "slow", factor=12.0)
    after = statuses_after(600, slow, slo_ms=200)
    assert after["LATE"] <= 12
    assert after["LATE"] + after["REFUSED"] == 50
