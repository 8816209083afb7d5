"""Applications at the frontend: what is asked of the selector, what is answered without it, feedback."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import a_spec, a_state, a_tensor, sent, some_bytes
from horologe_common.applications import Application
from horologe_common.clock import ms, s
from horologe_common.core import Gone, Joined
from horologe_common.frames import array_of
from horologe_common.models import TensorSpec
from horologe_common.status import Status
from horologe_common.wire import (
    Acknowledged,
    Answer,
    ApplicationInfo,
    Applications,
    ApplicationState,
    Cancel,
    Declare,
    Dispatch,
    Feedback,
    ModelInfo,
    Models,
    Observation,
    Ping,
    Pong,
    Predict,
    Query,
    Release,
    Rollback,
    Sample,
    Ship,
    Tensor,
    Withdraw,
)
from horologe_frontend.core import Frontend
from horologe_frontend.settings import Settings

CLIENT, SELECTOR, CONTROLLER, WORKER = "client/aa", "selector/0#1", "controller/0#1", "worker/0#1"
NOW = s(100)
SAFE = Application("digits", ("one", "two/1"), slo_ms=40, default=7.0)
BARE = Application("bare", ("one",), slo_ms=40)
SPECS = (a_spec("one"), a_spec("two", batch_sizes=(1, 2)))


def digest(header: bytes, buffers: Any) -> bytes:
    return bytes([sum(header) % 256]) + bytes(sum(map(len, buffers)) for _ in range(3))


def a_frontend(*applications: Application, specs: Any = SPECS, **settings: Any) -> Frontend:
    """Connected to everything; two models and these applications known."""
    frontend = Frontend("frontend/0#1", Settings(**settings), digest)
    for address in (SELECTOR, CONTROLLER, WORKER):
        frontend.handle(0, address, Joined(address), ())
    frontend.handle(0, CONTROLLER, Models(0, tuple(map(a_state, specs))), ())
    announce(frontend, *(applications or (SAFE, BARE)))
    return frontend


def announce(frontend: Frontend, *applications: Application) -> None:
    frontend.handle(0, SELECTOR, Applications(0, tuple(ApplicationState(one, 1) for one in applications)), ())


def ask(
    frontend: Frontend, application: str = "digits", rows: int = 1, now_ns: int = NOW, **fields: Any
) -> Query | None:
    """The query that an application's request becomes."""
    predict = Predict(7, "", "", fields.pop("budget_ns", 0), (a_tensor(rows),), application=application, **fields)
    frontend.handle(now_ns, CLIENT, predict, [some_bytes(rows)])
    frontend.tick(now_ns)
    frontend.check()
    return next(iter(sent(frontend, Query, SELECTOR)), None)


def the_answer(frontend: Frontend) -> Answer:
    (answer,) = sent(frontend, Answer, CLIENT)
    return answer


# asking


def test_a_request_of_an_application_is_a_query_without_a_model() -> None:
    query = ask(a_frontend(), rows=2, context="user-1")
    assert query is not None
    assert (query.model, query.application, query.context, query.rows) == ("", "digits", "user-1", 2)
    assert query.input_hash
    assert (query.budget_ns, query.best_effort) == (ms(38), False), "what is left before the default is answered"


@pytest.mark.parametrize(("budget_ms", "wanted_ms"), [(0, 40), (9, 9)])
def test_the_clients_deadline_goes_before_the_applications(budget_ms: int, wanted_ms: int) -> None:
    query = ask(a_frontend(), "bare", budget_ns=ms(budget_ms))
    assert query is not None
    assert query.budget_ns == ms(wanted_ms)


