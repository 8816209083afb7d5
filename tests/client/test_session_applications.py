"""Applications in the client: what is asked, what a Reply says, what feedback is sent, what is raised."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from client.talk import Talk, X
from fakes.frontend import ECHO
from horologe import Application, HorologeError, InvalidInput, MissingInput, Refused, UnknownModel
from horologe.core.client_feedback import feedback_messages, find_application, raise_first_error
from horologe.core.encoding import Signature
from horologe.core.reply import decode_answer
from horologe_common.application_answers import answer_tensors, output_specs
from horologe_common.clock import ms
from horologe_common.models import ModelSpec
from horologe_common.status import Status
from horologe_common.wire import (
    Acknowledged,
    Answer,
    ApplicationInfo,
    Applications,
    ApplicationState,
    Declare,
    Feedback,
    ModelInfo,
    Models,
    ModelState,
    Predict,
)

DIGITS = Application("digits", ("echo",), slo_ms=40, default=7.0)
SPEC = ModelSpec("digits", "", "application", ECHO.inputs, output_specs(DIGITS), slo_ns=ms(40), cache=True)


def an_answer(number: int) -> tuple[Answer, list[bytes]]:
    outputs, buffers = answer_tensors(DIGITS, [3.0], [0.75], [False])
    answer = Answer(number, 0, outputs, "", 0, "", "", 1, 2, 0, False, 0.75, ("echo",), ("other",), False, b"P" * 40)
    return answer, buffers


def test_an_application_is_asked_by_its_signature_and_context() -> None:
    talk = Talk().welcomed()
    sink = talk.predict("", X.tolist(), application="digits", context="user-1")
    ((question, _),) = talk.sent()
    assert question == ModelInfo(question.id, "", "digits")
    talk.get(Models(question.id, (ModelState(SPEC),)))
    ((request, buffers),) = talk.sent()
    assert isinstance(request, Predict)
    assert (request.model, request.application, request.context) == ("", "digits", "user-1")
    assert (request.inputs[0].datatype, bytes(buffers[0])) == ("FP32", X.tobytes())
    assert talk.session.next_ns() == talk.now_ns + ms(40) + ms(50), "the application's SLO and the grace"
    answer, outputs = an_answer(request.id)
    talk.get(answer, buffers=outputs)
    reply = sink.end
    assert reply.prediction.tolist() == [3]
    assert (reply.confidence, reply.models, reply.missing, reply.defaulted) == (0.75, ("echo",), ("other",), False)
    assert reply.prediction_id == b"P" * 40


def test_a_model_and_an_application_of_one_name_have_signatures_of_their_own() -> None:
    talk = Talk().welcomed()
    talk.predict("digits")
    talk.predict("", application="digits")
    (of_model, _), (of_application, _) = talk.sent()
    assert (of_model.model, of_model.application) == ("digits", "")
    assert (of_application.model, of_application.application) == ("", "digits")


def test_an_application_that_is_not_declared() -> None:
    talk = Talk().welcomed()
    sink = talk.predict("", application="nope")
    ((question, _),) = talk.sent()
    talk.get(Models(question.id, (), int(Status.UNKNOWN_MODEL), "application: got 'nope'"))
    assert isinstance(sink.end, UnknownModel)


def test_outputs_of_any_kind_are_the_prediction() -> None:
    outputs, buffers = answer_tensors(DIGITS, [3.0], [1.0], [False])
    reply = decode_answer(Answer(1, 0, outputs[1:2]), buffers[1:2], True)
    assert not isinstance(reply, HorologeError)
    assert reply.prediction.tolist() == [1.0]


@pytest.mark.parametrize(
    ("question", "answer", "end"),
    [
        (Declare(1, DIGITS), Applications(1, (ApplicationState(DIGITS, 1),)), (ApplicationState(DIGITS, 1),)),
        (ApplicationInfo(1, "digits"), Applications(1, ()), ()),
        (Feedback(1, "digits", ()), Acknowledged(1, (0,)), Acknowledged(1, (0,))),
    ],
)
def test_questions_end_with_their_answers_and_no_others(question: Any, answer: Any, end: Any) -> None:
    talk = Talk().welcomed()
    sink = talk.query(lambda number: question)
    talk.sent()
    talk.get(Models(1, ()))
    assert not sink.done()
    talk.get(answer)
    assert sink.end == end


def test_a_declaration_that_is_refused_is_raised() -> None:
    talk = Talk().welcomed()
    sink = talk.query(lambda number: Declare(number, DIGITS))
    ((question, _),) = talk.sent()
    talk.get(Applications(question.id, (), int(Status.INVALID_INPUT), "policy: got 'x'"))
    assert isinstance(sink.end, InvalidInput)


def test_true_values_that_float64_lacks_are_rejected() -> None:
    with pytest.raises(InvalidInput, match=r"truth: element \[1\]: got 9007199254740993"):
        told(b"P" * 40, [1, 2**53 + 1])


def told(predictions: Any, truths: Any, context: str = "", inputs: Any = None) -> Any:
    """Items and buffers of the messages that this feedback makes."""
    made = list(feedback_messages("digits", predictions, truths, context, inputs, Signature(SPEC)))
    return [(question(5).items, list(buffers)) for question, buffers in made]


def test_feedback_names_a_reply_or_its_id() -> None:
    answer, buffers = an_answer(1)
    reply = decode_answer(answer, buffers, True)
    for prediction in (reply, b"P" * 40):
        (((item,), tensors),) = told(prediction, 3, context="u")
        assert (item.truths, item.prediction, item.context, item.inputs, tensors) == ((3.0,), b"P" * 40, "u", (), [])


def test_feedback_may_bring_the_inputs() -> None:
    (((item,), buffers),) = told(None, np.array([3]), inputs=X)
    assert (item.truths, item.prediction, item.inputs[0].shape) == ((3.0,), b"", (1, 4))
    assert buffers == [X.tobytes()]


def test_long_lists_go_in_messages_of_64() -> None:
    made = told([b"a"] * 130, range(130))
    assert [len(items) for items, _ in made] == [64, 64, 2]
    assert made[2][0][1].truths == (129.0,)


@pytest.mark.parametrize("wrong", [([b"a", b"b"], [1], None), (b"a", "three", None), (7, 1, None), ([b"a"], 1, None)])
def test_feedback_that_makes_no_sense(wrong: Any) -> None:
    predictions, truths, inputs = wrong
    with pytest.raises(InvalidInput):
        told(predictions, truths, inputs=inputs)


def test_what_was_not_learned_from_is_raised() -> None:
    raise_first_error(Acknowledged(1, (0, 0)))
    with pytest.raises(Refused, match="item 1: the store is away") as caught:
        raise_first_error(Acknowledged(1, (0, int(Status.REFUSED)), "the store is away", 7))
    assert caught.value.retry_after_ns == 7
    with pytest.raises(MissingInput, match="send the inputs"):
        raise_first_error(Acknowledged(1, (int(Status.MISSING_INPUT),), "prediction: not known: send the inputs"))
    with pytest.raises(UnknownModel):
        find_application((), "digits")
