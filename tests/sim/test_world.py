"""The cores in the second loop: deterministic, in time on a load they can carry, and one answer whatever dies."""

from __future__ import annotations

import msgspec
import pytest

from horologe_common.clock import ms, s, us
from horologe_common.core.protocol import Out
from horologe_common.status import InvalidInput
from horologe_common.wire import Ping
from horologe_controller.settings import ControllerSettings
from horologe_sim.engine.network import Network, NetworkSettings
from horologe_sim.engine.noise import Noise
from horologe_sim.engine.simulated_process import BusyLoopError, Process
from horologe_sim.engine.world import World
from horologe_sim.scenario import scenario as scenarios
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase, ScenarioLoad
from sim.sim_builders import (
    a_scenario,
    an_entry,
    assert_at_rest,
    assert_one_answer_each,
    kill,
    played,
    poisson,
    with_network,
)

PATHS = ("whole", "direct")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("split", [False, True])
def test_the_same_seed_gives_the_same_bytes(path: str, split: bool) -> None:
    scenario = a_scenario(noise=Noise(0.1, 0.01, ms(20)), workers=2, seed=7, split=split, path=path)
    again = scenarios.run_scenario(scenario).to_json()
    assert scenarios.run_scenario(scenario).to_json() == again
    assert scenarios.run_scenario(msgspec.structs.replace(scenario, seed=8)).to_json() != again


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("scheduler", ["horologe", "clockwork", "edf"])
def test_a_load_well_below_capacity_is_answered_in_time(path: str, scheduler: str) -> None:
    house = played(a_scenario(workers=2, path=path, scheduler=scheduler))
    total = house.report().total
    assert total.sent > 300
    assert total.ok == total.sent
    assert total.p99_ms < 50
    assert_at_rest(house)


@pytest.mark.parametrize("admission", [False, True])
@pytest.mark.parametrize("scheduler", ["horologe", "clockwork", "edf"])
def test_overload_is_refused_and_what_is_admitted_is_in_time(scheduler: str, admission: bool) -> None:
    """Without admission, the order of deadlines serves 0.586 of the capacity: it waits for what cannot be in time."""
    controller = ControllerSettings(scheduler=scheduler, admission=admission)
    scenario = a_scenario(an_entry(slo_ns=ms(40)), load=[poisson(4000)], path="direct", controller=controller)
    report = played(scenario).report()
    wanted = {"horologe": 0.9, "clockwork": 0.9, "edf": 0.6 if admission else 0.5}[scheduler]
    assert report.total.goodput > wanted * 8 / 0.009
    assert report.total.refused > 0.5 * report.total.sent
    assert report.total.late + report.total.lost <= 0.001 * report.total.sent
    assert report.workers["worker/0"].utilisation > 0.9


def test_every_packet_can_go_over_the_wire() -> None:
    """Encoding and decoding every packet changes nothing of what happens."""
    scenario = a_scenario(workers=2, split=True, load=[poisson(300, rows=3)])
    reports = [played(msgspec.structs.replace(scenario, wire=wire)).report() for wire in (False, True)]
    assert reports[0] == reports[1]


@pytest.mark.parametrize("void", [False, True])
@pytest.mark.parametrize(
    ("victim", "split"),
    [(victim, False) for victim in ("worker/0", "edge")]
    + [(victim, True) for victim in ("worker/0", "controller", "selector", "frontend")],
)
def test_one_answer_each_when_a_process_is_killed(victim: str, split: bool, void: bool) -> None:
    faults = tuple(kill(victim, at_ms, 300, void=void) for at_ms in (500, 1300))
    house = played(a_scenario(workers=2, split=split, faults=faults))
    tally, total = house.tally, house.report().total
    assert total.sent == sum((total.ok, total.refused, total.late, total.lost))
    assert house.tally.overdue_ns <= house.scenario.frontend.grace_ns + house.scenario.patience_ns + ms(1)
    assert total.ok > 0.6 * total.sent
    assert [status for _, status in tally.strays] == []
    assert_at_rest(house)


