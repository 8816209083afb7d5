"""Every request gets exactly one answer, its own, in time, for random clusters, loads and faults."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horologe_common.clock import ms, s
from horologe_sim.engine.noise import Noise
from horologe_sim.scenario.scenario import Scenario
from horologe_sim.scenario.workload import LoadPhase
from sim.sim_builders import a_scenario, an_entry, assert_at_rest, cut, kill, played, stall

PROCESSES = ("worker/0", "worker/1", "edge", "frontend", "selector", "controller")

loads = st.builds(
    lambda rate, rows, cancel, slo, kind: LoadPhase(
        kind,
        rate=rate,
        burst_rate=10 * rate,
        clients=int(rate / 20) + 1,
        think_ns=ms(1),
        rows=rows,
        cancel_share=cancel,
        cancel_ns=ms(3),
        slo_ns=ms(slo),
    ),
    st.sampled_from([20.0, 200.0, 900.0]),
    st.integers(1, 4),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([0, 8, 30, 300]),
    st.sampled_from(["poisson", "bursts", "closed"]),
)

faults = st.lists(
    st.one_of(
        st.builds(
            lambda process, at, back, void: kill(process, at, back, void=void),
            st.sampled_from(PROCESSES),
            st.integers(1, 400),
            st.integers(1, 250),
            st.booleans(),
        ),
        st.builds(stall, st.sampled_from(PROCESSES), st.integers(1, 400), st.integers(1, 150)),
        st.builds(cut, st.sampled_from(PROCESSES), st.integers(1, 400), st.integers(0, 100)),
    ),
    max_size=4,
)

models = st.lists(
    st.builds(
        lambda count, mb, transfers, cache: {
            "count": count,
            "weights_mb": mb,
            "cache": cache,
            **({"input_ms": 0.2, "output_ms": 0.1} if transfers else {}),
        },
        st.integers(1, 3),
        st.sampled_from([16.0, 60.0, 300.0]),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=3,
)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    entries = [an_entry(f"m{number}", **fields) for number, fields in enumerate(draw(models))]
    split = draw(st.booleans())
    scenario = a_scenario(
        *entries,
        load=draw(st.lists(loads, min_size=1, max_size=2)),
        scheduler=draw(st.sampled_from(["horologe", "clockwork", "edf"])),
        split=split,
        workers=draw(st.integers(1, 2)),
        duration_ns=ms(500),
        seed=draw(st.integers(0, 1000)),
        wire=draw(st.booleans()),
        noise=draw(st.sampled_from([Noise(), Noise(0.2), Noise(0.05, 0.02, ms(30))])),
        clocks_ns=draw(st.sampled_from([{}, {"worker/0": s(3)}, {"worker/0": -s(900), "client": s(40)}])),
    )
    there = ["worker/0", "worker/1"][: scenario.workers]
    there += ["frontend", "selector", "controller"] if split else ["edge"]
    chosen = tuple(fault for fault in draw(faults) if fault.process in there)
    worker = msgspec.structs.replace(
        scenario.worker, pages_bytes=draw(st.sampled_from([24, 256])) << 24, shares=draw(st.sampled_from([1, 2]))
    )
    return msgspec.structs.replace(scenario, faults=chosen, worker=worker)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_one_answer_by_deadline_plus_grace_and_never_swapped(scenario: Scenario) -> None:
    house = played(scenario)
    stalled = sum(fault.duration_ns for fault in scenario.faults if fault.kind == "stall")
    limit_ns = scenario.frontend.grace_ns + scenario.patience_ns + ms(1)
    assert house.tally.overdue_ns <= limit_ns
    edge = [fault for fault in scenario.faults if fault.process in ("edge", "frontend")]
    if not stalled and not edge:  # then nobody but a client who cancelled has stopped waiting
        crossed = [status for _, status in house.tally.strays]
        assert len(crossed) <= sum(line.statuses["CANCELLED"] for line in house.tally.counts.values())
    assert_at_rest(house)


@pytest.mark.parametrize("split", [False, True])
def test_no_model_is_unknown_to_a_new_controller_whose_second_worker_comes_late(split: bool) -> None:
    models = (an_entry("first", workers=(0,)), an_entry("second", workers=(1,), slo_ns=ms(400)))
    faults = (kill("controller" if split else "edge", 500, 100), stall("worker/1", 400, 600))
    house = played(a_scenario(*models, split=split, workers=2, faults=faults))
    assert house.tally.counts["second"].statuses["OK"] > 50


def test_the_property_can_fail() -> None:
    """A frontend that answers twice is found out: so the counting counts."""
    from horologe_frontend.core.frontend import Frontend

    class Twice(Frontend):
        def tick(self, now_ns: int) -> None:
            super().tick(now_ns)
            self.out.extend([out for out in self.out if out.to.startswith("client/")])

    from horologe_frontend.digest import digest
    from horologe_sim.scenario.simulated_cluster import SimulatedCluster

    house = SimulatedCluster(a_scenario())

    def make(process: Any) -> Any:
        return [Twice(process.address("frontend"), house.scenario.frontend, digest), *edge(process)[1:]]

    edge = house.world.processes["edge"].make_cores
    house.world.processes["edge"].make_cores = make
    house.run()
    assert len(house.tally.strays) == house.tally.sent_total
