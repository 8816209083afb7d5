"""Pipelines in the selector's core: deadlines of stages, failures, cancellation; the test plays drivers and models."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.builders import sent
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.status import Status
from horologe_common.wire import (
    Answer,
    CallDone,
    Cancel,
    Dispatch,
    DriverReady,
    EndRun,
    ModelCall,
    Models,
    Outcome,
    Query,
    RunDone,
    Ship,
    Shipped,
    StartRun,
    Submit,
    Tensor,
)
from horologe_selector.core.selector import Selector
from horologe_selector.driver import DriverEnded, PipelinesRead
from horologe_selector.settings import SelectorSettings
from selector.pipeline_desk import INPUTS, OUTPUTS, RESULT, ROW, SELECTOR, PipelineDesk, a_pipeline
from selector.selector_harness import CONTROLLER, FRONTEND, WORKER, SelectorHarness


def test_a_query_passes_driver_and_models() -> None:
    desk = PipelineDesk()
    run = desk.query(client="ann")
    (start,) = desk.take(StartRun)
    assert (start.run, start.inputs) == (run, INPUTS)
    desk.call(run, 1)
    (submit,) = desk.take(Submit)
    assert (submit.model, submit.holder, submit.application, submit.client) == ("m/1", SELECTOR, "p", "ann")
    desk.receive(CONTROLLER, Dispatch(9, WORKER, (submit.input_id,)))
    (ship,) = desk.take(Ship)
    assert (ship.items, ship.missing) == ((Shipped(submit.input_id, INPUTS),), ())
    desk.advance(ms(3))
    desk.outputs(submit.id)
    (done,) = desk.take(CallDone)
    assert (done.call, done.status, done.outputs) == (1, 0, OUTPUTS)
    desk.finish(run)
    answer = desk.answer()
    assert (answer.id, answer.status, answer.model, answer.outputs) == (1, 0, "p", RESULT)
    assert desk.is_at_rest()


def test_a_stage_leaves_time_for_the_stages_behind_it() -> None:
    desk = PipelineDesk()
    for _ in range(3):
        run = desk.query()
        for call, parents in ((1, ()), (2, (1,))):
            desk.call(run, call, parents=parents)
            (submit,) = desk.take(Submit)
            desk.advance(ms(20))
            desk.outputs(submit.id)
        desk.finish(run)
    run = desk.query(budget_ns=ms(60))
    desk.call(run, 1)
    (first,) = desk.take(Submit)
    assert ms(60 - 20 - 2) <= first.budget_ns <= ms(60 - 20)
    desk.outputs(first.id)
    desk.call(run, 2, parents=(1,))
    (second,) = desk.take(Submit)
    assert ms(58) <= second.budget_ns <= ms(60)


def test_without_drop_a_stage_has_the_deadline_of_its_query() -> None:
    desk = PipelineDesk(pipeline_drop=False)
    for _ in range(2):
        run = desk.query()
        desk.call(run, 1)
        (submit,) = desk.take(Submit)
        assert submit.budget_ns >= ms(98)
        desk.outputs(submit.id)
        desk.advance(ms(30))
        desk.finish(run)


def test_a_query_that_cannot_make_it_is_dropped_at_the_first_stage() -> None:
    desk = PipelineDesk()
    run = desk.query()
    desk.call(run, 1)
    desk.outputs(desk.take(Submit)[0].id)
    desk.advance(ms(50))
    desk.finish(run)
    run = desk.query(budget_ns=ms(30))
    desk.take(CallDone)
    desk.call(run, 1)
    assert desk.take(Submit) == []
    (done,) = desk.take(CallDone)
    assert done.status == Status.REFUSED
    assert done.reason.startswith("stage m: ")
    assert "and the stages after it need 50.0 ms" in done.reason


@pytest.mark.parametrize("status", [Status.REFUSED, Status.LATE, Status.LOST, Status.FAILED])
def test_a_failed_call_names_its_stage(status: Status) -> None:
    desk = PipelineDesk()
    run = desk.query()
    desk.call(run, 1, place=5)
    desk.call(run, 2, place=9)
    submits = desk.take(Submit)
    desk.receive(CONTROLLER, Outcome(submits[1].id, int(status), "why"))
    (done,) = desk.take(CallDone)
    assert (done.call, done.status, done.reason) == (2, int(status), "stage m#2: why")
    desk.receive("driver/p", RunDone(run, int(status), done.reason))
    answer = desk.answer()
    assert (answer.status, answer.reason) == (int(status), "pipeline p: stage m#2: why")
    assert desk.take(Cancel) == [Cancel((submits[0].id,))]  # the rest of the query stops
    assert desk.is_at_rest()


@pytest.mark.parametrize(
    ("model", "inputs", "reason"),
    [
        ("n", INPUTS, "model 'n' is not served"),
        ("m", (Tensor("z", "FP32", (1, 4), 16),), "inputs: got ['z'], wanted"),
        ("m", (Tensor(INPUTS[0].name, "INT32", INPUTS[0].shape, len(ROW)),), "datatype: got INT32, wanted FP32"),
        ("p", INPUTS, "pipelines call each other: p -> p"),
    ],
)
def test_an_invalid_call_fails_with_a_reason(model: str, inputs: Any, reason: str) -> None:
    desk = PipelineDesk()
    run = desk.query()
    desk.receive("driver/p", ModelCall(run, 1, model, 3, (), inputs), [bytes(inputs[0].nbytes)])
    (done,) = desk.take(CallDone)
    assert done.status == Status.FAILED
    assert reason in done.reason


def test_a_cycle_of_pipelines_is_found() -> None:
    desk = PipelineDesk()
    outer = desk.query()
    desk.call(outer, 1, "q")
    inner = desk.take(StartRun)[-1].run
    assert inner != outer
    desk.call(inner, 1, "p", driver="q")
    (done,) = desk.take(CallDone)
    assert done.reason == "stage p: pipelines call each other: p -> q -> p"
    desk.receive("driver/q", RunDone(inner, done.status, done.reason))
    (failed,) = desk.take(CallDone)
    assert (failed.run, failed.reason) == (outer, f"stage q: pipeline q: {done.reason}")


def test_a_frontend_gets_an_announcement_once_the_pipelines_are_known() -> None:
    selector = Selector(SELECTOR, SelectorSettings(pipelines="folder"), random.Random(1))
    selector.handle(0, "", PeerConnected(FRONTEND), ())
    selector.tick(0)
    assert not [out for out in selector.out if isinstance(out.message, Models)]
    selector.handle(0, "drivers", PipelinesRead(()), ())
    selector.tick(0)
    assert [out.to for out in selector.out if isinstance(out.message, Models)] == [FRONTEND]


def test_a_pipeline_can_call_a_pipeline() -> None:
    desk = PipelineDesk()
    outer = desk.query()
    desk.call(outer, 1, "q")
    inner = desk.take(StartRun)[-1].run
    desk.finish(inner, "q")
    (done,) = desk.take(CallDone)
    assert (done.run, done.outputs) == (outer, RESULT)
    desk.finish(outer)
    assert desk.answer().status == 0
    assert desk.is_at_rest()


@pytest.mark.parametrize("message", [Cancel((1,)), PeerDisconnected(FRONTEND)])
def test_a_query_that_is_cancelled_or_whose_frontend_is_lost_stops(message: Any) -> None:
    desk = PipelineDesk()
    outer = desk.query()
    desk.call(outer, 1)
    desk.call(outer, 2, "q")
    (submit,) = desk.take(Submit)
    inner = desk.take(StartRun)[-1].run
    desk.receive(FRONTEND, message)
    assert desk.take(Cancel) == [Cancel((submit.id,))]
    assert sorted(desk.take(EndRun), key=lambda end: end.run) == [EndRun(outer), EndRun(inner)]
    assert desk.take(Answer) == []
    assert desk.is_at_rest()
    desk.call(outer, 3)  # a call that was on its way
    desk.finish(outer)
    assert desk.is_at_rest()


def test_runs_and_intermediates_are_bounded() -> None:
    desk = PipelineDesk(pipeline_runs=2, pipeline_staging_bytes=len(ROW))
    first, _ = desk.query(1), desk.query(2)
    desk.receive(FRONTEND, Query(3, "p/1", ms(100), 1))
    assert "2 queries of pipelines are open" in desk.answer().reason
    desk.call(first, 1)
    desk.call(first, 2)
    (done,) = desk.take(CallDone)
    assert (done.call, done.status) == (2, int(Status.REFUSED))


def test_inputs_that_are_missing_lose_the_query() -> None:
    desk = PipelineDesk()
    desk.receive(FRONTEND, Query(1, "p/1", ms(100), 1))
    run = desk.take(Dispatch)[0].action_id
    desk.receive(FRONTEND, Ship(run, FRONTEND, (), (1,)))
    assert desk.answer().status == Status.LOST


def test_a_new_controller_gets_the_calls_again_but_not_the_queries() -> None:
    desk = PipelineDesk()
    desk.call(desk.query(), 1)
    (submit,) = desk.take(Submit)
    desk.receive("", PeerDisconnected(CONTROLLER))
    desk.receive("", PeerConnected("controller/0#2"))
    (again,) = desk.take(Submit)
    assert (again.id, again.model) == (submit.id, "m/1")


events = st.tuples(
    st.sampled_from(["call", "nested", "outputs", "refuse", "done", "cancel", "end", "ready", "wait", "query"]),
    st.integers(0, 5),
)


@settings(deadline=None, max_examples=200)
@given(st.lists(events, max_size=60))
def test_each_query_has_one_answer_whatever_happens(sequence: list[tuple[str, int]]) -> None:
    desk = PipelineDesk()
    queries: dict[int, bool] = {}
    cancelled: set[int] = set()
    runs: list[tuple[int, str]] = []
    submits: list[int] = []
    for calls, (kind, index) in enumerate(sequence, 1):
        runs += [(out.message.run, out.to[-1]) for out in desk.selector.out if isinstance(out.message, StartRun)]
        submits += [submit.id for submit in desk.take(Submit)]
        desk.take(StartRun)
        run, driver = runs[-1 - index % len(runs)] if runs else (999, "p")
        match kind:
            case "query":
                queries[calls] = True
                desk.query(calls, budget_ns=ms(20 + 10 * index))
            case "call" | "nested":
                desk.call(run, calls, "m" if kind == "call" else "q", index + 1, driver=driver)
            case "outputs" if submits:
                desk.outputs(submits[-1 - index % len(submits)])
            case "refuse" if submits:
                desk.receive(CONTROLLER, Outcome(submits[-1 - index % len(submits)], int(Status.REFUSED), "why"))
            case "done":
                desk.finish(run, driver)
            case "cancel" if queries:
                number = list(queries)[-1 - index % len(queries)]
                cancelled.add(number)
                desk.receive(FRONTEND, Cancel((number,)))
            case "end":
                desk.receive(f"driver/{driver}", DriverEnded(driver, "SIGKILL", run if index % 2 else 0))
            case "ready":
                desk.receive(f"driver/{driver}", DriverReady())
            case "wait":
                desk.advance(ms(index))
    desk.advance(s(1))
    desk.advance(s(1))
    answered = [answer.id for answer in desk.take(Answer)]
    assert len(answered) == len(set(answered))
    assert set(queries) - cancelled <= set(answered) <= set(queries)
    assert desk.is_at_rest()


def test_an_application_of_a_pipeline_is_refused_until_the_folder_has_been_read() -> None:
    harness = SelectorHarness("m", pipelines="folder")
    harness.declare_application("a", ("p",), task="any", policy="static")
    harness.send(FRONTEND, Query(1, "", ms(100), 1, application="a"))
    (answer,) = sent(harness.selector, Answer, FRONTEND)
    assert answer.status == Status.REFUSED
    assert "model 'p' is not known yet: the selector has not read its pipelines" in answer.reason
    harness.send("drivers", PipelinesRead((a_pipeline("p"),)))
    harness.send(FRONTEND, Query(2, "", ms(100), 1, application="a"))
    assert len(sent(harness.selector, Dispatch, FRONTEND)) == 1, "the pipeline asks for its inputs"
    harness.send("drivers", PipelinesRead(()))
    harness.send(FRONTEND, Query(3, "", ms(100), 1, application="a"))
    answers = {answer.id: answer.status for answer in sent(harness.selector, Answer, FRONTEND)}
    assert answers[3] == Status.UNKNOWN_MODEL