@pytest.mark.parametrize("victim", ["worker/0", "controller", "selector"])
def test_without_the_frontends_death_the_frontend_answers_within_its_grace(victim: str) -> None:
    house = played(a_scenario(workers=2, split=True, faults=(kill(victim, 500, 400),)))
    slack_ns = 2 * (us(60) + us(500)) + ms(1)  # the way back, jitter included
    assert house.tally.overdue_ns <= house.scenario.frontend.grace_ns + slack_ns


def test_a_dead_worker_costs_nothing_that_another_could_do_in_time() -> None:
    report = played(a_scenario(an_entry(slo_ns=ms(200)), workers=2, faults=(kill("worker/0", 700, 300),))).report()
    assert report.total.ok == report.total.sent


def test_service_resumes_after_the_only_worker_was_away() -> None:
    house = played(a_scenario(faults=(kill("worker/0", 500, 500),)))
    assert house.tally.count("OK") > 0.6 * house.report().total.sent
    assert_at_rest(house)


def test_a_frontend_that_stays_away_leaves_the_clients_own_timer() -> None:
    house = played(a_scenario(split=True, faults=(kill("frontend", 1000, 0),)))
    assert house.tally.count("LOST") > 0.3 * house.report().total.sent


def test_a_client_that_leaves_is_forgotten() -> None:
    house = played_without_client(a_scenario(an_entry(slo_ns=ms(500)), load=[poisson(2000)]))
    house.world.run(house.world.now_ns + s(3))
    house.world.check()
    for address in ("frontend/0", "controller/0"):
        assert house.world.core(address).pending() == 0  # type: ignore[attr-defined]


def played_without_client(scenario: scenarios.Scenario) -> SimulatedCluster:
    house = SimulatedCluster(scenario)
    house.world.events.schedule(house.begin_ns + ms(300), house.world.kill, "client")
    for name in house.world.processes:
        house.world.start(name)
    house.world.run(house.begin_ns + s(1))
    return house


def test_cancelled_requests_are_not_answered_and_do_not_fail_their_batch() -> None:
    load = [poisson(300, cancel_share=0.3, cancel_ns=ms(2)), poisson(300)]
    house = played(a_scenario(load=load, path="whole"))
    total = house.report().total
    assert total.cancelled > 100
    assert total.ok + total.cancelled + total.refused == total.sent
    assert all(status == "OK" for _, status in house.tally.strays)  # crossed the Cancel on its way
    assert_at_rest(house)


def test_clocks_of_other_hosts_may_say_anything() -> None:
    """Deadlines travel as budgets and windows in the worker's clock: no two clocks need to agree."""
    clocks = {"worker/0": s(5), "worker/1": -s(900), "client": s(77)}
    report = played(a_scenario(workers=2, clocks_ns=clocks)).report()
    assert report.total.ok > 0.98 * report.total.sent
    assert report.total.late == report.total.lost == 0


def test_models_that_do_not_fit_take_turns() -> None:
    models = [an_entry("big", weights_mb=20 * 16, count=6, slo_ns=ms(400))]
    scenario = a_scenario(*models, load=[poisson(60)])
    worker = msgspec.structs.replace(scenario.worker, pages_bytes=50 * (16 << 20))
    house = played(msgspec.structs.replace(scenario, worker=worker))
    report = house.report()
    assert report.workers["worker/0"].unloads > 5
    assert report.total.cold > 0
    assert report.total.ok > 0.8 * report.total.sent
    assert_at_rest(house)


def test_transfers_have_lanes_of_their_own() -> None:
    house = played(a_scenario(an_entry(input_ms=0.3, output_ms=0.1)))
    ended = house.meters["worker/0"].ended
    assert ended["input", "OK"] == ended["exec", "OK"] == ended["output", "OK"] > 0
    assert house.report().total.ok == house.report().total.sent


def test_a_closed_loop_asks_again_when_it_has_its_answer() -> None:
    house = played(a_scenario(load=[LoadPhase("closed", clients=3, think_ns=ms(5))]))
    total = house.report().total
    assert total.ok == total.sent
    assert 3 * 2 / 0.012 < total.sent < 3 * 2 / 0.005


