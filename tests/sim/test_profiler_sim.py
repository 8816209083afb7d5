"""The profiler in the simulator: it starts without measurements, follows drift, and its failure affects nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from horologe_common.clock import ms, s
from horologe_common.core.hosting import CoreObserver
from horologe_common.wire import Distributions, Submit
from horologe_profiler.core.profiler import Profiler
from horologe_profiler.core.profiling_rules import ProfilingRules
from horologe_profiler.settings import ProfilerSettings
from horologe_sim.engine.noise import Noise
from horologe_sim.engine.simulated_faults import Fault
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from sim.sim_builders import a_scenario, an_entry, assert_at_rest, assert_one_answer_each, kill, played, poisson

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Core, Out
    from horologe_sim.scenario.scenario import Scenario

EXEC_MS = {1: 2.0, 2: 3.0, 4: 5.0, 8: 9.0}


class Published(CoreObserver):
    """A tap that records the Distributions of every incarnation of the profiler."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, Distributions]] = []

    def observe_message(self, *_: Any) -> None: ...

    def observe_tick(self, now_ns: int, core: Core, outs: Sequence[Out]) -> None:
        self.messages += [(now_ns, out.message) for out in outs if isinstance(out.message, Distributions)]


RULES = ProfilingRules(publish_interval_ns=ms(200))


def with_profiler(*entries: Any, **fields: Any) -> Scenario:
    settings = ProfilerSettings(**fields.pop("profiler", {}))
    frontend = a_scenario().frontend
    fields |= {"frontend": msgspec.structs.replace(frontend, sample_ns=ms(50)), "profiler": settings}
    return a_scenario(*(entries or (an_entry(exec_ms=EXEC_MS),)), **({"duration_ns": s(4)} | fields))


def play(scenario: Scenario, rules: ProfilingRules = RULES) -> tuple[SimulatedCluster, list[tuple[int, Distributions]]]:
    house, tap = SimulatedCluster(scenario, rules), Published()
    house.world.observer = tap
    house.run()
    house.world.check()
    assert_one_answer_each(house)
    return house, tap.messages


@pytest.mark.parametrize("split", [False, True])
def test_it_learns_from_nothing_what_the_devices_take(split: bool) -> None:
    house, messages = play(with_profiler(split=split, noise=Noise(sigma=0.02), wire=True))
    message = messages[-1][1]
    (part,) = message.histograms
    assert message.model == "m/1"
    assert ms(1.8) < part.edges_ns[0] < part.edges_ns[-1] < ms(2.2)
    assert sum(part.counts) >= 20
    assert abs(message.base_ns - ms(1)) < ms(0.2)
    assert messages[0][0] < house.begin_ns + s(1)
    assert_at_rest(house)


def test_solo_runs_keep_to_their_share_and_deadlines_are_kept() -> None:
    scenario = with_profiler(
        load=[poisson(200)],
        profiler={"busy_share": 0.02, "initial_time_ns": 0},
    )
    house, _ = play(scenario, msgspec.structs.replace(RULES, initial_runs=10**6))
    report, without = house.report(), played(msgspec.structs.replace(scenario, profiler=None)).report()
    assert report.total.ok == report.total.sent == without.total.sent
    assert report.workers["worker/0"].utilisation - without.workers["worker/0"].utilisation < 0.025


def test_after_a_step_change_what_is_published_is_new() -> None:
    faults = (Fault(s(3), "worker/0", "slow", factor=3.0),)
    scenario = with_profiler(
        an_entry(exec_ms=EXEC_MS, slo_ns=ms(200)),
        faults=faults,
        duration_ns=s(7),
        load=[poisson(50)],
    )
    house, messages = play(scenario, msgspec.structs.replace(RULES, rerun_interval_ns=ms(200)))
    before = [message for at_ns, message in messages if at_ns < house.begin_ns + s(3)][-1].histograms[0]
    after = messages[-1][1].histograms[0]
    assert (before.edges_ns[0], before.edges_ns[-1]) == (ms(2), ms(2) + 1)
    assert (after.edges_ns[0], after.edges_ns[-1]) == (ms(6), ms(6) + 1)