def test_a_model_asked_on_behalf_of_an_application_is_that_model() -> None:
    frontend = a_frontend()
    frontend.handle(NOW, CLIENT, Predict(7, "one", "", 0, (a_tensor(),), application="digits"), [some_bytes()])
    (query,) = sent(frontend, Query)
    assert (query.model, query.application, query.input_hash) == ("one/1", "digits", b"")


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"application": "nope"}, Status.UNKNOWN_MODEL, ("application", "'nope'")),
        ({"rows": 3}, Status.INVALID_INPUT, ("3", "1 to 2")),
        ({"context": "c" * 129}, Status.INVALID_INPUT, ("context", "129", "128")),
        ({"outputs": ("y",)}, Status.INVALID_INPUT, ("'y'", "prediction", "confidence", "defaulted")),
    ],
)
def test_what_is_wrong_is_said_at_once(fields: Any, status: Status, words: tuple[str, ...]) -> None:
    frontend = a_frontend()
    assert ask(frontend, **fields) is None
    answer = the_answer(frontend)
    assert answer.status == status
    assert all(word in answer.reason for word in words), answer.reason


def test_before_the_selector_has_announced_itself_nothing_is_unknown() -> None:
    frontend = Frontend("frontend/0#1", Settings(), digest)
    frontend.handle(0, CONTROLLER, Models(0, tuple(map(a_state, SPECS))), ())
    ask(frontend)
    answer = the_answer(frontend)
    assert (answer.status, answer.retry_after_ns > 0) == (Status.REFUSED, True)


def test_models_that_take_different_inputs_cannot_be_one_application() -> None:
    odd = a_spec("odd")
    odd = type(odd)("odd", "1", "emulated", (TensorSpec("x", "FP32", (-1, 5)),), odd.outputs)
    frontend = a_frontend(specs=(*SPECS, odd))
    frontend.handle(NOW, CLIENT, Declare(3, Application("mixed", ("one", "odd"))), ())
    (answer,) = sent(frontend, Applications, CLIENT)
    assert (answer.id, answer.status) == (3, Status.INVALID_INPUT)
    assert "odd/1" in answer.reason
    assert "[-1, 5]" in answer.reason
    assert "[-1, 4]" in answer.reason


def test_the_signature_is_told_as_that_of_a_model() -> None:
    frontend = a_frontend()
    frontend.handle(NOW, CLIENT, ModelInfo(4, "", "digits"), ())
    frontend.handle(NOW, CLIENT, ModelInfo(5, "", "nope"), ())
    told, unknown = sent(frontend, Models, CLIENT)
    (state,) = told.models
    assert (state.spec.name, state.spec.inputs, state.spec.max_batch) == ("digits", SPECS[0].inputs, 2)
    assert [(one.name, one.datatype) for one in state.spec.outputs] == [
        ("prediction", "INT64"), ("confidence", "FP32"), ("defaulted", "BOOL"),
    ]  # fmt: skip
    assert state.spec.slo_ns == ms(40)
    assert unknown.status == Status.UNKNOWN_MODEL


def test_outputs_of_any_kind_are_those_of_the_model() -> None:
    frontend = a_frontend(Application("texts", ("one",), task="any", policy="static"))
    frontend.handle(NOW, CLIENT, ModelInfo(4, "", "texts"), ())
    assert sent(frontend, Models)[0].models[0].spec.outputs == SPECS[0].outputs


# the answer


def test_all_that_an_application_says_reaches_the_client() -> None:
    frontend = a_frontend()
    query = ask(frontend)
    assert query is not None
    outputs = (Tensor("prediction", "INT64", (1,), 8), Tensor("confidence", "FP32", (1,), 4))
    frontend.handle(
        NOW + ms(5), SELECTOR,
        Answer(query.id, 0, outputs, "", 0, "", "", 10, 20, 2, True, 0.5, ("one",), ("two/1",), False, b"P" * 40),
        [bytes(8), bytes(4)],
    )  # fmt: skip
    answer = the_answer(frontend)
    assert (answer.id, answer.outputs, answer.cached, answer.confidence) == (7, outputs, True, 0.5)
    assert (answer.models, answer.missing, answer.prediction) == (("one",), ("two/1",), b"P" * 40)
    assert len(frontend.staging) == 0
    frontend.check()


