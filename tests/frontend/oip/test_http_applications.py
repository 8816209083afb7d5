"""Applications over HTTP: declarations, predictions, feedback, and applications as models."""

from __future__ import annotations

import gzip
import json
from typing import Any

import numpy as np
import pytest

from fakes.gateway import PREDICTION, FakeGateway
from frontend.oip_requests import content, error, send
from horologe_common.applications import Application
from horologe_common.clock import ms
from horologe_common.status import Status
from horologe_common.wire import ApplicationInfo, Declare, Feedback, Observation, Rollback, Tensor, Withdraw
from horologe_frontend.oip.binary_encoding import HEADER_LENGTH

INPUT = {"name": "in", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
DIGITS = "/v1/applications/digits"


def test_put_and_get() -> None:
    gateway = FakeGateway()
    body = {"models": ["echo", "half/2"], "slo_ms": 20, "policy": "static", "settings": {"weights": {"echo": 1}}}
    shown = content(send("PUT", "/v1/applications/new", body, gateway))
    wanted = Application("new", ("echo", "half/2"), 20, policy="static", settings={"weights": {"echo": 1.0}})
    assert gateway.calls == [Declare(0, wanted)]
    assert shown["application"]["models"] == ["echo", "half/2"]
    assert shown["application"]["contexts"] == 10_000
    assert shown["revision"] == 1


def test_declaration_over_the_size_limit() -> None:
    said = error(send("PUT", DIGITS, b'{"models": ["a"' + b', "a"' * 100_000 + b"]}"), 413)
    assert said == "application: got 500017 bytes of JSON, at most 65536"


def test_all_applications_are_listed() -> None:
    listed = content(send("GET", "/v1/applications"))["applications"]
    assert [entry["application"]["name"] for entry in listed] == ["digits", "texts", "echo"]
    assert "statistics" not in listed[0]


def test_application_has_statistics_for_a_context() -> None:
    gateway = FakeGateway()
    shown = content(send("GET", f"{DIGITS}?context=user%201", gateway=gateway))
    assert gateway.calls == [ApplicationInfo(0, "digits", "user 1")]
    assert (shown["revision"], shown["contexts"]) == (2, 3)
    assert shown["statistics"] == [
        {
            "model": "echo",
            "weight": 1.0,
            "shadow": False,
            "answered": 5,
            "missing": 1,
            "agreed": 4,
            "observations": 3,
            "loss": 1.0,
        }
    ]


def test_delete_and_rollback() -> None:
    gateway = FakeGateway()
    assert content(send("DELETE", DIGITS, gateway=gateway)) == {}
    assert content(send("POST", f"{DIGITS}/rollback", gateway=gateway))["revision"] == 2
    assert gateway.calls == [Withdraw(0, "digits"), Rollback(0, "digits")]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"models": []}, ("models", "[]")),
        ({"models": ["a"], "nonsense": 1}, ("nonsense",)),
        ({"models": ["a"], "slo_ms": "soon"}, ("slo_ms",)),
        ({"name": "other", "models": ["a"]}, ("name", "'other'", "'digits'")),
        ([1], ("application",)),
        (b"{", ("application",)),
    ],
)
def test_invalid_declaration_names_the_field(body: Any, words: tuple[str, ...]) -> None:
    gateway = FakeGateway()
    said = error(send("PUT", DIGITS, body, gateway), 400)
    assert all(word in said for word in words), said
    assert not gateway.calls


@pytest.mark.parametrize("path", [".", "..", "%2E%2e", "a%2Fb"])
def test_a_name_that_clients_cannot_put_into_a_url_is_refused(path: str) -> None:
    """Clients remove `.` and `..` from a path before they send it, also where they are percent-encoded."""
    gateway = FakeGateway()
    assert "name: got " in error(send("PUT", f"/v1/applications/{path}", {"models": ["a"]}, gateway), 400)
    assert content(send("PUT", "/v1/applications/...", {"models": ["a"]}, gateway))
    assert [call.application.name for call in gateway.calls] == ["..."]