@pytest.mark.parametrize("split", [False, True])
def test_killed_and_back_it_knows_what_it_knew_and_serving_went_on(split: bool) -> None:
    house, messages = play(with_profiler(split=split, faults=(kill("profiler", 2000, 500),)))
    total = house.report().total
    assert total.ok == total.sent
    counts = [
        (at_ns - house.begin_ns, sum(message.histograms[0].counts)) for at_ns, message in messages if message.histograms
    ]
    before = [count for at_ns, count in counts if at_ns < ms(2000)][-1]
    back = next(count for at_ns, count in counts if at_ns > ms(2500))
    assert back >= before - 3
    assert_at_rest(house)


class Strikes(Published):
    """A tap that kills or stalls the profiler just after it has submitted a row, and restarts it later."""

    def __init__(self, house: SimulatedCluster, kind: str) -> None:
        super().__init__()
        self.house, self.kind, self.count = house, kind, 0

    def observe_tick(self, now_ns: int, core: Core, outs: Sequence[Out]) -> None:
        if any(isinstance(out.message, Submit) and out.message.solo for out in outs):
            self.count += 1
            self.house.world.events.schedule(now_ns + 1, self._strike)

    def _strike(self) -> None:
        world = self.house.world
        if self.kind == "stall":
            world.stall("profiler", ms(400))
        else:
            world.kill("profiler")
            world.events.schedule(world.now_ns + ms(50), world.start, "profiler")


@pytest.mark.parametrize("kind", ["kill", "stall"])
def test_a_profiler_that_dies_or_hangs_with_a_run_under_way_holds_no_device(kind: str) -> None:
    """The input of the run never arrives: the device waits for it only briefly."""
    house = SimulatedCluster(with_profiler(load=[poisson(50, slo_ns=ms(600))]), RULES)
    house.world.observer = strikes = Strikes(house, kind)
    house.run()
    house.world.check()
    assert_one_answer_each(house)
    total = house.report().total
    assert strikes.count >= 5
    assert total.ok == total.sent


@pytest.mark.parametrize("victim", ["controller", "worker/0", "frontend"])
def test_it_outlives_everybody_else(victim: str) -> None:
    """A restarted controller receives all distributions at once."""
    house, messages = play(with_profiler(split=True, workers=2, faults=(kill(victim, 2000, 300),)))
    assert sum(messages[-1][1].histograms[0].counts) >= 20
    if victim == "controller":
        first = next(message for at_ns, message in messages if at_ns > house.begin_ns + ms(2300))
        assert sum(first.histograms[0].counts) >= 15
    assert_at_rest(house)


def test_in_overload_runs_are_given_up_and_nothing_waits_for_them() -> None:
    """Requests with deadlines use the whole device. First runs, which go before them after a while, are excluded."""
    scenario = with_profiler(load=[poisson(3000)], duration_ns=s(3), profiler={"first_wait_ns": s(60)})
    house, _ = play(scenario, msgspec.structs.replace(RULES, budget_ns=ms(300)))
    profiler = house.world.core("profiler/0")
    assert isinstance(profiler, Profiler)
    assert profiler.staging.held_bytes < 1 << 20
    without = played(msgspec.structs.replace(scenario, profiler=None)).report()
    assert house.report().total.goodput > 0.99 * without.total.goodput
    assert_at_rest(house)


def test_the_same_seed_gives_the_same_bytes() -> None:
    scenario = with_profiler(noise=Noise(sigma=0.1), duration_ns=s(2))
    first, again = play(scenario), play(scenario)
    assert first[1] == again[1]
    assert first[0].report().to_json() == again[0].report().to_json()