def test_some_outputs_can_be_asked_for() -> None:
    frontend = a_frontend()
    query = ask(frontend, outputs=("confidence",))
    assert query is not None
    outputs = (Tensor("prediction", "INT64", (1,), 8), Tensor("confidence", "FP32", (1,), 4))
    frontend.handle(NOW, SELECTOR, Answer(query.id, 0, outputs), [bytes(8), b"1234"])
    (out,) = [out for out in frontend.out if isinstance(out.message, Answer)]
    assert (out.message.outputs, list(out.buffers)) == (outputs[1:], [b"1234"])


def defaulted(frontend: Frontend) -> Any:
    (out,) = [out for out in frontend.out if isinstance(out.message, Answer)]
    assert out.message.status == Status.OK
    assert out.message.defaulted
    assert (out.message.confidence, out.message.models) == (0.0, ())
    pairs = zip(out.message.outputs, out.buffers, strict=True)
    return {tensor.name: array_of(tensor, buffer).tolist() for tensor, buffer in pairs}


@pytest.mark.parametrize("selector", ["hung", "gone", "never there"])
def test_a_selector_that_does_not_answer_means_the_default_in_time(selector: str) -> None:
    frontend = a_frontend()
    if selector == "never there":
        frontend.handle(NOW, SELECTOR, Gone(SELECTOR), ())
    query = ask(frontend, rows=2)
    if selector == "gone":
        frontend.handle(NOW + ms(1), SELECTOR, Gone(SELECTOR), ())
    wakeup_ns = frontend.wakeup_ns()
    assert wakeup_ns == NOW + ms(38)
    frontend.tick(wakeup_ns)
    assert defaulted(frontend) == {"prediction": [7, 7], "confidence": [0.0, 0.0], "defaulted": [True, True]}
    assert bool(sent(frontend, Cancel, SELECTOR)) == (selector == "hung")
    assert (query is None) == (selector == "never there")
    frontend.tick(NOW + s(10))
    assert len(frontend.staging) == 0
    frontend.check()


@pytest.mark.parametrize("status", [Status.REFUSED, Status.LOST, Status.FAILED])
def test_the_default_is_better_than_a_refusal(status: Status) -> None:
    frontend = a_frontend()
    query = ask(frontend)
    assert query is not None
    frontend.handle(NOW + ms(1), SELECTOR, Answer(query.id, int(status), reason="no worker", lingers=True), ())
    assert defaulted(frontend)["prediction"] == [7]
    assert query.id in frontend.staging
    frontend.check()


def test_a_new_selector_is_asked_when_it_knows_its_applications() -> None:
    frontend = a_frontend()
    first = ask(frontend)
    assert first is not None
    frontend.handle(NOW, SELECTOR, Gone(SELECTOR), ())
    frontend.handle(NOW, "selector/0#2", Joined("selector/0#2"), ())
    assert not sent(frontend, Query)
    assert give(frontend, item()) is None
    assert acknowledged(frontend)[0] == [Status.REFUSED]
    frontend.handle(NOW + ms(5), "selector/0#2", Applications(0, (ApplicationState(SAFE, 1),)), ())
    (again,) = sent(frontend, Query, "selector/0#2")
    assert (again.id, again.budget_ns) == (first.id, ms(33))
    frontend.check()


def test_a_brief_deadline_leaves_the_selector_most_of_it() -> None:
    frontend = a_frontend()
    ask(frontend, budget_ns=ms(4))
    assert frontend.wakeup_ns() == NOW + ms(3)


def test_an_answer_after_the_default_is_dropped() -> None:
    frontend = a_frontend()
    query = ask(frontend)
    assert query is not None
    frontend.tick(NOW + ms(39))
    assert the_answer(frontend).defaulted
    frontend.handle(NOW + ms(39), SELECTOR, Answer(query.id, 0, lingers=True), ())
    assert not sent(frontend, Answer)
    assert query.id in frontend.staging
    frontend.handle(NOW + ms(39), SELECTOR, Release((query.id,)), ())
    assert len(frontend.staging) == 0
    frontend.check()


