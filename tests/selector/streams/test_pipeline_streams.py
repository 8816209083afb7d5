"""Pipelines that yield, and calls of pipelines that are streams, in the core of the selector."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.builders import a_spec, a_state
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Answer,
    CallDone,
    CallTaken,
    Cancel,
    Dispatch,
    DriverReady,
    EndRun,
    EndStreams,
    ItemsTaken,
    ModelCall,
    Models,
    Outputs,
    Query,
    RowStatus,
    RunDone,
    RunItem,
    Ship,
    Shipped,
    StartRun,
    StreamLimits,
    Submit,
)
from horologe_selector.driver import DriverEnded, PipelinesRead
from selector.pipeline_desk import FOUR, INPUTS, OUTPUTS, RESULT, ROW, PipelineDesk, a_pipeline
from selector.selector_harness import CONTROLLER, FRONTEND, WORKER

TEXT = a_spec("text", streams=True, batched=False, batch_sizes=(1, 2))


class YieldingDesk(PipelineDesk):
    """A selector with the pipeline `p`, which yields, and the model `text`, which streams."""

    def __init__(self) -> None:
        super().__init__()
        self.send(CONTROLLER, Models(0, (a_state(a_spec("m")), a_state(TEXT)), number=9))
        yielding = msgspec.structs.replace(a_pipeline("p").spec, streams=True)
        self.receive("drivers", PipelinesRead((msgspec.structs.replace(a_pipeline("p"), spec=yielding),)))
        self.receive("driver/p", DriverReady())
        self.selector.out.clear()

    def open(self, **limits: int) -> int:
        """Open a stream of the pipeline, and return its run."""
        self.receive(FRONTEND, Query(1, "p/1", s(1), 1, stream=StreamLimits(**limits)))
        (dispatch,) = self.take(Dispatch)
        self.receive(FRONTEND, Ship(dispatch.action_id, FRONTEND, (Shipped(1, INPUTS),)), [ROW])
        (start,) = self.take(StartRun)
        return int(start.run)

    def driver(self, message: Any, *buffers: bytes) -> None:
        self.receive("driver/p", message, buffers)

    def answers(self) -> list[tuple[str, bool]]:
        return [(Status(answer.status).name, answer.more) for answer in self.take(Answer)]


@pytest.fixture
def desk() -> YieldingDesk:
    return YieldingDesk()


def test_items_of_a_driver_and_its_end(desk: YieldingDesk) -> None:
    run = desk.open()
    desk.driver(RunItem(run, RESULT), FOUR)
    desk.driver(RunItem(run, RESULT), FOUR)
    desk.receive(FRONTEND, ItemsTaken(1, 2))
    assert desk.take(ItemsTaken) == [ItemsTaken(run, 2)]
    desk.driver(RunDone(run))
    assert desk.answers() == [("OK", True), ("OK", True), ("OK", False)]
    assert not desk.selector.streams


def test_a_late_item_ends_the_run(desk: YieldingDesk) -> None:
    run = desk.open(gap_ns=ms(50))
    desk.driver(RunItem(run, RESULT), FOUR)
    desk.advance(ms(50))
    assert desk.answers() == [("OK", True), ("LATE", False)]
    assert desk.take(EndRun) == [EndRun(run)]


def test_a_driver_that_ends_is_not_started_again_after_an_item(desk: YieldingDesk) -> None:
    run = desk.open()
    desk.driver(RunItem(run, RESULT), FOUR)
    desk.receive("drivers", DriverEnded("p", "SIGKILL", 0))
    assert desk.answers() == [("OK", True), ("LOST", False)]


def test_a_wrong_item_fails(desk: YieldingDesk) -> None:
    run = desk.open()
    desk.driver(RunItem(run, OUTPUTS[:0]))
    assert desk.answers() == [("FAILED", False)]


def begin_call(desk: YieldingDesk, run: int) -> Submit:
    desk.driver(ModelCall(run, 1, "text", 3, (), INPUTS, True), ROW)
    (submit,) = desk.take(Submit)
    return submit  # type: ignore[no-any-return]


def send_item(desk: YieldingDesk, submit: Submit, *, more: bool = True) -> None:
    row = RowStatus(submit.id, 1, more=more)
    desk.receive(WORKER, Outputs(1, (row,), OUTPUTS, "text/1", 1), [FOUR])


def test_a_call_that_is_a_stream(desk: YieldingDesk) -> None:
    run = desk.open()
    first = begin_call(desk, run)
    assert (first.holder, first.application) == ("selector/0#1", "p")
    send_item(desk, first)
    (second,) = desk.take(Submit)
    assert second.step.worker == WORKER
    desk.driver(CallTaken(run, 1, 1))
    send_item(desk, second, more=False)
    assert [(done.call, done.status, done.more) for done in desk.take(CallDone)] == [(1, 0, True), (1, 0, False)]
    desk.driver(RunDone(run, outputs=RESULT), FOUR)
    assert desk.answers() == [("OK", False)]


@pytest.mark.parametrize("end", ["close", "cancel", "lose"])
def test_the_stream_of_a_call_ends_with_it(desk: YieldingDesk, end: str) -> None:
    run = desk.open()
    send_item(desk, begin_call(desk, run))
    if end == "close":
        desk.driver(CallTaken(run, 1, -1))
    elif end == "cancel":
        desk.receive(FRONTEND, Cancel((1,)))
    else:
        desk.receive("", PeerDisconnected(WORKER))
        assert [done.status for done in desk.take(CallDone)] == [0, Status.LOST]
    assert len(desk.take(EndStreams)) == 1
    assert len(desk.selector.streams) == (end != "cancel")


@pytest.mark.parametrize(("model", "stream"), [("m", True), ("text", False), ("p", True)])
def test_a_call_of_the_wrong_kind_fails(desk: YieldingDesk, model: str, stream: bool) -> None:
    run = desk.open()
    desk.driver(ModelCall(run, 1, model, 3, (), INPUTS, stream), ROW)
    (done,) = desk.take(CallDone)
    assert done.status == Status.FAILED
