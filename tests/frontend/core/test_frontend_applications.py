"""Requests for applications: the query to the selector, the answer to the client, staged inputs and metrics."""

from __future__ import annotations

from typing import Any

import pytest

from frontend.frontend_builders import (
    BARE,
    CLIENT,
    CONTROLLER,
    NOW,
    SAFE,
    SELECTOR,
    SPECS,
    WORKER,
    an_observation,
    announce,
    connected_frontend,
    request_application,
    the_answer,
)
from harness.builders import a_spec, a_state, a_tensor, sent, some_bytes
from horologe_common.applications import Application
from horologe_common.clock import ms, s
from horologe_common.core.protocol import PeerConnected, PeerDisconnected
from horologe_common.models import TensorSpec
from horologe_common.status import Status
from horologe_common.wire import (
    Acknowledged,
    Answer,
    Applications,
    ApplicationState,
    Declare,
    Dispatch,
    Feedback,
    ModelInfo,
    Models,
    Ping,
    Pong,
    Predict,
    Query,
    Release,
    Sample,
    Ship,
    Tensor,
)
from horologe_frontend.core.frontend import Frontend
from horologe_frontend.core.sampling import SampleLimits
from horologe_frontend.digest import digest
from horologe_frontend.settings import FrontendSettings


def test_an_application_with_a_damaged_record_is_refused_with_the_reason_and_the_others_are_served() -> None:
    frontend = connected_frontend()
    damaged = ApplicationState(Application("damaged", ()), 0, unavailable="its record is damaged")
    frontend.handle(0, SELECTOR, Applications(0, (ApplicationState(SAFE, 1), damaged)), ())
    assert request_application(frontend, "damaged") is None
    answer = the_answer(frontend)
    assert (answer.status, answer.reason, answer.retry_after_ns) == (Status.REFUSED, "its record is damaged", 0)
    frontend.handle(0, CLIENT, Feedback(8, "damaged", (an_observation(1.0),)), ())
    frontend.handle(0, CLIENT, ModelInfo(9, application="damaged"), ())
    assert [message.statuses for message in sent(frontend, Acknowledged)] == [(Status.REFUSED,)]
    assert [message.status for message in sent(frontend, Models, CLIENT)] == [Status.REFUSED]
    assert request_application(frontend) is not None


def test_a_request_of_an_application_is_a_query_without_a_model() -> None:
    query = request_application(connected_frontend(), rows=2, context="user-1")
    assert (query.model, query.application, query.context, query.rows) == ("", "digits", "user-1", 2)
    assert query.input_hash
    assert (query.budget_ns, query.best_effort) == (ms(38), False), "what is left before the default is answered"


@pytest.mark.parametrize(("budget_ms", "wanted_ms"), [(0, 40), (9, 9)])
def test_deadline_of_the_client_replaces_that_of_the_application(budget_ms: int, wanted_ms: int) -> None:
    query = request_application(connected_frontend(), "bare", budget_ns=ms(budget_ms))
    assert query.budget_ns == ms(wanted_ms)


def test_request_for_a_model_with_an_application_name_goes_to_the_model() -> None:
    frontend = connected_frontend()
    frontend.handle(NOW, CLIENT, Predict(7, "one", "", 0, (a_tensor(),), application="digits"), [some_bytes()])
    (query,) = sent(frontend, Query)
    assert (query.model, query.application) == ("one/1", "digits")


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        ({"application": "nope"}, Status.UNKNOWN_MODEL, ("application", "'nope'")),
        ({"rows": 3}, Status.INVALID_INPUT, ("3", "1 to 2")),
        ({"context": "c" * 129}, Status.INVALID_INPUT, ("context", "129", "128")),
        ({"outputs": ("y",)}, Status.INVALID_INPUT, ("'y'", "prediction", "confidence", "defaulted")),
    ],
)
def test_invalid_request_is_answered_at_once(fields: Any, status: Status, words: tuple[str, ...]) -> None:
    frontend = connected_frontend()
    assert request_application(frontend, **fields) is None
    answer = the_answer(frontend)
    assert answer.status == status
    assert all(word in answer.reason for word in words), answer.reason