def test_a_regression_defaults_to_a_number() -> None:
    frontend = a_frontend(Application("digits", ("one",), task="regression", default=0.5))
    ask(frontend)
    frontend.tick(NOW + ms(100))
    assert defaulted(frontend)["prediction"] == [0.5]


def test_without_a_default_silence_is_lost_as_for_models() -> None:
    frontend = a_frontend()
    ask(frontend, "bare")
    assert frontend.wakeup_ns() == NOW + ms(90)
    frontend.tick(NOW + ms(90))
    assert the_answer(frontend).status == Status.LOST


# inputs that are needed longer


def test_inputs_linger_until_the_selector_releases_them() -> None:
    frontend = a_frontend()
    query = ask(frontend)
    assert query is not None
    frontend.handle(NOW + ms(5), SELECTOR, Answer(query.id, 0, lingers=True), ())
    frontend.check()
    frontend.handle(NOW + ms(6), CONTROLLER, Dispatch(1, WORKER, (query.id,)), ())
    assert sent(frontend, Ship, WORKER)[0].items
    frontend.handle(NOW + ms(7), SELECTOR, Release((query.id,)), ())
    assert len(frontend.staging) == 0
    assert frontend.wakeup_ns() is None


@pytest.mark.parametrize("end", ["time", "selector"])
def test_nothing_lingers_for_ever(end: str) -> None:
    frontend = a_frontend()
    query = ask(frontend)
    assert query is not None
    frontend.handle(NOW + ms(5), SELECTOR, Answer(query.id, 0, lingers=True), ())
    if end == "time":
        assert frontend.wakeup_ns() == NOW + ms(40) + s(1)
        frontend.tick(NOW + ms(40) + s(1))
    else:
        frontend.handle(NOW + ms(6), SELECTOR, Gone(SELECTOR), ())
    assert len(frontend.staging) == 0
    frontend.check()


# feedback


def item(*truths: float, prediction: bytes = b"P" * 40, **fields: Any) -> Observation:
    return Observation(truths or (3.0,), prediction, **fields)


def give(frontend: Frontend, *items: Observation, application: str = "digits", buffers: Any = ()) -> Feedback | None:
    """What the selector gets of it."""
    frontend.handle(NOW, CLIENT, Feedback(9, application, items), buffers)
    frontend.check()
    return next(iter(sent(frontend, Feedback, SELECTOR)), None)


def acknowledged(frontend: Frontend) -> tuple[list[Status], str]:
    (message,) = sent(frontend, Acknowledged, CLIENT)
    assert message.id == 9
    return list(map(Status, message.statuses)), message.reason


def test_feedback_reaches_the_selector_and_its_answer_the_client() -> None:
    frontend = a_frontend()
    passed = give(frontend, item(3, context="u"), item(4))
    assert passed is not None
    assert passed.items == (item(3, context="u"), item(4))
    frontend.handle(NOW, SELECTOR, Acknowledged(passed.id, (0, 5), "busy"), ())
    assert acknowledged(frontend) == ([Status.OK, Status.REFUSED], "busy")
    frontend.tick(NOW + s(60))
    assert not frontend.out


