"""Names and values of other servers' clients: each has an effect, or is named in the error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from frontend.oip_requests import FOUR, GOOD, ROW, binary, error, post, send


@pytest.mark.parametrize(
    "parameters",
    [
        {"timeout": "5"},
        {"timeout": -1},
        {"timeout": True},
        {"slo_ms": 0},
        {"slo_ms": -1},
        {"slo_ms": "fast"},
        {"binary_data_output": 1},
        {"application": 5},
        {"priority": -1},
        {"priority": 1.5},
        {"priority": "0"},
        {"priority": False},
        {"sequence_id": 7},
        {"sequence_id": "session"},
        {"sequence_id": 0, "sequence_start": True},
        {"sequence_end": True},
        {"content_type": "np"},
        {"headers": {"x": "y"}},
        {"Timeout": 5},
        {"timeout_ms": 5},
        {"max_tokens": 20},
        {"triton_enable_empty_final_response": True},
        {"unload_dependents": True},
        {"": 1},
        {"x" * 10_000: 1},
    ],
)
def test_a_parameter_that_is_invalid_or_without_effect_is_named(parameters: dict[str, Any]) -> None:
    message = error(post({**GOOD, "parameters": parameters}))
    assert message.startswith("parameters")
    assert list(parameters)[-1][:80] in message
    assert len(message) < 300


@pytest.mark.parametrize(
    "parameters",
    [
        None,
        {},
        {"priority": 0},
        {"sequence_id": 0, "sequence_start": False, "sequence_end": False},
        {"sequence_id": ""},
        {"timeout": 5_000_000, "slo_ms": 5000, "application": "a", "context": "", "content_hash": False},
        {"binary_data_output": False},
    ],
)
def test_parameters_that_mean_nothing_or_are_honoured(parameters: Any) -> None:
    response = post({**GOOD, "parameters": parameters})
    assert response.status == 200
    assert b"ignored" not in response.body


def test_a_priority_is_named_in_the_response() -> None:
    body = {**GOOD, "parameters": {"priority": 1, "slo_ms": 5000}}
    for _ in range(2):  # the second time from the template of the first
        assert json.loads(post(body).body)["parameters"] == {"ignored_parameters": "priority"}
    header = {"inputs": [{**ROW, "parameters": {"binary_data_size": 16}}], "parameters": {"priority": 2}}
    assert json.loads(binary(header, FOUR).body)["parameters"] == {"ignored_parameters": "priority"}
    assert json.loads(send("POST", "/v1/applications/digits/predict", body).body)["ignored_parameters"] == "priority"


@pytest.mark.parametrize(
    ("where", "body"),
    [
        ("`timeout`", {**GOOD, "timeout": 5}),
        ("`priority`", {**GOOD, "priority": 0}),
        ("`model_version`", {**GOOD, "model_version": "3"}),
        ("`raw_input_contents`", {**GOOD, "raw_input_contents": []}),
        ("`content_type`", {"inputs": [{**ROW, "data": [1, 2, 3, 4], "content_type": "np"}]}),
        ("parameters.content_type", {"inputs": [{**ROW, "data": [1, 2, 3, 4], "parameters": {"content_type": "np"}}]}),
        ("parameters.binary_data", {"inputs": [{**ROW, "data": [1, 2, 3, 4], "parameters": {"binary_data": True}}]}),
        ("`binary`", {**GOOD, "outputs": [{"name": "out", "binary": True}]}),
        ("parameters.classes", {**GOOD, "outputs": [{"name": "out", "parameters": {"classes": 3}}]}),
    ],
)
def test_a_field_without_effect_is_named(where: str, body: Any) -> None:
    assert where in error(post(body))


def test_the_names_that_clients_of_kserve_and_triton_send_are_accepted() -> None:
    kserve = {"id": "7", "model_name": "echo", **GOOD}
    assert json.loads(post(kserve).body)["id"] == "7"
    header = {
        "id": "",
        "inputs": [{**ROW, "parameters": {"binary_data_size": 16}}],
        "outputs": [{"name": "out", "parameters": {"binary_data": True}}],
        "parameters": {"binary_data_output": True, "timeout": 1_000_000},
    }
    assert binary(header, FOUR).status == 200


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("unload", {"parameters": {"dependents": True}}, "parameters.dependents: unknown"),
        ("load", {"parameters": {"priority": 3}}, "parameters.priority"),
        ("load", {"parameters": {"version": "2"}}, "parameters.version: unknown"),
        ("load", {"version": "2"}, "`version`"),
    ],
)
def test_a_parameter_of_a_load_without_effect_is_named(path: str, body: Any, words: str) -> None:
    assert words in error(send("POST", f"/v2/repository/models/echo/{path}", body))


def test_tritons_client_unloads_and_reads_the_index() -> None:
    for value in (False, True):
        body = {"parameters": {"unload_dependents": value}}
        assert send("POST", "/v2/repository/models/echo/unload", body).status == 200
    assert send("POST", "/v2/repository/index", {"ready": True}).status == 200
    assert "`name`" in error(send("POST", "/v2/repository/index", {"name": "x"}))
