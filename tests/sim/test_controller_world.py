"""The controller alone: every request has one end, windows and pages are kept, and it agrees with the exact world."""

from __future__ import annotations

from itertools import count, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from horologe_common.clock import NEVER_NS, ms, s, us
from horologe_common.status import Status
from horologe_common.wire import Infer, Load, Row
from horologe_controller.settings import ControllerSettings
from horologe_experiments.clockwork.catalogue_models import batch_limited_rate, catalogue_models
from horologe_experiments.harness.experiment_world import ChargedCluster, ExperimentWorld, Loop, WorldRecords
from horologe_experiments.harness.interval_ledger import DurationCounts, IntervalLedger
from horologe_experiments.harness.request_streams import PoissonStream, poisson
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.controller_only.direct_device import DeviceEntry, DirectDevice
from horologe_sim.controller_only.request_load import Chunk
from horologe_sim.engine.event_queue import EventQueue
from horologe_sim.engine.network import NetworkSettings
from horologe_sim.engine.noise import NOISES, Draws, measured
from horologe_sim.engine.simulated_faults import Fault, schedule_faults
from horologe_sim.scenario import scenario as scenarios
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.workload import LoadPhase as Phase

(RESNET,) = catalogue_models(["resnet50_v1"])


def a_stream(rate: float, models: int = 1, slo_ms: float = 50) -> PoissonStream:
    return PoissonStream(lambda step: np.full(models, rate / models), s(10), lambda step: ms(slo_ms))


def played(
    setting: ClusterSettings, models: int, chunks: Any = (), loops: Any = (), duration_ns: int = s(1)
) -> ExperimentWorld:
    world = ExperimentWorld(setting, RESNET.copies(models), IntervalLedger(["all"], models, s(1)), 1, chunks, loops)
    world.run(duration_ns)
    world.check()
    assert not world.open
    (line,) = world.ledger.lines
    assert line.sent == line.ok + line.late + line.lost + line.refused > 0
    return world


@settings(max_examples=12, deadline=None)
@given(
    rate=some.floats(50, 2000),
    slo_ms=some.floats(2, 200),
    models=some.integers(1, 12),
    pages=some.integers(7, 60),
    devices=some.integers(1, 3),
    admission=some.booleans(),
    window_ms=some.sampled_from([0, 0.2, 5]),
)
def test_every_request_has_one_end_and_no_device_is_asked_for_what_it_cannot(
    rate: float, slo_ms: float, models: int, pages: int, devices: int, admission: bool, window_ms: float
) -> None:
    controller = ControllerSettings(admission=admission, policy={"window_ns": ms(window_ms)})
    setting = ClusterSettings(devices=devices, pages=pages, controller=controller, settle_ns=ms(100))
    played(setting, models, poisson([a_stream(rate, models, slo_ms)], s(0.3), [1]), duration_ns=s(0.3))


@pytest.mark.parametrize("load", [0.5, 0.9, 1.5])
def test_it_agrees_with_the_exact_world_on_the_same_arrivals(load: float) -> None:
    """Two models and a device: goodput within 2%, the median within 5%. Transport and turns alike, no jitter."""
    rate, slo_ms, seconds = load * 16 / 0.01567, 100, 2
    chunks = list(poisson([a_stream(rate, 2, slo_ms)], s(seconds), [7]))
    controller = ControllerSettings(admission=False, margin_ns=us(300))
    world = played(ClusterSettings(noise=NOISES["none"], controller=controller), 2, chunks, duration_ns=s(seconds))
    times = [(at + us(100), model) for chunk in chunks for at, model in zip(*chunk[:2], strict=True)]
    entry = ModelEntry(
        "m", RESNET.exec_ms, count=2, load_ms=RESNET.load_ms, weights_mb=RESNET.weights_mb, slo_ns=ms(slo_ms)
    )
    report = scenarios.run_scenario(
        Scenario(
            (entry,),
            tuple(
                Phase(
                    "trace",
                    times_ns=tuple(at for at, of in times if of == model),
                    models=(f"m-{model}",),
                    slo_ns=ms(slo_ms) - us(100),
                )
                for model in (0, 1)
            ),
            duration_ns=s(seconds),
            path="direct",
            controller=controller,
            network=NetworkSettings(delay_ns=us(60), jitter_ns=0),
        )
    )
    (line,) = world.ledger.lines
    assert line.ok == pytest.approx(report.total.ok, rel=0.02)
    assert line.times.quantile_ms(0.5) == pytest.approx(report.total.p50_ms + 0.1, rel=0.05)