def test_inputs_with_feedback_are_staged_as_a_query() -> None:
    frontend = a_frontend()
    asked = ask(frontend, rows=2)
    assert asked is not None
    passed = give(frontend, item(), item(1, 2, context="u", inputs=(a_tensor(2),)), buffers=[some_bytes(2)])
    assert passed is not None
    query = passed.items[1].query
    assert query is not None
    assert passed.items[1].inputs == ()
    assert (query.model, query.application, query.context, query.rows) == ("", "digits", "u", 2)
    assert query.best_effort
    assert query.input_hash == asked.input_hash
    assert query.id in frontend.staging
    frontend.handle(NOW, SELECTOR, Release((query.id,)), ())
    assert query.id not in frontend.staging


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (item(float("nan")), ("truths", "nan")),
        (item(float("inf")), ("truths", "inf")),
        (Observation((), b"P"), ("truths", "[]")),
        (item(0.5), ("0.5", "whole")),
        (item(context="c" * 129), ("context", "129")),
        (Observation((1.0,)), ("prediction", "inputs")),
        (item(prediction=b"P" * 65), ("prediction", "65")),
        (item(1, inputs=(a_tensor(2),)), ("truths", "1", "2")),
        (item(1, inputs=(a_tensor(1, "z"),)), ("'z'", "'x'")),
    ],
)
def test_what_is_wrong_with_an_item_is_its_own_affair(wrong: Observation, words: tuple[str, ...]) -> None:
    frontend = a_frontend()
    buffers = [some_bytes(wrong.inputs[0].shape[0])] if wrong.inputs else []
    passed = give(frontend, wrong, item(4), buffers=buffers)
    assert passed is not None
    assert passed.items == (item(4),)
    frontend.handle(NOW, SELECTOR, Acknowledged(passed.id, (0,)), ())
    statuses, reason = acknowledged(frontend)
    assert statuses == [Status.INVALID_INPUT, Status.OK]
    assert all(word in reason for word in words), reason
    assert len(frontend.staging) == 0


def test_outputs_of_any_kind_take_no_feedback() -> None:
    frontend = a_frontend(Application("texts", ("one",), task="any", policy="static"))
    assert give(frontend, item(), application="texts") is None
    statuses, reason = acknowledged(frontend)
    assert statuses == [Status.INVALID_INPUT]
    assert "'any'" in reason


def test_a_client_cannot_pass_a_query_of_its_own() -> None:
    frontend = a_frontend()
    passed = give(frontend, item(query=Query(1, "", 5, 1)))
    assert passed is not None
    assert passed.items[0].query is None


@pytest.mark.parametrize(
    ("items", "application", "status"),
    [
        ([item()] * 65, "digits", Status.INVALID_INPUT),
        ([item(*[1.0] * 129)] * 64, "digits", Status.INVALID_INPUT),
        ([item()], "nope", Status.UNKNOWN_MODEL),
    ],
)
def test_feedback_that_cannot_be_taken(items: Any, application: str, status: Status) -> None:
    frontend = a_frontend()
    assert give(frontend, *items, application=application) is None
    assert acknowledged(frontend)[0] == [status] * len(items)


def test_feedback_has_an_end_whatever_the_selector_does() -> None:
    frontend = a_frontend()
    give(frontend, item(), item(float("nan")))
    frontend.tick(NOW + s(10))
    assert acknowledged(frontend)[0] == [Status.LOST, Status.INVALID_INPUT]
    give(frontend, item(1, inputs=(a_tensor(),)), buffers=[some_bytes()])
    frontend.handle(NOW, SELECTOR, Gone(SELECTOR), ())
    assert acknowledged(frontend)[0] == [Status.LOST]
    assert len(frontend.staging) == 0
    assert give(frontend, item()) is None
    assert acknowledged(frontend)[0] == [Status.REFUSED]
    frontend.check()


def test_inputs_of_feedback_that_is_never_acknowledged_go() -> None:
    frontend = a_frontend()
    give(frontend, item(1, inputs=(a_tensor(),)), buffers=[some_bytes()])
    frontend.tick(NOW + s(11))
    assert len(frontend.staging) == 0
    frontend.check()


def test_feedback_that_is_open_is_bounded() -> None:
    frontend = a_frontend(max_pending=1)
    assert give(frontend, item())
    assert give(frontend, item()) is None
    assert acknowledged(frontend)[0] == [Status.REFUSED]


# declarations


