"""Contract of every scheduler, and of the example in CONTRIBUTING.md, through the controller in a simulated cluster."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from controller.every_scheduler import contributing_example, everyone, names
from horologe_common.clock import ms, s
from horologe_common.core.protocol import Out
from horologe_common.models import PAGE_BYTES
from horologe_common.wire import Infer, Load, Outcome, Result, Submit, Unload
from horologe_sim.engine.noise import Noise
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase as Phase
from sim.sim_builders import a_scenario, an_entry, assert_at_rest, assert_mirror, played, poisson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer, Core
    from horologe_sim.scenario.scenario import Scenario

EXEC = {size: ms(2 + 0.5 * (size - 1)) for size in (1, 2, 4, 8, 16)}  # a_profile's

__all__ = ["contributing_example"]


class Witness:
    """Observes the controller and the workers of a world, and records their messages in order."""

    def __init__(self, house: SimulatedCluster) -> None:
        self.house = house
        self.actions: dict[int, tuple[int, Infer | Load]] = {}
        self.results: list[tuple[int, Result]] = []
        self.said: list[tuple[int, Out]] = []
        self.submits: dict[int, tuple[int, Submit]] = {}
        house.world.observer = self

    def observe_message(self, now_ns: int, core: Core, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        if core.address.startswith("controller/"):
            if isinstance(message, Result):
                self.results.append((now_ns, message))
            elif isinstance(message, Submit):
                self.submits.setdefault(message.id, (now_ns, message))

    def observe_tick(self, now_ns: int, core: Core, outs: Sequence[Out]) -> None:
        if core.address.startswith("controller/"):
            for out in outs:
                self.said.append((now_ns, out))
                if isinstance(out.message, Infer | Load):
                    self.actions[out.message.action_id] = (now_ns, out.message)

    def observe_call(self, *_: Any) -> None: ...

    def observe_fault(self, now_ns: int, core: Core) -> None: ...


@cache
def watched(name: str, noise: Noise | None = None) -> tuple[SimulatedCluster, Witness]:
    """Run `a_busy_one` once for all tests of a scheduler."""
    house = SimulatedCluster(a_busy_one(name, noise=noise))
    witness = Witness(house)
    house.run()
    house.world.check()
    return house, witness


def a_busy_one(name: str, path: str = "direct", noise: Noise | None = None) -> Scenario:
    """Return bursts of overload on two workers, with more models than pages and some best-effort requests."""
    entries = [
        an_entry("m", count=5, weights_mb=160.0, slo_ns=ms(60)),
        an_entry("slow", {1: 6.0, 4: 15.0}, slo_ns=ms(150)),
    ]
    load = [
        poisson(500, models=("m-*",), skew=1.2),
        poisson(60, models=("slow",), rows=2),
        Phase("bursts", rate=50, burst_rate=2500, every_ns=ms(400), burst_ns=ms(60), models=("m-0", "m-1")),
    ]
    if path == "direct":
        load.append(poisson(30, best_effort=True, models=("m-2",)))
    scenario = a_scenario(
        *entries, load=load, scheduler=name, path=path, workers=2, duration_ns=s(1), noise=noise or Noise()
    )
    worker = msgspec.structs.replace(scenario.worker, pages_bytes=34 * PAGE_BYTES)
    return msgspec.structs.replace(scenario, worker=worker)


@everyone
@pytest.mark.parametrize("noise", [Noise(), Noise(0.15, 0.01, ms(25))])
def test_the_world_holds_together(name: str, noise: Noise) -> None:
    """Every request gets its own answer once, no EXEC runs without its model, and pages match the mirror."""
    house = played(a_busy_one(name, noise=noise))
    assert house.report().total.ok > 100
    assert sum(row.unloads for row in house.report().workers.values()) > 0
    assert_at_rest(house)
    assert_mirror(house)


@everyone
def test_no_action_starts_outside_its_window(name: str) -> None:
    _, witness = watched(name, Noise(0.2, 0.02, ms(20)))
    begun = 0
    for _, result in witness.results:
        if result.action_id in witness.actions and result.status == 0:
            action = witness.actions[result.action_id][1]
            assert action.earliest_ns <= result.begin_ns <= action.latest_ns
            begun += 1
    assert begun > 100


@everyone
def test_infer_only_after_its_load_and_before_its_unload(name: str) -> None:
    _, witness = watched(name)
    resident: dict[tuple[str, str], bool] = {}
    loads = {number: action for number, (_, action) in witness.actions.items() if isinstance(action, Load)}
    events: list[tuple[int, int, Any]] = [(now_ns, 1, out) for now_ns, out in witness.said]
    events += [(now_ns, 0, result) for now_ns, result in witness.results]
    worker_of = {out.message.action_id: out.to for _, out in witness.said if isinstance(out.message, Load)}
    for _, _, event in sorted(events, key=lambda one: one[:2]):
        if isinstance(event, Result):
            if event.action_id in loads and event.status == 0:
                resident[worker_of[event.action_id], loads[event.action_id].model] = True
        elif isinstance(event.message, Unload):
            assert resident.pop((event.to, event.message.model))
        elif isinstance(event.message, Infer):
            assert resident.get((event.to, event.message.model)), event.message


@names
def test_under_its_own_estimates_nobody_in_a_batch_is_late(name: str) -> None:
    """With durations exactly as profiled, every admitted request is in time, and no window is too late.

    The default's windows are open while one request of the batch can be in time, the others' while all can.
    """
    decides = max if name == "horologe" else min
    house, witness = watched(name)
    total = house.report().total
    assert total.late == total.lost == total.failed == 0
    margin_ns = house.scenario.controller.margin_ns
    for now_ns, action in witness.actions.values():
        if isinstance(action, Infer):
            submits = [witness.submits[row.submit_id] for row in action.rows]
            ends_ns = [arrival_ns + submit.budget_ns - margin_ns for arrival_ns, submit in submits]
            assert now_ns + action.expected_ns <= min(ends_ns)
            assert action.latest_ns + action.expected_ns <= decides(ends_ns)


@names
def test_each_request_is_planned_once_or_refused_before_any_work(name: str) -> None:
    _, witness = watched(name)
    planned = [
        row.submit_id for _, action in witness.actions.values() if isinstance(action, Infer) for row in action.rows
    ]
    refused = [out.message.id for _, out in witness.said if isinstance(out.message, Outcome)]
    assert len(planned) == len(set(planned))
    assert not set(planned) & set(refused)
    assert set(planned) | set(refused) == set(witness.submits)
    assert refused


@names
def test_a_refusal_comes_no_later_than_when_batch_one_cannot_finish(name: str) -> None:
    house, witness = watched(name)
    specs = {model.report.spec.key: model.report for model in house.models.values()}
    slack_ns = house.scenario.network.turn_ns + 1000
    for now_ns, out in witness.said:
        if isinstance(out.message, Outcome):
            arrival_ns, submit = witness.submits[out.message.id]
            report = specs[submit.model]
            assert report.profile is not None
            shortest_ns = report.profile.exec_ns[report.spec.compiled_batch_size(submit.rows)]
            latest_ns = arrival_ns + submit.budget_ns - shortest_ns
            assert now_ns <= max(arrival_ns, latest_ns) + slack_ns
            assert out.message.reason


@everyone
def test_deadlines_go_first_and_best_effort_is_not_forgotten(name: str) -> None:
    load = [poisson(300), poisson(100, best_effort=True)]
    house = played(a_scenario(load=load, scheduler=name, path="direct"))
    total = house.report().total
    assert total.refused + total.late + total.lost < 0.02 * total.sent
    assert total.ok + total.refused == total.sent
