"""Pipelines in the selector's core: deadlines of stages, failures, cancellation; the test plays drivers and models."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import a_spec, a_state
from horologe_common.clock import ms, s
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected
from horologe_common.models import ModelSpec, TensorSpec
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
    Outputs,
    Ping,
    Pong,
    QueriesArrived,
    Query,
    RowStatus,
    RunDone,
    Sample,
    Ship,
    Shipped,
    StartRun,
    Submit,
    Tensor,
)
from horologe_selector.core.selector import Selector
from horologe_selector.driver import DriverEnded, KillDriver, PipelineDefinition, PipelinesRead
from horologe_selector.settings import SelectorSettings

FRONTEND, CONTROLLER, WORKER, SELECTOR = "frontend/0#1", "controller/0#1", "worker/0#1", "selector/0#1"
MODEL = a_spec("m")
ROW = np.ones((1, *MODEL.inputs[0].shape[1:]), "f4").tobytes()
INPUTS = (Tensor(MODEL.inputs[0].name, "FP32", (1, *MODEL.inputs[0].shape[1:]), len(ROW)),)
OUTPUTS = (Tensor(MODEL.outputs[0].name, "FP32", (1, *MODEL.outputs[0].shape[1:]), 4),)
RESULT = (Tensor("y", "FP32", (1, 1), 4),)
FOUR = bytes(4)


def a_pipeline(name: str) -> PipelineDefinition:
    sides = (TensorSpec(INPUTS[0].name, "FP32", INPUTS[0].shape),), (TensorSpec("y", "FP32", (1, 1)),)
    return PipelineDefinition(ModelSpec(name, "1", "pipeline", *sides, (1,), False, ms(100), content_hash=name), "f.py")


class Desk:
    """A selector with two pipelines, `p` and `q`, and a model `m`."""

    def __init__(self, **fields: Any) -> None:
        self.now_ns = s(1000)
        self.selector = Selector(SELECTOR, SelectorSettings(**fields), random.Random(1))
        self.sent: list[Out] = []
        for address in (FRONTEND, CONTROLLER, WORKER):
            self.receive("", PeerConnected(address))
        self.receive(CONTROLLER, Models(0, (a_state(MODEL),), number=1))
        self.receive("drivers", PipelinesRead((a_pipeline("p"), a_pipeline("q"))))
        for name in "pq":
            self.receive(f"driver/{name}", DriverReady())
        self.sent.clear()

    def receive(self, sender: str, message: Any, buffers: Any = ()) -> None:
        """Give the selector a message, and those that it sends itself."""
        mailbox = [(sender, message, buffers)]
        while mailbox:
            for item in mailbox:
                self.selector.handle(self.now_ns, *item)
            self.selector.tick(self.now_ns)
            out, self.selector.out = self.selector.out, []
            mailbox = [(SELECTOR, sent.message, sent.buffers) for sent in out if sent.to == SELECTOR]
            self.sent += [sent for sent in out if sent.to != SELECTOR]
        self.selector.check()

    def advance(self, ns: int) -> None:
        self.now_ns += ns
        self.receive("", None)

    def take(self, kind: type) -> list[Any]:
        """Return the messages of a type that were sent, and forget them."""
        taken = [out.message for out in self.sent if type(out.message) is kind]
        self.sent = [out for out in self.sent if type(out.message) is not kind]
        return taken

    def query(self, number: int = 1, model: str = "p/1", budget_ns: int = ms(100)) -> int:
        """Send a query, ship its inputs, and return its run; 0 if it is refused."""
        self.receive(FRONTEND, Query(number, model, budget_ns, 1))
        if not (dispatches := self.take(Dispatch)):
            return 0
        (dispatch,) = dispatches
        assert (dispatch.worker, dispatch.input_ids) == (SELECTOR, (number,))
        run: int = dispatch.action_id
        self.receive(FRONTEND, Ship(run, FRONTEND, (Shipped(number, INPUTS),)), [ROW])
        return run

    def call(self, run: int, call: int, model: str = "m", place: int = 0, parents: Any = (), driver: str = "p") -> None:
        message = ModelCall(run, call, model, place or call, parents, INPUTS)
        self.receive(f"driver/{driver}", message, [ROW])

    def outputs(self, submit: int) -> None:
        message = Outputs(1, (RowStatus(submit, 1),), OUTPUTS, "m/1", 1, 0, ms(2))
        self.receive(WORKER, message, [FOUR])

    def finish(self, run: int, driver: str = "p") -> None:
        self.receive(f"driver/{driver}", RunDone(run, 0, "", RESULT), [FOUR])

    def answer(self) -> Answer:
        (answer,) = self.take(Answer)
        assert isinstance(answer, Answer)
        return answer

    def is_at_rest(self) -> bool:
        pipelines = self.selector.pipelines
        return not len(pipelines.runs) and not pipelines.staging.ids() and not list(self.selector.inflight.waiters())


def test_a_query_passes_driver_and_models() -> None:
    desk = Desk()
    run = desk.query()
    (start,) = desk.take(StartRun)
    assert (start.run, start.inputs) == (run, INPUTS)
    desk.call(run, 1)
    (submit,) = desk.take(Submit)
    assert (submit.model, submit.holder, submit.application) == ("m/1", SELECTOR, "p")
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
    desk = Desk()
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
    desk = Desk(pipeline_drop=False)
    for _ in range(2):
        run = desk.query()
        desk.call(run, 1)
        (submit,) = desk.take(Submit)
        assert submit.budget_ns >= ms(98)
        desk.outputs(submit.id)
        desk.advance(ms(30))
        desk.finish(run)


def test_a_query_that_cannot_make_it_is_dropped_at_the_first_stage() -> None:
    desk = Desk()
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
    desk = Desk()
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
    desk = Desk()
    run = desk.query()
    desk.receive("driver/p", ModelCall(run, 1, model, 3, (), inputs), [bytes(inputs[0].nbytes)])
    (done,) = desk.take(CallDone)
    assert done.status == Status.FAILED
    assert reason in done.reason


def test_a_cycle_of_pipelines_is_found() -> None:
    desk = Desk()
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
    desk = Desk()
    outer = desk.query()
    desk.call(outer, 1, "q")
    inner = desk.take(StartRun)[-1].run
    desk.finish(inner, "q")
    (done,) = desk.take(CallDone)
    assert (done.run, done.outputs) == (outer, RESULT)
    desk.finish(outer)
    assert desk.answer().status == 0
    assert desk.is_at_rest()


def test_cancel_stops_the_rest_of_a_query() -> None:
    desk = Desk()
    run = desk.query()
    desk.call(run, 1)
    (submit,) = desk.take(Submit)
    desk.receive(FRONTEND, Cancel((1,)))
    assert desk.take(Cancel) == [Cancel((submit.id,))]
    assert desk.take(EndRun) == [EndRun(run)]
    assert desk.take(Answer) == []
    assert desk.is_at_rest()
    desk.call(run, 2)  # a call that was on its way
    desk.finish(run)
    assert desk.is_at_rest()


def test_a_lost_frontend_stops_its_queries() -> None:
    desk = Desk()
    run = desk.query()
    desk.call(run, 1, "q")
    desk.receive("", PeerDisconnected(FRONTEND))
    assert len(desk.take(EndRun)) == 2
    assert desk.is_at_rest()


def test_a_driver_that_does_not_return_is_late_at_the_deadline() -> None:
    desk = Desk()
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
    desk = Desk()
    desk.query(budget_ns=s(5))
    desk.advance(ms(100))
    (ping,) = desk.take(Ping)[-1:]
    desk.receive("driver/p", Pong(ping.sent_ns, 0))
    for _ in range(15):
        desk.advance(ms(100))
    assert [message.pipeline for message in desk.take(KillDriver)] == ["p"]


def test_the_run_at_fault_fails_and_others_start_again_once() -> None:
    desk = Desk()
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


def test_a_driver_that_ends_before_it_is_ready_makes_its_pipeline_unavailable() -> None:
    desk = Desk()
    desk.receive("driver/p", DriverEnded("p", "SIGKILL"))
    waiting = desk.query(1)
    desk.take(Models)
    desk.receive("driver/p", DriverEnded("p", "exit code 3"))
    (announcement,) = desk.take(Models)
    assert announcement.models[0].state == "UNAVAILABLE"
    assert announcement.models[0].reason == "its driver ended before it was ready: exit code 3"
    assert desk.answer().status == Status.FAILED
    desk.receive("driver/p", DriverReady())
    desk.finish(waiting)
    desk.finish(desk.query(2))
    assert desk.answer().status == 0
    assert desk.is_at_rest()


@pytest.mark.parametrize("definitions", [(), (a_pipeline("q"),)])
def test_a_pipeline_that_is_withdrawn_fails_its_queries(definitions: Any) -> None:
    desk = Desk()
    run = desk.query()
    desk.call(run, 1)
    desk.receive("drivers", PipelinesRead(definitions))
    assert desk.answer().status == Status.UNKNOWN_MODEL
    assert desk.is_at_rest()


def test_a_changed_pipeline_starts_its_queries_again() -> None:
    desk = Desk()
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
    desk = Desk()
    desk.receive("driver/p", RunDone(desk.query(), 0, "", outputs), [FOUR])
    answer = desk.answer()
    assert (answer.status, answer.reason) == (int(Status.FAILED), f"pipeline p: {reason}")


def test_runs_and_intermediates_are_bounded() -> None:
    desk = Desk(pipeline_runs=2, pipeline_staging_bytes=len(ROW))
    first, _ = desk.query(1), desk.query(2)
    desk.receive(FRONTEND, Query(3, "p/1", ms(100), 1))
    assert "2 queries of pipelines are open" in desk.answer().reason
    desk.call(first, 1)
    desk.call(first, 2)
    (done,) = desk.take(CallDone)
    assert (done.call, done.status) == (2, int(Status.REFUSED))


def test_the_controller_learns_of_all_queries_also_of_refused_ones() -> None:
    desk = Desk(pipeline_runs=2)
    for number in range(1, 4):
        desk.receive(FRONTEND, Query(number, "p/1", ms(100), 1))
        assert desk.take(QueriesArrived) == [QueriesArrived((("p", 1),))]
    assert desk.answer().status == Status.REFUSED
    desk.receive(FRONTEND, Query(4, "p/1", ms(100), 1, best_effort=True))
    desk.receive(FRONTEND, Query(5, "m/1", ms(100), 1))
    desk.receive(CONTROLLER, PeerDisconnected(CONTROLLER))
    desk.receive(FRONTEND, Query(6, "p/1", ms(100), 1))
    desk.receive("", PeerConnected(CONTROLLER))
    assert not desk.take(QueriesArrived)


def test_metrics_count_calls_and_drops_by_stage() -> None:
    desk = Desk()
    run = desk.query()
    desk.call(run, 1)
    desk.call(run, 2, "n")
    desk.outputs(desk.take(Submit)[0].id)
    desk.selector.refresh_stats()
    values = {key: value for key, value in desk.selector.stats.values.items() if key[1:2] == ("p",)}
    assert values["horologe_pipeline_calls_total", "p", "m"] == 1
    assert values["horologe_pipeline_drops_total", "p", "n"] == 1
    assert values["horologe_pipeline_open", "p"] == 1


def test_device_time_counts_by_what_became_of_the_query() -> None:
    desk = Desk()
    for number, answered in ((1, True), (2, False)):
        run = desk.query(number)
        desk.call(run, 1)
        rows = (RowStatus(desk.take(Submit)[0].id, 1),)
        desk.receive(WORKER, Outputs(number, rows, OUTPUTS, "m/1", 4, s(1), s(1) + ms(8)), [FOUR])  # a batch of four
        if answered:
            desk.finish(run)
        else:
            desk.receive("driver/p", RunDone(run, int(Status.REFUSED), "no"))
    desk.selector.refresh_stats()
    values = desk.selector.stats.values
    assert values["horologe_pipeline_device_seconds_total", "p", "answered"] == 0.002
    assert values["horologe_pipeline_device_seconds_total", "p", "failed"] == 0.002


def test_the_profiler_gets_samples_of_intermediates() -> None:
    desk = Desk()
    desk.receive("", PeerConnected("profiler/0#1"))
    for _ in range(3):
        run = desk.query()
        desk.call(run, 1)
        desk.outputs(desk.take(Submit)[0].id)
        desk.finish(run)
    assert desk.take(Sample) == [Sample("m/1", INPUTS, 1, 0, "p")]
    desk.receive("", PeerDisconnected("profiler/0#1"))
    desk.advance(s(2))
    desk.call(desk.query(), 1)
    desk.outputs(desk.take(Submit)[0].id)
    assert desk.take(Sample) == []


def test_inputs_that_are_missing_lose_the_query() -> None:
    desk = Desk()
    desk.receive(FRONTEND, Query(1, "p/1", ms(100), 1))
    run = desk.take(Dispatch)[0].action_id
    desk.receive(FRONTEND, Ship(run, FRONTEND, (), (1,)))
    assert desk.answer().status == Status.LOST


def test_a_new_controller_gets_the_calls_again_but_not_the_queries() -> None:
    desk = Desk()
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
    desk = Desk()
    queries: dict[int, bool] = {}
    cancelled: set[int] = set()
    runs: list[tuple[int, str]] = []
    submits: list[int] = []
    for calls, (kind, index) in enumerate(sequence, 1):
        runs += [(out.message.run, out.to[-1]) for out in desk.sent if isinstance(out.message, StartRun)]
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