@pytest.mark.parametrize(
    "message", [Declare(3, SAFE), Withdraw(3, "digits"), Rollback(3, "digits"), ApplicationInfo(3, "digits", "u")]
)
def test_declarations_are_the_selectors_affair(message: Any) -> None:
    frontend = a_frontend()
    frontend.handle(NOW, CLIENT, message, ())
    (passed,) = sent(frontend, type(message), SELECTOR)
    told = Applications(passed.id, (ApplicationState(SAFE, 2),))
    frontend.handle(NOW, SELECTOR, told, ())
    (answer,) = sent(frontend, Applications, CLIENT)
    assert (answer.id, answer.applications, answer.status) == (3, told.applications, Status.OK)
    frontend.handle(NOW, CLIENT, message, ())
    frontend.handle(NOW, SELECTOR, Gone(SELECTOR), ())
    frontend.handle(NOW, CLIENT, message, ())
    went, away = sent(frontend, Applications, CLIENT)
    assert (went.status, away.status) == (Status.LOST, Status.LOST)
    assert (went.reason, away.reason) == ("the selector went away", "the selector is away")


@pytest.mark.parametrize("context", ["u" * 129, "u\0"])
def test_a_context_that_could_not_be_kept_is_invalid_wherever_it_comes(context: str) -> None:
    frontend = a_frontend()
    frontend.handle(NOW, CLIENT, ApplicationInfo(3, "digits", context), ())
    (told,) = sent(frontend, Applications, CLIENT)
    assert told.status == Status.INVALID_INPUT
    assert told.reason.startswith("context: got ")
    ask(frontend, context=context)
    assert the_answer(frontend).status == Status.INVALID_INPUT
    assert give(frontend, item(context=context)) is None
    assert not sent(frontend, ApplicationInfo)


def test_questions_that_are_open_are_bounded() -> None:
    frontend = a_frontend(max_pending=2)
    for number in range(3):
        frontend.handle(NOW, CLIENT, ApplicationInfo(number, "digits"), ())
    assert len(sent(frontend, ApplicationInfo, SELECTOR)) == 2
    (told,) = sent(frontend, Applications, CLIENT)
    assert (told.id, told.status) == (2, Status.LOST)
    assert told.reason == "the selector has 2 questions open already"


def test_a_selector_that_was_left_for_another_does_not_release_what_that_one_needs() -> None:
    frontend, other = a_frontend(), "selector/1#1"
    first, second = ask(frontend, "bare"), ask(frontend, "bare", now_ns=NOW + 1)
    assert first is not None
    assert second is None, "the same id of the same client"
    frontend.handle(NOW, other, Joined(other), ())
    frontend.handle(NOW, other, Applications(0, (ApplicationState(BARE, 1),)), ())
    (again,) = sent(frontend, Query, other)
    frontend.handle(NOW, SELECTOR, Release((again.id,)), ())
    assert again.id in frontend.staging
    frontend.handle(NOW, other, Answer(again.id, 0, lingers=True), ())
    frontend.handle(NOW, SELECTOR, Release((again.id,)), ())
    assert again.id in frontend.staging
    frontend.handle(NOW, other, Release((again.id,)), ())
    assert len(frontend.staging) == 0
    frontend.check()


def test_a_declaration_that_contradicts_itself_goes_no_further() -> None:
    frontend = a_frontend()
    frontend.handle(NOW, CLIENT, Declare(3, Application("a", ("one", "one"))), ())
    assert sent(frontend, Applications, CLIENT)[0].status == Status.INVALID_INPUT
    assert not frontend.out


def test_an_announcement_replaces_all_that_was_announced() -> None:
    frontend = a_frontend()
    announce(frontend, BARE)
    ask(frontend)
    assert the_answer(frontend).status == Status.UNKNOWN_MODEL
    assert ask(frontend, "bare")


def test_a_client_cannot_announce_or_acknowledge() -> None:
    frontend = a_frontend()
    passed = give(frontend, item())
    assert passed is not None
    frontend.handle(NOW, CLIENT, Applications(0, ()), ())
    frontend.handle(NOW, CLIENT, Acknowledged(passed.id, (0,)), ())
    assert not frontend.out
    assert ask(frontend)


# what is measured


