"""Conversion of inputs by the client, with signatures that it requests first."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest

from client.talk import Talk, X
from fakes.frontend import ECHO, PAIR, WORDS, echo
from horologe.core.encoding import SIGNATURE_PAUSE_NS, SIGNATURE_TIMEOUT_NS
from horologe_common.clock import ms
from horologe_common.models import ModelSpec
from horologe_common.status import InvalidInput, Refused, Status, UnknownModel
from horologe_common.wire import Admit, Answer, ModelInfo, Models, ModelState, Predict


def test_one_question_serves_all_requests_that_wait_for_a_signature() -> None:
    talk = Talk().welcomed()
    sinks = [talk.predict() for _ in range(3)]
    ((question, _),) = talk.sent()
    assert isinstance(question, ModelInfo)
    talk.get(Models(question.id, (ModelState(ECHO),)))
    requests = talk.sent()
    assert [type(message) for message, _ in requests] == [Predict] * 3
    assert len(talk.headers) == 3, "Hello, the question, and one packet for all"
    assert not any(sink.done() for sink in sinks)


def test_arrays_may_be_reused_at_once() -> None:
    for talk in (Talk().welcomed(), Talk().knowing(ECHO)):
        array = X.copy()
        talk.predict(inputs=array)
        array[:] = 9
        for message, _ in talk.sent():
            if isinstance(message, ModelInfo):
                talk.get(Models(message.id, (ModelState(ECHO),)))
                ((_, (body,)),) = talk.sent()
                assert bytes(body) == X.tobytes()


@pytest.mark.parametrize(
    ("value", "datatype"),
    [
        ([[1, 2, 3, 4]], "FP32"),
        ([[1.5, 2, 3, 4]], "FP32"),
        (np.ones((1, 4)), "FP32"),
        (np.ones((1, 4), np.uint8), "FP32"),
        (np.ones((1, 4), np.int64), "FP32"),
        (np.ones((1, 4), bool), "FP32"),
        ([["a", "b", "c", "d"]], "BYTES"),
    ],
)
def test_numbers_are_converted_where_nothing_is_lost_by_surprise(value: Any, datatype: str) -> None:
    talk = Talk().knowing(ECHO)
    talk.predict(inputs=value)
    ((request, _),) = talk.sent()
    assert request.inputs[0].datatype == datatype


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ([[1, 2], [3]], "input 'x': got list"),
        (np.ones((1, 4), complex), "dtype: got complex128"),
        ({3: X}, "names: got 3"),
        ([None], "an item of NoneType"),
    ],
)
def test_what_cannot_become_a_tensor_is_invalid_input(value: Any, why: str) -> None:
    sink = Talk().knowing(ECHO).predict(inputs=value)
    assert isinstance(sink.end, InvalidInput)
    assert why in sink.end.reason


def test_inputs_by_name_give_outputs_by_name() -> None:
    talk = Talk().knowing(PAIR)
    sink = talk.predict("pair", {"a": np.ones((1, 2)), "b": [[1, 2, 3]]})
    ((request, buffers),) = talk.sent()
    assert [tensor.datatype for tensor in request.inputs] == ["FP32", "INT64"]
    talk.get(echo(request, buffers)[0], buffers=buffers)
    assert set(sink.end.value) == {"a", "b"}


def test_one_array_for_a_model_with_several_inputs_is_refused_by_name() -> None:
    assert "wanted a dict with a, b" in Talk().knowing(PAIR).predict("pair", X).end.reason


def test_strings_travel() -> None:
    talk = Talk().knowing(WORDS)
    sink = talk.predict("words", ["a", "é"])
    ((request, buffers),) = talk.sent()
    talk.get(echo(request, buffers)[0], buffers=buffers)
    assert list(sink.end.value) == [b"a", "é".encode()]


@pytest.mark.parametrize("status", [Status.INVALID_INPUT, Status.UNKNOWN_MODEL])
def test_when_the_server_disagrees_the_signature_is_asked_for_again(status: Status) -> None:
    talk = Talk().knowing(ECHO)
    talk.predict()
    talk.get(Answer(talk.sent()[0][0].id, status))
    talk.predict()
    assert [type(message) for message, _ in talk.sent()] == [ModelInfo]


def test_an_unknown_model_or_version_is_said_to_be_so() -> None:
    talk = Talk().welcomed()
    gone, old = talk.predict("nope"), talk.predict("echo", version="9")
    (nope, _), (version, _) = talk.sent()
    talk.get(Models(nope.id, (), Status.UNKNOWN_MODEL, "model 'nope'"), Models(version.id, (ModelState(ECHO),)))
    assert isinstance(gone.end, UnknownModel)
    unknown = talk.predict("nope")
    ((question, _),) = talk.sent()
    talk.get(Models(question.id, ()))
    assert isinstance(unknown.end, UnknownModel)
    assert unknown.end.reason == "model: got 'nope', which is not served"
    assert isinstance(old.end, UnknownModel)
    assert "got '9', wanted one of 1" in old.end.reason


def test_a_request_for_an_unavailable_model_says_why() -> None:
    talk = Talk().welcomed()
    broken = ModelState(ModelSpec("echo", "2", "", (), ()), "UNAVAILABLE", "model.toml: slo: got 3")
    newest, old = talk.predict(version="2"), talk.predict(version="1")
    ((question, _),) = talk.sent()
    talk.get(Models(question.id, (ModelState(ECHO), broken), incomplete="a worker is missing"))
    assert isinstance(newest.end, UnknownModel)
    assert newest.end.reason == "model 'echo/2' is unavailable: model.toml: slo: got 3"
    assert [type(message) for message, _ in talk.sent()] == [Predict]
    assert not old.done()
    repaired = talk.predict(version="2")
    ((question, _),) = talk.sent()
    talk.get(Models(question.id, (ModelState(msgspec.structs.replace(ECHO, version="2")),)))
    assert [type(message) for message, _ in talk.sent()] == [Predict]
    assert not repaired.done()


def test_a_loading_version_is_preferred_to_an_unavailable_one() -> None:
    talk = Talk().welcomed()
    broken = ModelState(ModelSpec("echo", "2", "", (), ()), "UNAVAILABLE", "no such file")
    sink = talk.predict()
    ((question, _),) = talk.sent()
    talk.get(Models(question.id, (ModelState(ECHO, "LOADING", "reading"), broken)))
    assert [type(message) for message, _ in talk.sent()] == [Predict]
    assert not sink.done()


def test_a_question_for_a_signature_that_is_lost_is_asked_again() -> None:
    talk = Talk().welcomed()
    sink = talk.predict(timeout=10)
    ((first, _),) = talk.sent()
    talk.after(SIGNATURE_TIMEOUT_NS + ms(50))
    ((second, _),) = talk.sent()
    assert second.id != first.id
    talk.get(Models(second.id, (ModelState(ECHO),)))
    assert [type(message) for message, _ in talk.sent()] == [Predict]
    assert not sink.done()


@pytest.mark.parametrize("answer", [Models(0, (), Status.REFUSED, "starting"), Models(0, (), incomplete="starting")])
def test_a_request_waits_until_the_server_knows_all_models(answer: Models) -> None:
    talk = Talk().welcomed()
    patient, other = talk.predict(timeout=10, version="1"), talk.predict(timeout=0.5, version="2")
    for _ in range(2):
        ((question, _),) = talk.sent()
        talk.get(msgspec.structs.replace(answer, id=question.id))
        assert talk.sent() == []
        talk.after(SIGNATURE_PAUSE_NS)
    ((question, _),) = talk.sent()
    talk.get(Models(question.id, (ModelState(ECHO),), incomplete="starting"))
    ((request, _),) = talk.sent()
    assert request.version == "1"
    talk.after(ms(200))
    assert isinstance(other.end, Refused)
    assert "starting" in other.end.reason
    assert not patient.done()


def test_a_model_that_was_loaded_again_is_asked_for_its_signature() -> None:
    talk = Talk().knowing(ECHO, WORDS)
    talk.query(partial(Admit, model=ECHO.name, version="", admitted=True))
    ((admit, _),) = talk.sent()
    talk.get(Models(admit.id, (ModelState(ECHO),)))
    talk.predict(ECHO.name)
    talk.predict(WORDS.name, [["a"]])
    assert [type(message) for message, _ in talk.sent()] == [ModelInfo, Predict]
