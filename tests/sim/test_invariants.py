"""Invariants of every action, for random clusters, loads, faults and schedulers (Clockwork section 5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horologe_common.clock import ms, s
from horologe_common.core.hosting import CoreObserver
from horologe_common.core.protocol import role
from horologe_common.wire import Infer, Load, Register, Result, Unload
from horologe_controller.core.controller import Controller
from horologe_controller.schedulers import SCHEDULERS
from horologe_gpu_worker.core.lanes import Finished
from horologe_sim.engine.noise import Noise
from horologe_sim.engine.simulated_faults import Fault
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from sim.sim_builders import (
    a_scenario,
    an_entry,
    assert_at_rest,
    assert_mirror,
    assert_one_answer_each,
    kill,
    poisson,
    stall,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer, Core, Out
    from horologe_sim.scenario.scenario import Scenario

LATE_ON_PURPOSE = ("clipper", "fifo")
"""They have no windows: what is late is run all the same."""
PROMPT = [name for name in SCHEDULERS if name not in LATE_ON_PURPOSE]
"""Those of the product: tests of experiments register others in this process."""


class Inspector(CoreObserver):
    """Sees every message of the controller and of the workers, and what their lanes have done."""

    def __init__(self) -> None:
        self.windows: dict[tuple[str, int], tuple[int, int]] = {}
        self.running: dict[str, list[tuple[int, int]]] = {}
        self.resident: dict[str, dict[str, bool]] = {}
        self.begun = 0

    def observe_message(self, now_ns: int, core: Core, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        if isinstance(message, Infer | Load) and role(core.address) == "worker":
            self.windows[core.address, message.action_id] = message.earliest_ns, message.latest_ns
        elif isinstance(message, Finished) and message.lane == "exec" and message.end_ns > message.begin_ns:
            earliest_ns, latest_ns = self.windows[core.address, message.action_id]
            assert earliest_ns <= message.begin_ns <= latest_ns, "EXEC outside its window"
            for begin_ns, end_ns in self.running.setdefault(core.address, [])[-3:]:
                assert message.begin_ns >= end_ns or message.end_ns <= begin_ns, "two EXECs at a time"
            self.running[core.address].append((message.begin_ns, message.end_ns))
            self.begun += 1
        elif isinstance(core, Controller):
            self._told(core, sender, message)

    def _told(self, controller: Controller, sender: str, message: Any) -> None:
        if isinstance(message, Register):
            self.resident[sender] = dict.fromkeys(message.shares[0].resident, True)
        elif isinstance(message, Result):
            share = controller.cluster.workers[sender].shares[0] if sender in controller.cluster.workers else None
            action = share and share.load.pending.get(message.action_id)
            if action and not message.status:
                self.resident[sender][action.model] = True

    def observe_tick(self, now_ns: int, core: Core, outs: Sequence[Out]) -> None:
        if not isinstance(core, Controller):
            return
        for out in outs:
            if isinstance(out.message, Unload):
                self.resident[out.to].pop(out.message.model)
            elif isinstance(out.message, Infer):
                assert out.message.model in self.resident[out.to], "INFER for a model that is not resident"
                self._in_time(now_ns, core, out.to, out.message)

    def _in_time(self, now_ns: int, controller: Controller, worker: str, infer: Infer) -> None:
        """Under the estimates used, every request of the batch can make its deadline, and the batch holds its rows."""
        action = controller.cluster.workers[worker].shares[0].exec.pending[infer.action_id]
        assert sum(row.rows for row in infer.rows) <= infer.batch_size
        assert [row.submit_id for row in infer.rows] == [request.submit_id for request in action.requests]
        exec_ns = action.expected_ns
        if controller.settings.scheduler == "horologe":  # its requests need only be in time by the median
            exec_ns = action.share.estimates[action.model].typical(now_ns, infer.batch_size)
        for request in action.requests:
            assert action.start_ns >= now_ns
            assert request.best_effort or action.start_ns + exec_ns <= request.deadline_ns

    def observe_fault(self, now_ns: int, core: Core) -> None:
        raise AssertionError(f"{core.address} raised")


faults = st.lists(
    st.one_of(
        st.builds(
            lambda process, at, back, void: kill(process, at, back, void=void),
            st.sampled_from(("worker/0", "worker/1", "worker/2")),
            st.integers(1, 400),
            st.integers(1, 250),
            st.booleans(),
        ),
        st.builds(stall, st.sampled_from(("worker/0", "worker/1", "edge")), st.integers(1, 400), st.integers(1, 150)),
    ),
    max_size=3,
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    workers = draw(st.integers(1, 3))
    entries = [
        an_entry(
            f"m{number}",
            draw(st.sampled_from([{1: 2.0, 2: 3.0, 4: 5.0, 8: 9.0}, {1: 6.0, 4: 15.0}, {2: 3.0}])),
            count=draw(st.integers(1, 4)),
            weights_mb=draw(st.sampled_from([16.0, 60.0, 300.0])),
            slo_ns=ms(draw(st.sampled_from([8, 30, 120]))),
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    load = [poisson(draw(st.sampled_from([50, 400, 1500])), rows=draw(st.integers(1, 2)))]
    if draw(st.booleans()):
        load.append(poisson(60, best_effort=True))
    scenario = a_scenario(
        *entries,
        load=load,
        scheduler=draw(st.sampled_from(PROMPT)),
        workers=workers,
        path="direct",
        duration_ns=ms(500),
        seed=draw(st.integers(0, 1000)),
        noise=draw(st.sampled_from([Noise(), Noise(0.2), Noise(0.05, 0.02, ms(30))])),
    )
    there = [f"worker/{number}" for number in range(workers)] + ["edge"]
    chosen: tuple[Fault, ...] = tuple(fault for fault in draw(faults) if fault.process in there)
    controller = msgspec.structs.replace(
        scenario.controller,
        admission=draw(st.booleans()),
        policy={"window_ns": ms(draw(st.sampled_from([0, 1, 20])))},
        preload=draw(st.booleans()),
    )
    worker = msgspec.structs.replace(scenario.worker, pages_bytes=draw(st.sampled_from([24, 256])) << 24)
    return msgspec.structs.replace(scenario, faults=chosen, worker=worker, controller=controller)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_of_every_action(scenario: Scenario) -> None:
    house = SimulatedCluster(scenario)
    house.world.observer = Inspector()
    house.run()
    house.world.check()
    assert_one_answer_each(house)
    assert_at_rest(house)
    assert_mirror(house)


def test_the_inspector_sees_something() -> None:
    house = SimulatedCluster(a_scenario(path="direct"))
    house.world.observer = inspector = Inspector()
    house.run()
    assert inspector.begun > 100


@pytest.mark.parametrize("scheduler", ["horologe", "clockwork", "edf"])
def test_a_device_that_becomes_slower_is_estimated_anew_within_a_few_actions(scheduler: str) -> None:
    """Grey failure (section 7): one of two devices takes three times as long from the first second on."""
    scenario = a_scenario(
        an_entry(count=4),
        load=[poisson(300)],
        scheduler=scheduler,
        workers=2,
        path="direct",
        faults=(Fault(s(1), "worker/0", "slow", factor=3.0),),
    )
    house = SimulatedCluster(scenario)
    house.run()
    total = house.report().total
    assert total.sent > 500
    assert total.late + total.lost <= 6
    assert total.ok >= 0.98 * total.sent
    controller: Any = house.world.core("controller/0")
    slow, quick = controller.cluster.shares()
    assert slow.slowness(house.end_ns) > 2.5
    assert quick.slowness(house.end_ns) < 1.1
    controller.refresh_stats()
    assert controller.stats.values["horologe_device_slowness", "worker/0", "0"] > 2.5