@pytest.mark.parametrize("is_traced", [True, False])
def test_every_prediction_carries_the_trace_of_its_request(is_traced: bool) -> None:
    gateway, text = FakeGateway(), b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"
    if is_traced:
        gateway.core.start_tracing(1, 1)
    headers = {b"traceparent": text}
    body = json.dumps({"inputs": [INPUT]}).encode()
    content(send("POST", f"{DIGITS}/predict", body, gateway, headers))
    content(send("POST", "/v2/models/echo/infer", body, gateway, headers))
    content(
        send("POST", "/v2/models/echo/infer", gzip.compress(body), gateway, {b"content-encoding": b"gzip"} | headers)
    )
    assert [predict.traceparent for predict in gateway.predicts] == 3 * [text.decode() if is_traced else ""]


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("DELETE", ""), ("POST", "/rollback"), ("POST", "/predict")],
)
def test_undeclared_application(method: str, path: str) -> None:
    assert "nope" in error(send(method, f"/v1/applications/nope{path}", {"inputs": [INPUT]}), 404)


def test_prediction_has_value_confidence_and_models() -> None:
    gateway = FakeGateway()
    answer = content(send("POST", f"{DIGITS}/predict", {"inputs": [INPUT], "context": "u1", "slo_ms": 20}, gateway))
    assert answer == {
        "application": "digits",
        "prediction": [3],
        "confidence": [0.666667],
        "defaulted": [False],
        "models": ["echo"],
        "missing": ["gone"],
        "cached": True,
        "prediction_id": PREDICTION.hex(),
    }
    (predict,) = gateway.predicts
    assert (predict.model, predict.application, predict.context, predict.budget_ns) == ("", "digits", "u1", ms(20))


def test_inputs_may_be_binary() -> None:
    body = np.zeros(4, np.float32).tobytes()
    raw = send("POST", f"{DIGITS}/predict", body, headers={HEADER_LENGTH: b"0"})
    assert content(raw)["prediction"] == [3]


def test_task_any_returns_the_outputs_of_the_model() -> None:
    answer = content(send("POST", "/v1/applications/texts/predict", {"inputs": [INPUT]}))
    assert answer["outputs"] == [{"name": "out", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}]
    assert answer["prediction_id"] == PREDICTION.hex()


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"inputs": [INPUT], "context": 5}, "context"),
        ({"inputs": [INPUT], "slo_ms": -1}, "slo_ms"),
        ({"inputs": [INPUT | {"shape": [2, 4]}]}, "'in'"),
        (b"", "JSON"),
    ],
)
def test_invalid_request_names_the_field(body: Any, word: str) -> None:
    assert word in error(send("POST", f"{DIGITS}/predict", body), 400)


def test_feedback_by_prediction_id() -> None:
    gateway = FakeGateway()
    gateway.statuses = (0, int(Status.REFUSED))
    items = [
        {"prediction_id": PREDICTION.hex(), "truths": [3], "context": "u1"},
        {"prediction_id": "00", "truths": [4]},
    ]
    answer = content(send("POST", f"{DIGITS}/feedback", {"items": items}, gateway))
    assert answer == {"statuses": ["OK", "REFUSED"], "reason": "the store is away"}
    assert gateway.calls == [Feedback(0, "digits", (Observation((3.0,), PREDICTION, "u1"), Observation((4.0,), b"\0")))]


def test_single_item_with_inputs() -> None:
    gateway = FakeGateway()
    assert content(send("POST", f"{DIGITS}/feedback", {"truths": [3], "inputs": [INPUT]}, gateway))["statuses"] == [
        "OK"
    ]
    ((item,),) = [question.items for question in gateway.calls]
    assert item == Observation((3.0,), b"", "", (Tensor("in", "FP32", (1, 4), 16),))