def test_requests_are_refused_until_the_selector_announces_its_applications() -> None:
    frontend = Frontend("frontend/0#1", FrontendSettings(), digest)
    frontend.handle(0, CONTROLLER, Models(0, tuple(map(a_state, SPECS))), ())
    request_application(frontend)
    answer = the_answer(frontend)
    assert (answer.status, answer.retry_after_ns > 0) == (Status.REFUSED, True)


def test_models_with_different_inputs_cannot_form_an_application() -> None:
    odd = a_spec("odd")
    odd = type(odd)("odd", "1", "emulated", (TensorSpec("x", "FP32", (-1, 5)),), odd.outputs)
    frontend = connected_frontend(specs=(*SPECS, odd))
    frontend.handle(NOW, CLIENT, Declare(3, Application("mixed", ("one", "odd"))), ())
    (answer,) = sent(frontend, Applications, CLIENT)
    assert (answer.id, answer.status) == (3, Status.INVALID_INPUT)
    assert "odd/1" in answer.reason
    assert "[-1, 5]" in answer.reason
    assert "[-1, 4]" in answer.reason


def test_an_application_that_is_queried_as_a_model_is_named_one() -> None:
    frontend = connected_frontend()
    frontend.handle(NOW, CLIENT, ModelInfo(4, "digits"), ())
    (reply,) = sent(frontend, Models, CLIENT)
    assert reply.status == Status.UNKNOWN_MODEL
    assert reply.reason.startswith("model: got 'digits', which is an application: use `ask`")


def test_model_info_of_an_application_is_its_signature() -> None:
    frontend = connected_frontend()
    frontend.handle(NOW, CLIENT, ModelInfo(4, "", "digits"), ())
    frontend.handle(NOW, CLIENT, ModelInfo(5, "", "nope"), ())
    known_reply, unknown_reply = sent(frontend, Models, CLIENT)
    (state,) = known_reply.models
    assert (state.spec.name, state.spec.inputs, state.spec.max_batch) == ("digits", SPECS[0].inputs, 2)
    assert [(tensor.name, tensor.datatype) for tensor in state.spec.outputs] == [
        ("prediction", "INT64"),
        ("confidence", "FP32"),
        ("defaulted", "BOOL"),
    ]
    assert state.spec.slo_ns == ms(40)
    assert unknown_reply.status == Status.UNKNOWN_MODEL


def test_task_any_has_the_outputs_of_the_model() -> None:
    frontend = connected_frontend(Application("texts", ("one",), task="any", policy="static"))
    frontend.handle(NOW, CLIENT, ModelInfo(4, "", "texts"), ())
    assert sent(frontend, Models)[0].models[0].spec.outputs == SPECS[0].outputs


def test_all_fields_of_the_answer_reach_the_client() -> None:
    frontend = connected_frontend()
    query = request_application(frontend)
    outputs = (Tensor("prediction", "INT64", (1,), 8), Tensor("confidence", "FP32", (1,), 4))
    frontend.handle(
        NOW + ms(5),
        SELECTOR,
        Answer(query.id, 0, outputs, "", 0, "", "", 10, 20, 2, True, 0.5, ("one",), ("two/1",), False, b"P" * 40),
        [bytes(8), bytes(4)],
    )
    answer = the_answer(frontend)
    assert (answer.id, answer.outputs, answer.cached, answer.confidence) == (7, outputs, True, 0.5)
    assert (answer.models, answer.missing, answer.prediction) == (("one",), ("two/1",), b"P" * 40)
    assert len(frontend.staging) == 0
    frontend.check()


