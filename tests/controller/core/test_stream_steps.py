"""Steps of streams in the controller: a first step runs anywhere, a later one only where the state is."""

from __future__ import annotations

from typing import Any

import pytest

from controller.controller_builders import (
    OTHER,
    SELECTOR,
    WORKER,
    a_new_controller,
    finish,
    finish_loads,
    register,
    submit,
    tick,
)
from harness.builders import a_spec, sent
from horologe_common.clock import ms
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.models import FIRST_STEP, NEXT_STEP, Profile
from horologe_common.status import Status
from horologe_common.wire import Dispatch, Infer, ModelReport, Outcome, StreamStep, Unload
from horologe_controller.core.controller import Controller
from horologe_controller.schedulers import SCHEDULERS

TEXT = a_spec(streams=True, batched=False, batch_sizes=(NEXT_STEP, FIRST_STEP))
REPORT = ModelReport(TEXT, Profile({NEXT_STEP: ms(2), FIRST_STEP: ms(30)}, ms(5)))


def a_controller(scheduler: str = "horologe", workers: tuple[str, ...] = (WORKER, OTHER)) -> Controller:
    controller = a_new_controller(scheduler=scheduler, workers=len(workers), preload=True)
    for worker in workers:
        register(controller, REPORT, worker=worker, resident=("sum/1",))
    controller.out.clear()
    return controller


def step(controller: Controller, number: int, worker: str = OTHER, stream: int = 1, **fields: Any) -> None:
    submit(controller, 10 * stream + number, step=StreamStep(stream, number, worker if number > 1 else ""), **fields)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_later_steps_run_on_their_share_without_inputs(scheduler: str) -> None:
    controller = a_controller(scheduler)
    for number in (2, 3):
        step(controller, number, now_ns=ms(50 * number))
        tick(controller, ms(50 * number + 20))  # a policy may wait for a larger batch
        (out,) = [out for out in controller.out if isinstance(out.message, Infer)]
        infer = out.message
        assert (out.to, infer.batch_size, infer.expected_ns) == (OTHER, NEXT_STEP, ms(2))
        assert [(row.stream, row.step) for row in infer.rows] == [(1, number)]
        assert not sent(controller, Dispatch)
        controller.out.clear()
        finish(controller, infer, ms(50 * number + 25), worker=OTHER)


def test_a_first_step_has_a_time_of_its_own() -> None:
    controller = a_controller()
    step(controller, 1)
    (infer,) = sent(controller, Infer)
    assert (infer.batch_size, infer.expected_ns) == (FIRST_STEP, ms(30))
    assert len(sent(controller, Dispatch)) == 1
    step(controller, 1, stream=2, budget_ms=20)
    (refused,) = sent(controller, Outcome)
    assert refused.status == Status.REFUSED


def test_steps_of_several_streams_run_one_after_the_other() -> None:
    controller = a_controller(workers=(WORKER,))
    for stream in range(1, 6):
        step(controller, 2, WORKER, stream)
    rows = []
    for turn in range(1, 6):
        for infer in sent(controller, Infer):
            rows.append([row.stream for row in infer.rows])
            finish(controller, infer, ms(3 * turn))
    assert sorted(rows) == [[1], [2], [3], [4], [5]]


def test_a_later_step_is_lost_with_its_worker() -> None:
    controller = a_controller()
    step(controller, 2, stream=1)
    for stream in range(2, 20):  # most of them wait in the queue of the share
        step(controller, 2, stream=stream)
    controller.handle(ms(1), "", PeerDisconnected(OTHER), ())
    tick(controller, ms(1))
    assert {outcome.status for outcome in sent(controller, Outcome, SELECTOR)} == {Status.LOST}
    assert controller.pending() == 0
    step(controller, 3)
    (lost,) = sent(controller, Outcome)
    assert (lost.status, lost.reason) == (Status.LOST, f"{OTHER} does not keep the state of the stream any more")


def test_later_steps_are_lost_with_the_process_of_their_model() -> None:
    controller = a_controller()
    for stream in range(1, 20):
        step(controller, 2, stream=stream)
    started = sent(controller, Infer, OTHER)
    controller.handle(ms(1), OTHER, Unload(1, 0, "sum/1"), ())
    for infer in started:
        finish(controller, infer, ms(1), Status.REFUSED, worker=OTHER, reason="its process has ended")
    assert {outcome.status for outcome in sent(controller, Outcome, SELECTOR)} == {Status.LOST}
    assert controller.pending() == 0


def test_a_first_step_of_a_lost_worker_runs_elsewhere() -> None:
    controller = a_controller()
    step(controller, 1)
    (out,) = [out for out in controller.out if isinstance(out.message, Infer)]
    controller.out.clear()
    controller.handle(ms(1), "", PeerDisconnected(out.to), ())
    tick(controller, ms(1))
    assert [other.to for other in controller.out if isinstance(other.message, Infer)] == [
        WORKER if out.to == OTHER else OTHER
    ]


def test_a_step_that_the_worker_reports_lost_ends_at_once() -> None:
    controller = a_controller()
    step(controller, 2)
    (infer,) = sent(controller, Infer)
    finish(controller, infer, ms(3), Status.LOST, worker=OTHER, reason="not here")
    (outcome,) = sent(controller, Outcome)
    assert (outcome.status, outcome.reason) == (Status.LOST, "not here")


def test_a_stream_that_workers_refuse_ends_with_the_reason_of_the_last_one() -> None:
    controller = a_controller(workers=(WORKER,))
    step(controller, 1)
    for number in range(1, 4):
        (infer,) = sent(controller, Infer)
        finish(controller, infer, ms(number), Status.REFUSED, reason=f"{number} streams are open")
    (outcome,) = sent(controller, Outcome)
    assert (outcome.status, outcome.reason) == (Status.REFUSED, "3 attempts failed: 3 streams are open")


@pytest.mark.parametrize("streams", [True, False])
def test_a_request_of_the_wrong_kind_is_invalid(streams: bool) -> None:
    controller = a_new_controller(preload=True)
    register(controller, REPORT if streams else ModelReport(a_spec(batch_sizes=(1,)), Profile({1: 1}, 1)))
    finish_loads(controller)
    fields: dict[str, Any] = {} if streams else {"step": StreamStep(1, 1)}
    submit(controller, 7, **fields)
    (outcome,) = sent(controller, Outcome)
    assert outcome.status == Status.INVALID_INPUT
