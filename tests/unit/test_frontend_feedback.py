"""Feedback at the frontend: checked, passed on, and acknowledged once."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from builders import a_tensor, sent, some_bytes
from frontend_builders import CLIENT, NOW, SELECTOR, SPECS, a_frontend, acknowledged, ask, give, item
from horologe_common.applications import Application
from horologe_common.clock import s
from horologe_common.core.protocol import PeerDisconnected
from horologe_common.models import TensorSpec
from horologe_common.status import Status
from horologe_common.wire import Acknowledged, Observation, Predict, Query, Release


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


def test_a_prediction_and_inputs_together_are_of_one_request() -> None:
    frontend = a_frontend()
    asked = ask(frontend, rows=2)
    assert asked is not None
    named = b"M" * 4 + b"n" * 8 + asked.input_hash
    right = item(1, 2, prediction=named, inputs=(a_tensor(2),))
    other = item(1, prediction=named, inputs=(a_tensor(1),))
    none = item(1, prediction=b"P", inputs=(a_tensor(1),))
    passed = give(frontend, right, other, none, buffers=[some_bytes(2), some_bytes(), some_bytes()])
    assert passed is not None
    (kept,) = passed.items
    assert kept.prediction == named
    assert kept.query is not None
    assert sorted(frontend.staging.ids()) == [asked.id, kept.query.id]
    frontend.handle(NOW, SELECTOR, Acknowledged(passed.id, (0,)), ())
    statuses, reason = acknowledged(frontend)
    assert statuses == [Status.OK, Status.INVALID_INPUT, Status.INVALID_INPUT]
    assert reason.startswith("prediction: ")


def test_inputs_may_come_in_another_order_than_they_were_asked_in() -> None:
    tensors, parts = (a_tensor(1, "a"), a_tensor(2, "b")), [some_bytes(1), some_bytes(2)]
    pair = tuple(TensorSpec(tensor.name, "FP32", (-1, 4)) for tensor in tensors)
    frontend = a_frontend(specs=(msgspec.structs.replace(SPECS[0], inputs=pair, batched=False),))
    frontend.handle(NOW, CLIENT, Predict(7, "", "", 0, tensors, application="bare"), parts)
    (asked,) = sent(frontend, Query)
    turned = item(1, prediction=b"n" * 12 + asked.input_hash, inputs=tensors[::-1])
    passed = give(frontend, turned, application="bare", buffers=parts[::-1])
    assert passed is not None
    assert passed.items[0].query is not None
    assert passed.items[0].query.input_hash == asked.input_hash


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
    frontend.handle(NOW, SELECTOR, PeerDisconnected(SELECTOR), ())
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