def test_the_cache_answers_what_was_asked_before() -> None:
    """Inputs without marks are all equal."""
    entry = an_entry(cache=True, echo=False)
    report = played(a_scenario(entry)).report()
    assert report.total.ok == report.total.sent
    assert report.workers["worker/0"].batches < 10


def test_a_core_that_spins_is_found_out() -> None:
    class Spinner:
        address = "selector/0#1"

        def __init__(self) -> None:
            self.out: list[Out] = []

        def handle(self, *_: object) -> None: ...

        def tick(self, now_ns: int) -> None:
            self.now_ns = now_ns

        def wakeup_ns(self) -> int | None:
            return getattr(self, "now_ns", 0) + 1

    world = World(Network(NetworkSettings(turn_ns=0), 1))
    world.add("spinner", lambda process: [Spinner()])
    world.start("spinner")
    with pytest.raises(BusyLoopError, match="spinner"):
        world.run(world.now_ns + s(1))


def test_messages_to_an_old_incarnation_are_dropped() -> None:
    class Listener:
        def __init__(self, process: Process) -> None:
            self.address = process.address("selector", process.name)
            self.out: list[Out] = []
            self.got: list[object] = []

        def handle(self, now_ns: int, sender: str, message: object, buffers: object) -> None:
            self.got.append(message)

        def tick(self, now_ns: int) -> None: ...

        def wakeup_ns(self) -> int | None:
            return None

    world = World(Network(NetworkSettings(), 1))
    for name in ("a", "b"):
        world.add(name, lambda process: [Listener(process)])
        world.start(name)
    world.run(world.now_ns + ms(10))
    a, b = (next(iter(world.processes[name].cores.values())) for name in ("a", "b"))
    a.out.append(Out(b.address, Ping(1)))
    world.processes["a"].post("", a.address, Ping(0))
    world.run(world.now_ns)  # under way
    world.kill("b")
    world.start("b")
    world.run(world.now_ns + ms(10))
    assert Ping(1) not in world.core("selector/b").got  # type: ignore[attr-defined]
    assert world.processes["b"].dropped == 1
    kinds = [(type(message).__name__, getattr(message, "address", "")[-1:]) for message in a.got]  # type: ignore[attr-defined]
    assert kinds == [
        ("PeerConnected", "1"),
        ("Ping", ""),
        ("PeerConnected", "2"),
        ("PeerDisconnected", "1"),
    ] or kinds == [
        ("PeerConnected", "1"),
        ("Ping", ""),
        ("PeerDisconnected", "1"),
        ("PeerConnected", "2"),
    ]


@pytest.mark.parametrize("name", scenarios.example_names())
def test_every_example_can_be_read_and_played(name: str) -> None:
    scenario = msgspec.structs.replace(scenarios.read_scenario(name), duration_ns=s(1), warmup_ns=0)
    fractions: list[float] = []
    report = scenarios.run_scenario(scenario, progress=fractions.append)
    assert report.total.sent == report.total.sent - report.total.unanswered > 0
    assert fractions[-1] == 1.0
    assert report.swapped == 0
    assert "total" in report.table()


def test_a_demand_for_an_unknown_model_names_it() -> None:
    with pytest.raises(InvalidInput, match=r"load\.models: got 'nope'"):
        ScenarioLoad([poisson(1, models=("nope",))], ["a"], 0, s(1))


def test_a_trace_is_followed_to_the_nanosecond() -> None:
    demand = ScenarioLoad([LoadPhase("trace", times_ns=(5, 3, 3), from_ns=10)], ["a"], 0, s(1))
    times = []
    while (at_ns := demand.next_ns()) is not None:
        times += [ask.at_ns for ask in demand.pop_due(at_ns)]
    assert times == [13, 13, 15]


def test_assertions_of_the_builders_do_fail() -> None:
    house = played(with_network(a_scenario(), delay_ns=us(10)))
    house.tally.swapped.append(1)
    with pytest.raises(AssertionError):
        assert_one_answer_each(house)
