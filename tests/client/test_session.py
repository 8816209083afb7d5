"""The client's conversation without sockets: every request ends exactly once, with what is its own."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import msgpack
import numpy as np
import pytest

from client.talk import Talk, X
from fakes.frontend import ECHO, echo
from horologe_common.clock import ms, s
from horologe_common.models import ModelSpec
from horologe_common.status import (
    Cancelled,
    HorologeError,
    InvalidInput,
    Late,
    Lost,
    ModelFailed,
    Refused,
    Status,
    TooLarge,
    UnknownModel,
)
from horologe_common.wire import (
    Admit,
    Answer,
    Cancel,
    Describe,
    Description,
    ModelInfo,
    Models,
    ModelState,
    Predict,
    Tensor,
)


def test_a_request_is_sent_with_what_remains_of_its_budget_and_its_answer_comes_back() -> None:
    talk = Talk().knowing(ECHO)
    sink = talk.predict(slo_ms=50)
    talk.now_ns += ms(1)
    ((request, buffers),) = talk.sent()
    assert request == Predict(request.id, "echo", "", ms(49), (Tensor("x", "FP32", (1, 4), 16),), sent_ns=talk.now_ns)
    answer, _ = echo(request, buffers)
    talk.get(answer, buffers=buffers)
    assert np.array_equal(sink.end.value, X)
    assert (sink.end.version, sink.end.queue_ns, sink.end.exec_ns, sink.end.batch_size) == ("1", 10, 20, 1)
    sink.end.value[0] = 7  # the caller's own
    assert talk.session.next_ns() is None


def test_another_msgpack_reads_what_is_sent() -> None:
    talk = Talk().knowing(ECHO)
    talk.predict(version="1", timeout=0.2, outputs=("y",))
    talk.sent()
    (((to, sender, messages)),) = msgpack.unpackb(talk.headers[-1])
    assert (to, sender) == ("", "")
    assert messages == [[4, messages[0][1], "echo", ""]], "a version of its own has a signature of its own"
    talk.get(Models(messages[0][1], (ModelState(ECHO),)))
    talk.sent()
    ((_, _, (message,)),) = msgpack.unpackb(talk.headers[-1])
    assert message == [
        1,
        message[1],
        "echo",
        "1",
        ms(200),
        [["x", "FP32", [1, 4], 16]],
        ["y"],
        "",
        "",
        False,
        talk.now_ns,
        "",
        "",
        "",
        None,
        0,
    ]
    assert msgpack.unpackb(talk.headers[0]) == [["", "", [[10, 1, [], "", "", [], 256 << 20]]]]


def test_without_an_answer_a_request_is_lost_at_its_deadline_and_grace() -> None:
    talk = Talk(grace_ns=ms(50)).knowing(ECHO)
    sink = talk.predict(slo_ms=100)
    ((request, buffers),) = talk.sent()
    assert talk.session.next_ns() == talk.now_ns + ms(150)
    talk.after(ms(150) - 1)
    assert not sink.done()
    talk.after(1)
    assert isinstance(sink.end, Lost)
    ignored = talk.session.ignored
    talk.get(echo(request, buffers)[0], buffers=buffers)
    assert talk.session.ignored == ignored + 1, "too late"


@pytest.mark.parametrize(("slo_ns", "lost_ns"), [(ms(20), ms(70)), (0, s(30) + ms(50))])
def test_without_a_deadline_the_models_own_holds_or_best_effort(slo_ns: int, lost_ns: int) -> None:
    spec = ModelSpec("echo", "1", "onnx", ECHO.inputs, ECHO.outputs, slo_ns=slo_ns)
    talk = Talk().knowing(spec)
    sink = talk.predict()
    ((request, _),) = talk.sent()
    assert request.budget_ns == 0
    talk.after(lost_ns - 1)
    assert not sink.done()
    talk.after(1)
    assert isinstance(sink.end, Lost)


def test_without_any_server_a_request_is_lost_too() -> None:
    talk = Talk()
    sink = talk.predict(timeout=1)
    assert talk.sent() == []
    talk.after(s(1) + ms(50))
    assert isinstance(sink.end, Lost)
    assert "could not be reached" in sink.end.reason


@pytest.mark.parametrize("option", ["slo_ms", "timeout"])
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf, 10**400, "soon", "5", b"5", True, np.bool_(1), [5], 1e9])
def test_a_deadline_must_be_a_positive_number(option: str, value: Any) -> None:
    end = Talk().knowing(ECHO).predict(**{option: value}).end
    assert isinstance(end, InvalidInput)
    assert end.reason.startswith(f"{option}: got {value!r}, wanted a number over 0")


@pytest.mark.parametrize("value", [5, 5.0, np.float16(5), np.float32(5), np.int8(5), np.uint64(5), Fraction(10, 2)])
def test_a_deadline_may_be_any_number(value: Any) -> None:
    talk = Talk().knowing(ECHO)
    talk.predict(slo_ms=value)
    talk.predict(timeout=value)
    assert [request.budget_ns for request, _ in talk.sent()] == [ms(5), s(5)]


@pytest.mark.parametrize("outputs", ["y", b"y", 5, None, ("y", 5)])
def test_outputs_must_be_a_list_of_names(outputs: Any) -> None:
    end = Talk().knowing(ECHO).predict(outputs=outputs).end
    assert isinstance(end, InvalidInput)
    assert "outputs" in end.reason


def test_the_smaller_of_slo_and_timeout_is_the_deadline() -> None:
    talk = Talk().knowing(ECHO)
    talk.predict(slo_ms=30, timeout=0.02)
    assert talk.sent()[0][0].budget_ns == ms(20)


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (Status.INVALID_INPUT, InvalidInput),
        (Status.REFUSED, Refused),
        (Status.LOST, Lost),
        (Status.UNKNOWN_MODEL, UnknownModel),
        (Status.TOO_LARGE, TooLarge),
        (Status.FAILED, ModelFailed),
        (77, ModelFailed),
    ],
)
def test_every_status_raises_its_error(status: int, kind: type[HorologeError]) -> None:
    talk = Talk().knowing(ECHO)
    sink = talk.predict()
    ((request, _),) = talk.sent()
    talk.get(Answer(request.id, status, (), "why", 5))
    assert type(sink.end) is kind
    assert (sink.end.reason, sink.end.retry_after_ns) == ("why", 5)


def test_a_late_answer_brings_what_came() -> None:
    talk = Talk().knowing(ECHO)
    sink = talk.predict()
    ((request, buffers),) = talk.sent()
    talk.get(Answer(request.id, Status.LATE, request.inputs, "late"), buffers=buffers)
    assert isinstance(sink.end, Late)
    assert sink.end.request_id == request.id
    assert np.array_equal(sink.end.reply.value, X)


def test_cancelling_tells_the_server_only_if_it_knows() -> None:
    talk = Talk().knowing(ECHO)
    sent = talk.predict()
    ((request, buffers),) = talk.sent()
    unsent = talk.predict()
    talk.session.cancel(request.id)
    talk.session.cancel(unsent.id)
    talk.session.cancel(12345)
    assert [message for message, _ in talk.sent()] == [Cancel((request.id,))]
    talk.get(echo(request, buffers)[0], buffers=buffers)
    assert not sent.done(), "the sink is its canceller's"
    assert len(talk.session.pending) == 0


def test_a_full_client_refuses_and_takes_again_when_there_is_room() -> None:
    talk = Talk(max_open=2, max_bytes=40).knowing(ECHO)
    first, second, third = (talk.predict() for _ in range(3))
    assert isinstance(third.end, Refused)
    assert "client queue full: 2 requests" in third.end.reason
    talk.get(*(Answer(message.id, Status.LOST) for message, _ in talk.sent()))
    assert first.done()
    assert second.done()
    assert "bytes are open" in talk.predict(inputs=np.ones((3, 4), np.float32)).end.reason
    assert not talk.predict().done()
    talk.session.pending.check()


def test_what_no_frontend_takes_is_too_large_and_does_not_take_others_along() -> None:
    talk = Talk().knowing(ECHO)
    sinks = [talk.predict(inputs={"x" * (70_000 if at == 2 else 1): X}) for at in range(5)]
    assert len(talk.sent()) == 4
    assert [sink.done() for sink in sinks] == [False, False, True, False, False]
    assert isinstance(sinks[2].end, TooLarge)


def test_names_that_are_no_text_do_not_take_others_along() -> None:
    talk = Talk().knowing(ECHO)
    good, bad = talk.predict(), talk.predict(outputs=("\ud800",))
    assert len(talk.sent()) == 1
    assert isinstance(bad.end, InvalidInput)
    assert isinstance(talk.predict(model=5).end, InvalidInput)  # type: ignore[arg-type]
    assert isinstance(talk.predict(application=None).end, InvalidInput)
    assert not good.done()


def test_questions_are_answered_by_their_own_kind_only() -> None:
    talk = Talk().welcomed()
    models, cluster = talk.query(ModelInfo), talk.query(Describe)
    admitted = talk.query(lambda number: Admit(number, "m", "", True))
    first, second, third = models.id, cluster.id, admitted.id
    talk.sent()
    talk.get(Description(first, (), "edf", 0), Models(second, ()), Answer(first, 0), Answer(second, 0))
    assert not any(sink.done() for sink in (models, cluster))
    talk.get(Models(first, (ModelState(ECHO),)), Description(second, (), "edf", 3), Models(third, (), 3, "no m"))
    assert models.end == (ModelState(ECHO),)
    assert cluster.end.requests_pending == 3
    assert isinstance(admitted.end, UnknownModel)


def test_closing_ends_everything() -> None:
    talk = Talk().knowing(ECHO)
    sinks = [talk.predict(), talk.predict("parked")]
    talk.session.close()
    assert all(isinstance(sink.end, Cancelled) for sink in [*sinks, talk.predict()])
    assert talk.session.next_ns() is None