@pytest.mark.parametrize("charged", [False, True])
def test_a_turn_can_last_as_long_as_the_controller_computes(charged: bool) -> None:
    """Each message and tick of the core takes 2 ms by this clock: a turn lasts longer than an EXEC."""
    times = count(step=ms(2))
    setting = ChargedCluster(noise=NOISES["none"], charge_decisions=charged)
    ledger, records = IntervalLedger(["all"], 1, s(1)), WorldRecords(clock=lambda: next(times))
    world = ExperimentWorld(setting, RESNET.copies(1), ledger, 1, loops=[Loop(0, s(1), 0)], records=records)
    world.run(s(1))
    median_ms = ledger.lines[0].times.quantile_ms(0.5)
    assert (median_ms > 2 * RESNET.exec_ms[1]) is charged


def test_an_answer_travels_as_long_as_other_messages() -> None:
    setting = ClusterSettings(noise=NOISES["none"], worker_ns=ms(5))
    world = played(setting, 1, loops=[Loop(0, s(1), 0)], duration_ns=s(1))
    (line,) = world.ledger.lines
    assert line.times.quantile_ms(0.5) == pytest.approx(10.2 + RESNET.exec_ms[1], rel=0.05)


def test_a_closed_loop_of_full_batches_reaches_what_batches_allow() -> None:
    loops = [Loop(model, ms(500), 0, ms(1)) for _ in range(16) for model in range(3)]
    world = played(ClusterSettings(noise=NOISES["none"]), 3, loops=loops, duration_ns=s(3))
    assert world.ledger.panels[1].lines[0].ok == pytest.approx(batch_limited_rate(RESNET, 500), rel=0.05)


OVERLOADED = {
    "clockwork": (0.97, 1.03),
    "nexus": (0.9, 1.03),
    "deferred": (0.85, 1.03),
    "edf": (0.7, 0.9),
    "clipper": (0.2, 0.5),
    "fifo": (0, 0.01),
}
"""Goodput over what full batches allow, fifteen models for one device, 16 clients each and an SLO of 100 ms."""


@pytest.mark.parametrize("scheduler", OVERLOADED)
def test_in_overload_full_batches_in_time_are_what_counts(scheduler: str) -> None:
    loops = [Loop(model, ms(100), 0, ms(1)) for _ in range(16) for model in range(15)]
    controller = ControllerSettings(scheduler=scheduler, margin_ns=us(100), admission=False)
    world = played(ClusterSettings(controller=controller), 15, loops=loops, duration_ns=s(3))
    low, high = OVERLOADED[scheduler]
    assert low <= world.ledger.panels[2].lines[0].ok / batch_limited_rate(RESNET, 100) <= high


@pytest.mark.parametrize("scheduler", OVERLOADED)
def test_with_time_to_spare_every_scheduler_does(scheduler: str) -> None:
    controller = ControllerSettings(scheduler=scheduler, margin_ns=us(100), admission=False)
    chunks = poisson([a_stream(0.5 * 16 / 0.01567, 2, slo_ms=100)], s(2), [3])
    (line,) = played(ClusterSettings(controller=controller), 2, chunks, duration_ns=s(2)).ledger.lines
    assert line.ok > 0.99 * line.sent


def test_the_same_seed_gives_the_same_ledger() -> None:
    setting = ClusterSettings(controller=ControllerSettings(admission=False))
    lines = [played(setting, 3, poisson([a_stream(900, 3)], s(1), [4])).ledger.lines[0] for _ in range(2)]
    assert lines[0].times.counts == lines[1].times.counts


SMALL = some.integers(0, 20)


class Bench:
    """A device by itself, in place of its world: it makes events happen and keeps the Results."""

    def __init__(self) -> None:
        self.setting = ClusterSettings(pages=14, noise=NOISES["none"], worker_ns=us(50))
        self.events = EventQueue()
        self.solo_ns: dict[int, int] = {}
        self.results: list[tuple[int, int, int, int]] = []
        world: Any = self
        self.device = DirectDevice(world, "worker/0#1", DeviceEntry(RESNET.copies(2)), [1])

    def on_result(self, now_ns: int, ended: Any) -> None:
        device, action, result = ended
        self.results.append((action.action_id, result.status, result.begin_ns, result.end_ns))
        (device.exec if isinstance(action, Infer) else device.load).advance(now_ns)

    def run(self) -> None:
        self.events.run_until(NEVER_NS)


def an_infer(number: int, earliest_ns: int, latest_ns: int, model: str = "resnet50_v1-0/1") -> Infer:
    return Infer(number, 0, model, 1, (Row(0, 1, 0, 1, 1),), ("s/0#1",), earliest_ns, latest_ns, ms(2.61))


def a_load(number: int, model: str) -> Load:
    return Load(number, 0, model, 0, s(10), ms(8.33))