def test_inputs_are_retained_until_the_selector_releases_them() -> None:
    frontend = connected_frontend()
    query = request_application(frontend)
    frontend.handle(NOW + ms(5), SELECTOR, Answer(query.id, 0, inputs_retained=True), ())
    frontend.check()
    frontend.handle(NOW + ms(6), CONTROLLER, Dispatch(1, WORKER, (query.id,)), ())
    assert sent(frontend, Ship, WORKER)[0].items
    frontend.handle(NOW + ms(7), SELECTOR, Release((query.id,)), ())
    assert len(frontend.staging) == 0
    frontend.tick(NOW + s(1))
    frontend.tick(NOW + s(2))
    assert frontend.wakeup_ns() is None


@pytest.mark.parametrize("end", ["time", "selector"])
def test_retained_inputs_are_always_freed(end: str) -> None:
    frontend = connected_frontend()
    query = request_application(frontend)
    frontend.handle(NOW + ms(5), SELECTOR, Answer(query.id, 0, inputs_retained=True), ())
    if end == "time":
        frontend.tick(NOW + ms(500))
        frontend.tick(NOW + s(1))
        assert frontend.wakeup_ns() == NOW + ms(40) + s(1)
        frontend.tick(NOW + ms(40) + s(1))
    else:
        frontend.handle(NOW + ms(6), SELECTOR, PeerDisconnected(SELECTOR), ())
    assert len(frontend.staging) == 0
    frontend.check()


def test_ping_is_answered_with_pong() -> None:
    frontend = connected_frontend()
    frontend.handle(NOW, SELECTOR, Ping(5), ())
    assert sent(frontend, Pong, SELECTOR) == [Pong(5, NOW)]


def test_metrics_only_name_declared_applications() -> None:
    frontend = connected_frontend()
    request_application(frontend, "nope")
    query = request_application(frontend)
    frontend.handle(NOW, SELECTOR, Answer(query.id, 0, defaulted=True), ())
    values = frontend.stats.values
    assert values["horologe_application_requests_total", "", "UNKNOWN_MODEL"] == 1
    assert values["horologe_application_requests_total", "digits", "OK"] == 1
    assert values["horologe_application_defaulted_total", "digits"] == 1
    assert frontend.stats.histograms["horologe_application_request_seconds", "digits"].total == 1
    announce(frontend, BARE)
    assert not any("digits" in key for key in (*values, *frontend.stats.histograms))


def test_an_application_has_the_statistics_of_its_requests_until_it_is_withdrawn() -> None:
    frontend = connected_frontend()
    spec = frontend.declared.find_with_signature("bare")[1]
    assert frontend.stats_of(spec).latency.total == 0
    for rows, status in ((1, Status.OK), (2, Status.OK), (1, Status.FAILED)):
        query = request_application(frontend, "bare", rows)
        frontend.handle(NOW + ms(1), SELECTOR, Answer(query.id, int(status), cached=rows == 2), ())
    stats = frontend.stats_of(spec)
    assert (stats.success.count, stats.success.ns, stats.fail.count, stats.rows) == (2, ms(2), 1, 3)
    assert (stats.cache_hit.count, stats.cache_miss.count) == (1, 1)
    assert not frontend.stats_by_model, "the models of the application count their own"
    announce(frontend, SAFE)
    assert frontend.stats_of(spec).latency.total == 0


def test_samples_of_an_application_name_each_of_its_models() -> None:
    frontend = connected_frontend(samples=SampleLimits(burst=1))
    frontend.handle(NOW, "profiler/0#1", PeerConnected("profiler/0#1"), ())
    for at_ns in (NOW, NOW + ms(1)):
        query = request_application(frontend, now_ns=at_ns)
        frontend.handle(at_ns, SELECTOR, Answer(query.id, 0, models=("one",), missing=("two/1",)), ())
    samples = [(sample.model, sample.application) for sample in sent(frontend, Sample)]
    assert samples == [("one/1", "digits"), ("two/1", "digits")]
