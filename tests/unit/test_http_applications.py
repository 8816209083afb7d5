"""Applications over HTTP: declared, asked, told the truth; and asked as if they were models."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import numpy as np
import pytest

from fake_gateway import PREDICTION, FakeGateway
from horologe_common.applications import Application
from horologe_common.clock import ms
from horologe_common.status import Status
from horologe_common.wire import ApplicationInfo, Declare, Feedback, Observation, Rollback, Tensor, Withdraw
from horologe_frontend.auth import BearerKeys
from horologe_frontend.http.http_responses import HttpResponse
from horologe_frontend.http.request_reader import HttpRequest
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip.binary_encoding import HEADER_LENGTH
from horologe_frontend.oip.handler import OipHandler

INPUT = {"name": "in", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}
DIGITS = "/v1/applications/digits"


def ask(
    method: str, path: str, body: Any = b"", port: FakeGateway | None = None, headers: dict[bytes, bytes] | None = None
) -> HttpResponse:
    oip = OipHandler(port or FakeGateway(), HttpSettings())
    path, _, query = path.partition("?")
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return asyncio.run(oip.handle(HttpRequest(method, path, query, headers or {}, raw)))


def content(response: HttpResponse) -> Any:
    assert response.status == 200, response.body
    return json.loads(response.body)


def failure(response: HttpResponse, status: int) -> str:
    assert response.status == status, response.body
    return str(json.loads(response.body)["error"])


# declarations


def test_put_declares_what_get_shows() -> None:
    port = FakeGateway()
    body = {"models": ["echo", "half/2"], "slo_ms": 20, "policy": "static", "settings": {"weights": {"echo": 1}}}
    shown = content(ask("PUT", "/v1/applications/new", body, port))
    wanted = Application("new", ("echo", "half/2"), 20, policy="static", settings={"weights": {"echo": 1.0}})
    assert port.calls == [Declare(0, wanted)]
    assert shown["application"]["models"] == ["echo", "half/2"]
    assert shown["application"]["contexts"] == 10_000
    assert shown["revision"] == 1


def test_a_declaration_is_not_read_beyond_what_one_can_have() -> None:
    said = failure(ask("PUT", DIGITS, b'{"models": ["a"' + b', "a"' * 100_000 + b"]}"), 413)
    assert said == "application: got 500017 bytes of JSON, at most 65536"


@pytest.mark.parametrize("name", ["%FF", "a%ED%A0%80"])
def test_a_name_that_is_no_text_is_unknown(name: str) -> None:
    failure(ask("GET", f"/v1/applications/{name}"), 404)


def test_all_applications_are_listed() -> None:
    listed = content(ask("GET", "/v1/applications"))["applications"]
    assert [one["application"]["name"] for one in listed] == ["digits", "texts", "echo"]
    assert "statistics" not in listed[0]


def test_one_application_has_standings_in_a_context() -> None:
    port = FakeGateway()
    shown = content(ask("GET", f"{DIGITS}?context=user%201", port=port))
    assert port.calls == [ApplicationInfo(0, "digits", "user 1")]
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
    port = FakeGateway()
    assert content(ask("DELETE", DIGITS, port=port)) == {}
    assert content(ask("POST", f"{DIGITS}/rollback", port=port))["revision"] == 2
    assert port.calls == [Withdraw(0, "digits"), Rollback(0, "digits")]


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
def test_a_declaration_that_is_wrong_says_where(body: Any, words: tuple[str, ...]) -> None:
    port = FakeGateway()
    said = failure(ask("PUT", DIGITS, body, port), 400)
    assert all(word in said for word in words), said
    assert not port.calls


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", ""), ("DELETE", ""), ("POST", "/rollback"), ("POST", "/predict")],
)
def test_an_application_that_is_not_declared(method: str, path: str) -> None:
    assert "nope" in failure(ask(method, f"/v1/applications/nope{path}", {"inputs": [INPUT]}), 404)


def test_paths_and_verbs() -> None:
    assert ask("GET", "/v1/applications/digits/nonsense").status == 404
    assert ask("GET", "/v1/models").status == 404
    refused = ask("POST", DIGITS)
    assert (refused.status, dict(refused.headers)[b"allow"]) == (405, b"GET, PUT, DELETE, HEAD")
    assert ask("PUT", "/v1/applications").status == 405
    assert ask("GET", f"{DIGITS}/predict").status == 405


def test_keys_are_asked_for_here_too() -> None:
    oip = OipHandler(FakeGateway(), HttpSettings(), BearerKeys([bytes(32)]))
    assert asyncio.run(oip.handle(HttpRequest("GET", "/v1/applications", "", {}))).status == 401


# predictions


def test_a_prediction_says_what_and_how_sure_and_by_whom() -> None:
    port = FakeGateway()
    answer = content(ask("POST", f"{DIGITS}/predict", {"inputs": [INPUT], "context": "u1", "slo_ms": 20}, port))
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
    (predict,) = port.predicts
    assert (predict.model, predict.application, predict.context, predict.budget_ns) == ("", "digits", "u1", ms(20))


def test_inputs_may_be_binary() -> None:
    body = np.zeros(4, np.float32).tobytes()
    raw = ask("POST", f"{DIGITS}/predict", body, headers={HEADER_LENGTH: b"0"})
    assert content(raw)["prediction"] == [3]


def test_outputs_of_any_kind_come_as_they_are() -> None:
    answer = content(ask("POST", "/v1/applications/texts/predict", {"inputs": [INPUT]}))
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
def test_a_request_that_is_wrong_says_where(body: Any, word: str) -> None:
    assert word in failure(ask("POST", f"{DIGITS}/predict", body), 400)


# feedback


def test_feedback_names_predictions() -> None:
    port = FakeGateway()
    port.statuses = (0, int(Status.REFUSED))
    items = [
        {"prediction_id": PREDICTION.hex(), "truths": [3], "context": "u1"},
        {"prediction_id": "00", "truths": [4]},
    ]
    answer = content(ask("POST", f"{DIGITS}/feedback", {"items": items}, port))
    assert answer == {"statuses": ["OK", "REFUSED"], "reason": "the store is away"}
    assert port.calls == [Feedback(0, "digits", (Observation((3.0,), PREDICTION, "u1"), Observation((4.0,), b"\0")))]


def test_a_single_item_may_bring_its_inputs() -> None:
    port = FakeGateway()
    assert content(ask("POST", f"{DIGITS}/feedback", {"truths": [3], "inputs": [INPUT]}, port))["statuses"] == ["OK"]
    ((item,),) = [question.items for question in port.calls]
    assert item == Observation((3.0,), b"", "", (Tensor("in", "FP32", (1, 4), 16),))


def test_feedback_of_which_nothing_was_learned_is_an_error() -> None:
    port = FakeGateway()
    port.statuses = (int(Status.REFUSED),)
    response = ask("POST", f"{DIGITS}/feedback", {"truths": [3], "prediction_id": "00"}, port)
    assert failure(response, 503) == "the store is away"
    assert dict(response.headers)[b"retry-after"]
    port.statuses = (int(Status.MISSING_INPUT),)
    failure(ask("POST", f"{DIGITS}/feedback", {"truths": [3], "prediction_id": "00"}, port), 410)


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
def test_feedback_that_is_wrong_says_where(body: Any, words: tuple[str, ...]) -> None:
    said = failure(ask("POST", f"{DIGITS}/feedback", body), 400)
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
def test_feedback_is_not_read_beyond_what_it_can_have(body: Any, status: int, words: tuple[str, ...]) -> None:
    port = FakeGateway()
    said = failure(ask("POST", f"{DIGITS}/feedback", body, port), status)
    assert all(word in said for word in words), said
    assert not port.calls


# as a model of the Open Inference Protocol


def test_an_application_can_be_asked_as_a_model() -> None:
    port = FakeGateway()
    body = {"id": "7", "inputs": [INPUT], "parameters": {"context": "u1"}}
    answer = content(ask("POST", "/v2/models/digits/infer", body, port))
    assert (answer["model_name"], answer["id"]) == ("digits", "7")
    assert [(one["name"], one["data"][0]) for one in answer["outputs"]][::2] == [
        ("prediction", 3),
        ("defaulted", False),
    ]
    assert answer["parameters"]["prediction_id"] == PREDICTION.hex()
    assert (port.predicts[0].application, port.predicts[0].context) == ("digits", "u1")


def test_an_application_has_metadata_as_a_model() -> None:
    described = content(ask("GET", "/v2/models/digits"))
    assert (described["name"], described["versions"], described["platform"]) == ("digits", [], "application")
    assert [one["name"] for one in described["outputs"]] == ["prediction", "confidence", "defaulted"]
    assert content(ask("GET", "/v2/models/digits/ready"))["ready"]
    assert ask("GET", "/v2/models/digits/versions/1").status == 404


def test_a_model_of_the_same_name_goes_first() -> None:
    port = FakeGateway()
    content(ask("POST", "/v2/models/echo/infer", {"inputs": [INPUT]}, port))
    assert (port.predicts[0].model, port.predicts[0].application) == ("echo", "")