def test_pings_come_back() -> None:
    frontend = a_frontend()
    frontend.handle(NOW, SELECTOR, Ping(5), ())
    assert sent(frontend, Pong, SELECTOR) == [Pong(5, NOW)]


def test_metrics_are_of_declared_applications_only() -> None:
    frontend = a_frontend()
    ask(frontend, "nope")
    query = ask(frontend)
    assert query is not None
    frontend.handle(NOW, SELECTOR, Answer(query.id, 0, defaulted=True), ())
    values = frontend.stats.values
    assert values["horologe_application_requests_total", "", "UNKNOWN_MODEL"] == 1
    assert values["horologe_application_requests_total", "digits", "OK"] == 1
    assert values["horologe_application_defaulted_total", "digits"] == 1
    assert frontend.stats.histograms["horologe_application_request_seconds", "digits"].total == 1
    announce(frontend, BARE)
    assert not any("digits" in key for key in (*values, *frontend.stats.histograms))


def test_a_profiler_sees_the_models_that_were_asked() -> None:
    frontend = a_frontend(sample_burst=1)
    frontend.handle(NOW, "profiler/0#1", Joined("profiler/0#1"), ())
    for at_ns in (NOW, NOW + ms(1)):
        query = ask(frontend, now_ns=at_ns)
        assert query is not None
        frontend.handle(at_ns, SELECTOR, Answer(query.id, 0, models=("one",), missing=("two/1",)), ())
    samples = [(one.model, one.application) for one in sent(frontend, Sample)]
    assert samples == [("one/1", "digits"), ("two/1", "digits")]


# all of it


STEPS = st.lists(st.sampled_from(["ask", "bare", "answer", "linger", "give", "acknowledge", "release", "gone", "wait"]))


@given(STEPS)
def test_every_request_and_every_feedback_has_one_end_and_nothing_is_left(steps: list[str]) -> None:
    frontend, now_ns = a_frontend(), NOW
    queries: list[int] = []
    told: list[int] = []
    asked, given_ = 0, 0
    for number, step in enumerate([*steps, "wait", "wait"]):
        match step:
            case "ask" | "bare":
                name = "digits" if step == "ask" else "bare"
                predict = Predict(number, "", "", 0, (a_tensor(),), application=name)
                frontend.handle(now_ns, CLIENT, predict, [some_bytes()])
                asked += 1
            case "give":
                observed = Feedback(number, "digits", (item(1, inputs=(a_tensor(),)),))
                frontend.handle(now_ns, CLIENT, observed, [some_bytes()])
                given_ += 1
            case "answer" | "linger":
                for key in queries[-2:]:
                    frontend.handle(now_ns, SELECTOR, Answer(key, 0, lingers=step == "linger"), ())
            case "acknowledge":
                for key in told[-2:]:
                    frontend.handle(now_ns, SELECTOR, Acknowledged(key, (0,)), ())
            case "release":
                frontend.handle(now_ns, SELECTOR, Release(tuple(queries[-2:])), ())
            case "gone":
                frontend.handle(now_ns, SELECTOR, Gone(SELECTOR), ())
                frontend.handle(now_ns, SELECTOR, Joined(SELECTOR), ())
                announce(frontend, SAFE, BARE)
            case "wait":
                now_ns += s(12)
        frontend.tick(now_ns)
        frontend.check()
        queries += [out.message.id for out in frontend.out if isinstance(out.message, Query)]
        told += [out.message.id for out in frontend.out if isinstance(out.message, Feedback)]
    assert len(sent(frontend, Answer, CLIENT)) == asked
    assert len(sent(frontend, Acknowledged, CLIENT)) == given_
    assert len(frontend.staging) == 0


def test_the_default_is_of_as_many_rows_as_were_asked_for() -> None:
    frontend = a_frontend()
    ask(frontend, rows=2)
    frontend.tick(NOW + ms(100))
    (out,) = [out for out in frontend.out if isinstance(out.message, Answer)]
    assert np.frombuffer(out.buffers[0], np.int64).tolist() == [7, 7]