@settings(max_examples=30, deadline=None)
@given(
    some.lists(some.tuples(some.integers(0, 20), some.integers(0, 20), some.integers(0, 10)), min_size=1, max_size=12)
)
def test_a_lane_runs_one_at_a_time_inside_the_windows(windows: list[tuple[int, int, int]]) -> None:
    bench = Bench()
    bench.device.begin_load(0, a_load(1000, "resnet50_v1-0/1"))
    bench.run()
    for number, (sent_ms, wait_ms, width_ms) in enumerate(sorted(windows)):
        earliest_ns = ms(20 + sent_ms + wait_ms)
        infer = an_infer(number, earliest_ns, earliest_ns + ms(width_ms))
        bench.events.schedule(ms(20 + sent_ms), bench.device.begin_infer, ms(20 + sent_ms), infer)
    bench.run()
    ran = sorted((begin, end) for number, status, begin, end in bench.results if status == Status.OK and number < 1000)
    assert len(bench.results) == len(windows) + 1
    assert all(one[1] <= two[0] for one, two in pairwise(ran))
    bounds = {
        number: (ms(20 + at + wait), ms(20 + at + wait + width))
        for number, (at, wait, width) in enumerate(sorted(windows))
    }
    for number, status, begin, _ in bench.results:
        if status == Status.OK and number < 1000:
            assert bounds[number][0] <= begin <= bounds[number][1]
    bench.device.check()


def test_a_device_has_no_more_pages_than_it_has() -> None:
    bench = Bench()
    for number, model in enumerate(("resnet50_v1-0/1", "resnet50_v1-1/1")):
        bench.device.begin_load(0, a_load(number, model))
    bench.run()
    assert [status for _, status, *_ in bench.results] == [Status.OK, Status.OK]
    assert bench.device.pages.free_pages == 0
    bench.device.unload("resnet50_v1-0/1")
    bench.device.begin_infer(s(1), an_infer(7, s(1), s(2)))
    bench.run()
    assert bench.results[-1][1] == Status.FAILED
    with pytest.raises(AssertionError, match="not loaded"):
        bench.device.check()


def test_streams_are_poisson_by_step_and_in_order() -> None:
    stream = PoissonStream(lambda step: np.array([300.0, 700.0]) * step, s(1), lambda step: ms(10 * (step + 1)))
    chunks = list(poisson([stream], s(3), [1], s(1)))
    times = [at for chunk in chunks for at in chunk.times_ns]
    assert times == sorted(times)
    assert [len(chunk.times_ns) for chunk in chunks] == [0, pytest.approx(1000, abs=130), pytest.approx(2000, abs=180)]
    assert set(chunks[2].slos_ns) == {ms(30)}
    assert np.mean(chunks[2].models) == pytest.approx(0.7, abs=0.05)
    assert isinstance(chunks[0], Chunk)


def test_noise_has_the_tail_of_the_figure() -> None:
    draws = Draws(NOISES["clockwork"], [1])
    more = np.array([draws.noisy(ms(3)) - ms(3) for _ in range(200_000)])
    assert np.quantile(more, 0.99) == pytest.approx(us(250), rel=0.15)
    assert np.median(np.abs(more)) < us(10)
    assert more.max() > ms(19)
    assert 0.99 < measured("exec").mean() < 1.01


@given(some.lists(some.integers(0, 2 * 10**9), min_size=1, max_size=60), some.sampled_from([0.5, 0.99, 1.0]))
def test_quantiles_of_a_histogram_are_good_to_a_bucket(values: list[int], q: float) -> None:
    times = DurationCounts()
    for value in values:
        times.add(value)
    exact = float(np.quantile(np.array(values), q, method="inverted_cdf")) / 1e6
    found = times.quantile_ms(q)
    assert found >= exact - 0.01 if exact < 1000 else found > 999
    assert found <= max(exact + 0.02, 0.0) if exact < 1000 else found <= max(values) / 1e6 + 0.001


def test_a_device_is_slow_for_a_time() -> None:
    setting = ClusterSettings(noise=NOISES["none"])
    ledger = IntervalLedger(["all"], 1, s(1))
    world = ExperimentWorld(setting, RESNET.copies(1), ledger, 1, loops=[Loop(0, s(1), 0)])
    schedule_faults(world, [Fault(s(1), "worker/0", "slow", for_ns=s(1), factor=4.0)], world.begin_ns)
    world.run(s(3))
    before, slow, after = (panel.lines[0].ok for panel in ledger.panels[:3])
    assert slow < 0.5 * before
    assert after == pytest.approx(before, rel=0.05)


@pytest.mark.parametrize("kind", ["stall", "cut"])
def test_faults_of_processes_are_errors(kind: Any) -> None:
    world = ExperimentWorld(ClusterSettings(settle_ns=ms(10)), RESNET.copies(1), IntervalLedger(["all"], 1, s(1)), 1)
    schedule_faults(world, [Fault(0, "worker/0", kind)], world.begin_ns)
    with pytest.raises(ValueError, match=f"got a {kind} of worker/0, wanted kill or slow"):
        world.run(ms(10))
