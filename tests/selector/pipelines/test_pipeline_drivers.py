"""Drivers of pipelines that hang, end, change or return a wrong result: every query still has one answer."""

from __future__ import annotations

from typing import Any

import pytest

from horologe_common.clock import ms, s
from horologe_common.status import Status
from horologe_common.wire import Answer, DriverReady, EndRun, Models, Ping, Pong, RunDone, StartRun, Tensor
from horologe_selector.driver import DriverEnded, KillDriver, PipelineDefinition, PipelinesRead
from selector.pipeline_desk import FOUR, PipelineDesk, a_pipeline


def test_a_driver_that_does_not_return_is_late_at_the_deadline() -> None:
    desk = PipelineDesk()
    first, second = desk.query(1), desk.query(2)
    desk.call(second, 1)
    desk.advance(ms(100))
    reasons = {answer.id: (answer.status, answer.reason) for answer in desk.take(Answer)}
    late, text = int(Status.LATE), "pipeline p: not finished by the deadline: "
    assert reasons == {
        1: (late, f"{text}the driver has not returned"),
        2: (late, f"{text}stage m has not answered"),
    }
    assert desk.take(EndRun) == [EndRun(first), EndRun(second)]
    assert desk.is_at_rest()


def test_a_driver_that_hangs_is_killed() -> None:
    desk = PipelineDesk()
    desk.query(budget_ns=s(5))
    desk.advance(ms(100))
    (ping,) = desk.take(Ping)[-1:]
    desk.receive("driver/p", Pong(ping.sent_ns, 0))
    for _ in range(15):
        desk.advance(ms(100))
    assert [message.pipeline for message in desk.take(KillDriver)] == ["p"]


def test_the_run_at_fault_fails_and_others_start_again_once() -> None:
    desk = PipelineDesk()
    guilty, innocent = desk.query(1), desk.query(2)
    desk.call(innocent, 1)
    desk.take(StartRun)
    desk.receive("driver/p", DriverEnded("p", "SIGSEGV", guilty))
    answer = desk.answer()
    assert (answer.id, answer.status) == (1, int(Status.FAILED))
    assert answer.reason == "pipeline p: the driver's process ended: SIGSEGV"
    waiting = desk.query(3)
    assert desk.take(StartRun) == []
    desk.receive("driver/p", DriverReady())
    assert [start.run for start in desk.take(StartRun)] == [innocent, waiting]
    desk.receive("driver/p", DriverEnded("p", "SIGSEGV", 0))
    assert desk.answer().id == 2
    desk.receive("driver/p", DriverReady())
    desk.take(StartRun)
    desk.finish(waiting)
    assert desk.answer().status == 0
    assert desk.is_at_rest()


def test_queries_wait_for_a_driver_that_ends_before_it_is_ready() -> None:
    desk = PipelineDesk()
    desk.receive("driver/p", DriverEnded("p", "SIGKILL"))
    desk.query(1)
    desk.take(Models)
    desk.receive("driver/p", DriverEnded("p", "exit code 3"))
    (announcement,) = desk.take(Models)
    reason = "its driver ended before it was ready: exit code 3"
    assert (announcement.models[0].state, announcement.models[0].reason) == ("LOADING", reason)
    desk.advance(ms(100))
    answer = desk.answer()
    assert (answer.status, answer.reason) == (
        Status.LATE,
        f"pipeline p: not finished by the deadline: {reason}",
    )
    waiting = desk.query(2)
    desk.receive("driver/p", DriverReady())
    desk.finish(waiting)
    assert desk.answer().status == 0
    assert desk.is_at_rest()


@pytest.mark.parametrize("definitions", [(), (a_pipeline("q"),)])
def test_a_pipeline_that_is_withdrawn_fails_its_queries(definitions: Any) -> None:
    desk = PipelineDesk()
    run = desk.query()
    desk.call(run, 1)
    desk.receive("drivers", PipelinesRead(definitions))
    assert desk.answer().status == Status.UNKNOWN_MODEL
    assert desk.is_at_rest()
    desk.now_ns += ms(200)
    desk.selector.tick(desk.now_ns)
    assert desk.selector.wakeup_ns() == desk.now_ns + ms(100), "only the next pings are due"


def test_a_changed_pipeline_starts_its_queries_again() -> None:
    desk = PipelineDesk()
    run = desk.query()
    desk.call(run, 1)
    changed = PipelineDefinition(a_pipeline("p").spec, "g.py")
    desk.receive("drivers", PipelinesRead((changed, a_pipeline("q"))))
    desk.take(StartRun)
    desk.receive("driver/p", DriverReady())
    assert [start.run for start in desk.take(StartRun)] == [run]
    desk.finish(run)
    assert desk.answer().status == 0


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ((Tensor("z", "FP32", (1, 1), 4),), "result: got ['z'], wanted ['y']"),
        ((Tensor("y", "FP32", (1,), 4),), "result: output 'y': shape: got [1], wanted [1, 1]"),
        ((Tensor("y", "INT32", (1, 1), 4),), "result: output 'y': datatype: got INT32, wanted FP32"),
    ],
)
def test_a_wrong_result_fails(outputs: Any, reason: str) -> None:
    desk = PipelineDesk()
    desk.receive("driver/p", RunDone(desk.query(), 0, "", outputs), [FOUR])
    answer = desk.answer()
    assert (answer.status, answer.reason) == (int(Status.FAILED), f"pipeline p: {reason}")
