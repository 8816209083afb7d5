"""Events for a tuner: arrivals by bin, results and devices; and nothing without a tuner."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from controller.controller_builders import FRONTEND, SELECTOR, TUNER
from controller.plan_bench import Bench
from harness.builders import sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Events,
    Infer,
    Load,
    Outcome,
    PipelineArrivals,
    PlannedModel,
    QueriesArrived,
    ResourcePlan,
    Result,
    Submit,
)
from horologe_controller.core.event_recorder import EventRecorder
from horologe_controller.schedulers import SCHEDULERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_controller.core.requests.request import Request


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_tuner_without_a_plan_changes_no_decision(scheduler: str) -> None:
    """The same traffic, once with a tuner that only listens: every other message is the same."""
    logs = []
    for listens in (False, True):
        bench = Bench(("cpu", "v100"), ("a", "b", "c"), scheduler=scheduler, pages=2)
        rng, log = random.Random(1), []
        if listens:
            bench.controller.handle(0, TUNER, ResourcePlan(0), ())
            bench.controller.tick(0)
        pending: list[tuple[str, Any]] = []
        for number in range(1, 300):
            bench.now_ns += rng.randrange(ms(2))
            message = Submit(number, f"{rng.choice('abc')}/1", ms(rng.randrange(5, 80)), 1, FRONTEND, number)
            bench.controller.handle(bench.now_ns, SELECTOR, message, ())
            bench.controller.tick(bench.now_ns)
            outs = [out for out in bench.controller.out if not isinstance(out.message, Events)]
            bench.controller.out.clear()
            log += outs
            pending += [(out.to, out.message) for out in outs if isinstance(out.message, Infer | Load)]
            while pending and rng.random() < 0.6:
                worker, action = pending.pop(0)
                result = Result(action.action_id, Status.OK, bench.now_ns - ms(1), bench.now_ns)
                bench.controller.handle(bench.now_ns, worker, result, ())
        logs.append(log)
    assert len(logs[0]) > 50
    assert logs[0] == logs[1]


def test_events_tell_arrivals_by_bin_results_and_devices() -> None:
    bench = Bench(("v100",))
    bench.plan(PlannedModel("sum", 1, 16))
    bench.now_ns = ms(25)
    bench.submit(count=3)
    bench.now_ns = ms(31)
    bench.submit(count=2)
    bench.finish_all()
    bench.controller.handle(bench.now_ns, SELECTOR, Submit(90, "sum/1", 1, 1, FRONTEND, 90), ())
    bench.controller.handle(bench.now_ns, SELECTOR, Submit(91, "sum/1", s(1), 1, FRONTEND, 91, best_effort=True), ())
    refused = Submit(92, "sum/1", 1, 99, FRONTEND, 92, best_effort=True)
    bench.controller.handle(bench.now_ns, SELECTOR, refused, ())
    bench.controller.tick(ms(100))
    (events,) = sent(bench.controller, Events, TUNER)
    (model,) = events.models
    assert (events.number, events.span_ns, events.bin_ns, events.plan) == (1, ms(100), ms(10), 1)
    assert model.model == "sum/1"
    assert model.arrivals == ((0, 1), (7, 2), (8, 3))
    assert model.refused == 1
    ((worker, share, hardware, models),) = [
        (device.worker, device.share, device.hardware, device.models) for device in events.devices or ()
    ]
    assert (worker, share, hardware, models) == (bench.workers[0], 0, "v100", ("sum/1",))
    for at_ns, counts in ((ms(150), (("p", 3), ("q", 1))), (ms(152), (("p", 2),)), (ms(160), (("p", 1),))):
        bench.controller.handle(at_ns, SELECTOR, QueriesArrived(counts), ())
    bench.controller.tick(ms(200))
    (events,) = sent(bench.controller, Events, TUNER)
    assert (events.number, events.models, events.devices) == (2, (), None)
    assert events.pipelines == (PipelineArrivals("p", ((4, 1), (5, 5))), PipelineArrivals("q", ((5, 1),)))


def test_nothing_is_collected_without_a_tuner() -> None:
    bench = Bench(("cpu",))
    bench.submit(count=3)
    bench.controller.handle(0, TUNER, ResourcePlan(0), ())
    bench.controller.tick(0)
    assert bench.controller.wakeup_ns() == ms(100)
    bench.controller.handle(0, TUNER, PeerDisconnected(TUNER), ())
    bench.controller.handle(0, SELECTOR, QueriesArrived((("p", 1),)), ())
    bench.finish_all()
    bench.controller.tick(s(1))
    assert not sent(bench.controller, Events)
    assert not sent(bench.controller, Outcome)


@pytest.mark.interpreted
def test_arrivals_are_recorded_once_per_turn_and_model(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    record = EventRecorder.record_arrivals

    def count_call(recorder: EventRecorder, now_ns: int, requests: Sequence[Request]) -> None:
        calls.append((requests[0].model, len(requests)))
        record(recorder, now_ns, requests)

    monkeypatch.setattr(EventRecorder, "record_arrivals", count_call)
    bench = Bench(("cpu",), ("sum", "other"))
    bench.submit(count=40)
    assert calls == []  # no tuner listens
    bench.plan(number=0)
    for number in range(100, 200):
        message = Submit(number, ("sum/1", "other/1")[number % 2], s(10), 1, FRONTEND, number)
        bench.controller.handle(bench.now_ns, SELECTOR, message, ())
    bench.settle()
    assert sorted(calls) == [("other/1", 50), ("sum/1", 50)]
