"""Feedback at the frontend: checked, forwarded, and acknowledged once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from frontend.frontend_builders import (
    CLIENT,
    NOW,
    SELECTOR,
    SPECS,
    acknowledgement,
    an_observation,
    connected_frontend,
    request_application,
    send_feedback,
)
from harness.builders import a_tensor, sent, some_bytes
from horologe_common.applications import Application
from horologe_common.clock import s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.models import TensorSpec
from horologe_common.status import Status
from horologe_common.wire import Acknowledged, Observation, Predict, Query, Release


def test_feedback_is_forwarded_and_acknowledged() -> None:
    frontend = connected_frontend()
    passed = send_feedback(frontend, an_observation(3, context="u"), an_observation(4))
    assert passed.items == (an_observation(3, context="u"), an_observation(4))
    frontend.handle(NOW, SELECTOR, Acknowledged(passed.id, (0, 5), "busy"), ())
    assert acknowledgement(frontend) == ([Status.OK, Status.REFUSED], "busy")
    frontend.tick(NOW + s(60))
    assert not frontend.out


def test_inputs_with_feedback_are_staged_as_a_query() -> None:
    frontend = connected_frontend()
    asked = request_application(frontend, rows=2)
    passed = send_feedback(
        frontend, an_observation(), an_observation(1, 2, context="u", inputs=(a_tensor(2),)), buffers=[some_bytes(2)]
    )
    query = passed.items[1].query
    assert passed.items[1].inputs == ()
    assert (query.model, query.application, query.context, query.rows) == ("", "digits", "u", 2)
    assert query.best_effort
    assert query.input_hash == asked.input_hash
    assert query.id in frontend.staging
    frontend.handle(NOW, SELECTOR, Release((query.id,)), ())
    assert query.id not in frontend.staging


def test_prediction_and_inputs_must_match() -> None:
    frontend = connected_frontend()
    asked = request_application(frontend, rows=2)
    named = b"M" * 4 + b"n" * 8 + asked.input_hash
    right = an_observation(1, 2, prediction=named, inputs=(a_tensor(2),))
    other = an_observation(1, prediction=named, inputs=(a_tensor(1),))
    none = an_observation(1, prediction=b"P", inputs=(a_tensor(1),))
    passed = send_feedback(frontend, right, other, none, buffers=[some_bytes(2), some_bytes(), some_bytes()])
    (kept,) = passed.items
    assert kept.prediction == named
    assert kept.query is not None
    assert sorted(frontend.staging.ids()) == [asked.id, kept.query.id]
    frontend.handle(NOW, SELECTOR, Acknowledged(passed.id, (0,)), ())
    statuses, reason = acknowledgement(frontend)
    assert statuses == [Status.OK, Status.INVALID_INPUT, Status.INVALID_INPUT]
    assert reason.startswith("prediction: ")


def test_inputs_of_feedback_may_be_in_another_order() -> None:
    tensors, parts = (a_tensor(1, "a"), a_tensor(2, "b")), [some_bytes(1), some_bytes(2)]
    pair = tuple(TensorSpec(tensor.name, "FP32", (-1, 4)) for tensor in tensors)
    frontend = connected_frontend(specs=(msgspec.structs.replace(SPECS[0], inputs=pair, batched=False),))
    frontend.handle(NOW, CLIENT, Predict(7, "", "", 0, tensors, application="bare"), parts)
    (asked,) = sent(frontend, Query)
    turned = an_observation(1, prediction=b"n" * 12 + asked.input_hash, inputs=tensors[::-1])
    passed = send_feedback(frontend, turned, application="bare", buffers=parts[::-1])
    assert passed.items[0].query.input_hash == asked.input_hash


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (an_observation(float("nan")), ("truths", "nan")),
        (an_observation(float("inf")), ("truths", "inf")),
        (Observation((), b"P"), ("truths", "[]")),
        (an_observation(0.5), ("0.5", "whole")),
        (an_observation(context="c" * 129), ("context", "129")),
        (Observation((1.0,)), ("prediction", "inputs")),
        (an_observation(prediction=b"P" * 65), ("prediction", "65")),
        (an_observation(1, inputs=(a_tensor(2),)), ("truths", "1", "2")),
        (an_observation(1, inputs=(a_tensor(1, "z"),)), ("'z'", "'x'")),
    ],
)
def test_invalid_item_does_not_affect_the_others(wrong: Observation, words: tuple[str, ...]) -> None:
    frontend = connected_frontend()
    buffers = [some_bytes(wrong.inputs[0].shape[0])] if wrong.inputs else []
    passed = send_feedback(frontend, wrong, an_observation(4), buffers=buffers)
    assert passed.items == (an_observation(4),)
    frontend.handle(NOW, SELECTOR, Acknowledged(passed.id, (0,)), ())
    statuses, reason = acknowledgement(frontend)
    assert statuses == [Status.INVALID_INPUT, Status.OK]
    assert all(word in reason for word in words), reason
    assert len(frontend.staging) == 0


def test_task_any_takes_no_feedback() -> None:
    frontend = connected_frontend(Application("texts", ("one",), task="any", policy="static"))
    assert send_feedback(frontend, an_observation(), application="texts") is None
    statuses, reason = acknowledgement(frontend)
    assert statuses == [Status.INVALID_INPUT]
    assert "'any'" in reason


def test_query_in_the_feedback_of_a_client_is_removed() -> None:
    frontend = connected_frontend()
    passed = send_feedback(frontend, an_observation(query=Query(1, "", 5, 1)))
    assert passed.items[0].query is None


@pytest.mark.parametrize(
    ("items", "application", "status"),
    [
        ([an_observation()] * 65, "digits", Status.INVALID_INPUT),
        ([an_observation(*[1.0] * 129)] * 64, "digits", Status.INVALID_INPUT),
        ([an_observation()], "nope", Status.UNKNOWN_MODEL),
    ],
)
def test_invalid_feedback_is_answered_with_a_status(items: Any, application: str, status: Status) -> None:
    frontend = connected_frontend()
    assert send_feedback(frontend, *items, application=application) is None
    assert acknowledgement(frontend)[0] == [status] * len(items)


def test_feedback_is_lost_without_an_acknowledgement() -> None:
    frontend = connected_frontend()
    items = an_observation(1, inputs=(a_tensor(),)), an_observation(float("nan"))
    send_feedback(frontend, *items, buffers=[some_bytes()])
    frontend.tick(NOW + s(10))
    assert acknowledgement(frontend)[0] == [Status.LOST, Status.INVALID_INPUT]
    frontend.tick(NOW + s(11))
    assert len(frontend.staging) == 0
    send_feedback(frontend, an_observation(1, inputs=(a_tensor(),)), buffers=[some_bytes()])
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
    assert acknowledgement(frontend)[0] == [Status.LOST]
    assert len(frontend.staging) == 0
    assert send_feedback(frontend, an_observation()) is None
    assert acknowledgement(frontend)[0] == [Status.REFUSED]
    frontend.check()


def test_open_feedback_is_bounded() -> None:
    frontend = connected_frontend(max_pending=1)
    assert send_feedback(frontend, an_observation())
    assert send_feedback(frontend, an_observation()) is None
    assert acknowledgement(frontend)[0] == [Status.REFUSED]