def test_feedback_without_an_ok_item_is_an_error() -> None:
    gateway = FakeGateway()
    gateway.statuses = (int(Status.REFUSED),)
    response = send("POST", f"{DIGITS}/feedback", {"truths": [3], "prediction_id": "00"}, gateway)
    assert error(response, 429) == "the store is away"
    assert dict(response.headers)[b"retry-after"]
    gateway.statuses = (int(Status.MISSING_INPUT),)
    error(send("POST", f"{DIGITS}/feedback", {"truths": [3], "prediction_id": "00"}, gateway), 410)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"items": [{"truths": ["three"]}]}, ("items[0].truths",)),
        ({"items": [{"prediction_id": "xyz", "truths": [3]}]}, ("item 0", "prediction_id", "'xyz'")),
        ({"truths": [3], "inputs": [INPUT | {"shape": [1, 5]}]}, ("'in'",)),
        ({"truth": [3], "prediction_id": "00"}, ("`truth`",)),
        ({"items": [{"truths": [3], "prediction_id": "00", "contxt": "u"}]}, ("`contxt`", "items[0]")),
        (b"", ("body",)),
    ],
)
def test_invalid_feedback_names_the_field(body: Any, words: tuple[str, ...]) -> None:
    said = error(send("POST", f"{DIGITS}/feedback", body), 400)
    assert all(word in said for word in words), said


LONG_INPUT = {"name": "in", "shape": [1, 40_000], "datatype": "FP32", "data": [0.5] * 40_000}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b'{"items": [{}' + b",{}" * 30_000 + b"]}", 400, ("items", "30001", "64")),
        (b'{"truths": [0' + b",0" * 200_000 + b"]}", 413, ("truths", "400003", "262144")),
        (b'{"items": [{"truths": [0' + b",0" * 200_000 + b"]}]}", 413, ("truths", "400003")),
        ({"truths": [1], "inputs": [LONG_INPUT]}, 400, ("'in'", "[1, 40000]", "[-1, 4]")),
        ({"truths": [1], "inputs": [LONG_INPUT | {"name": "odd"}]}, 400, ("'odd'", "'in'")),
    ],
)
def test_feedback_over_the_limits_is_not_decoded(body: Any, status: int, words: tuple[str, ...]) -> None:
    gateway = FakeGateway()
    said = error(send("POST", f"{DIGITS}/feedback", body, gateway), status)
    assert all(word in said for word in words), said
    assert not gateway.calls


def test_inference_of_an_application_as_a_model() -> None:
    gateway = FakeGateway()
    body = {"id": "7", "inputs": [INPUT], "parameters": {"context": "u1"}}
    answer = content(send("POST", "/v2/models/digits/infer", body, gateway))
    assert (answer["model_name"], answer["id"]) == ("digits", "7")
    assert [(output["name"], output["data"][0]) for output in answer["outputs"]][::2] == [
        ("prediction", 3),
        ("defaulted", False),
    ]
    assert answer["parameters"]["prediction_id"] == PREDICTION.hex()
    assert (gateway.predicts[0].application, gateway.predicts[0].context) == ("digits", "u1")


def test_metadata_of_an_application_as_a_model() -> None:
    described = content(send("GET", "/v2/models/digits"))
    assert (described["name"], described["versions"], described["platform"]) == ("digits", [], "application")
    assert [output["name"] for output in described["outputs"]] == ["prediction", "confidence", "defaulted"]
    assert content(send("GET", "/v2/models/digits/ready"))["ready"]
    assert send("GET", "/v2/models/digits/versions/1").status == 404


def test_model_takes_precedence_over_an_application_of_the_same_name() -> None:
    gateway = FakeGateway()
    content(send("POST", "/v2/models/echo/infer", {"inputs": [INPUT]}, gateway))
    assert (gateway.predicts[0].model, gateway.predicts[0].application) == ("echo", "")
