"""Errors of inference over the Open Inference Protocol: they name field, value and expectation."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.gateway import FakeGateway
from frontend.oip_requests import FOUR, GOOD, ROW, binary, error, post
from horologe_frontend.oip import json_encoding


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ({"data": [1, 2, 3]}, ("in", "got 3 values", "wanted 4", "[1, 4]")),
        ({"data": [[1, 2], [3, 4]]}, ("in", "got shape [2, 2]", "wanted [1, 4]")),
        ({"data": [[1, 2, 3], [4]]}, ("in", "inhomogeneous")),
        ({"data": [[[1, 2, 3, 4]]]}, ("in", "nested 3 deep")),
        ({"data": 5}, ("in", "nested 0 deep")),
        ({"data": {"a": 1}}, ("in", "data")),
        ({"data": None}, ("in", "data")),
        ({"data": ["a", 2, 3, 4]}, ("in", "Expected `float`, got `str`")),
        ({"data": [True, 2, 3, 4]}, ("in", "Expected `float`, got `bool`")),
        ({"data": [1e39, 2, 3, 4]}, ("in", "FP32")),
        ({"data": [1, 2, 3, 4], "datatype": "INT8x"}, ("in", "datatype", "INT8x", "INT8")),
        ({"data": [300, 2, 3, 4], "datatype": "UINT8"}, ("in", "UINT8", "<= 255")),
        ({"data": [1.5, 2, 3, 4], "datatype": "INT32"}, ("in", "INT32", "`int`")),
        ({"data": [1, 2, 2**64, 4], "datatype": "UINT64"}, ("in", "UINT64", "<= 18446744073709551615 - at `$[2]`")),
        ({"data": [[1, 2, 3, 10**99]], "datatype": "UINT64"}, ("in", "UINT64", "551615 - at `$[0][3]`")),
        ({"data": [-1, 2, 3, 4], "datatype": "UINT64"}, ("in", "UINT64", ">= 0", "`$[0]`")),
        ({"data": [1, 2, 3, 4], "datatype": "BYTES"}, ("in", "BYTES", "`str`")),
        ({"data": [1, 2, 3, 4], "shape": [-1, 4]}, ("in", "shape", "[-1, 4]", "negative")),
        ({"data": [], "shape": [0, 2**62, 2**62]}, ("in", "shape", "elements")),
        ({"data": [1], "shape": [1] * 40}, ("in", "shape", "32")),
        ({"data": [1], "shape": [10**30]}, ("in", "shape")),
        ({"data": [1, 2, 3, 4], "shape": "wide"}, ("$.inputs[0].shape", "array", "str")),
        ({"data": [1, 2, 3, 4], "name": 3}, ("$.inputs[0].name", "str", "int")),
        ({}, ("in", "neither", "data")),
        ({"data": [1], "parameters": {"binary_data_size": 4}}, ("in", "both")),
        ({"parameters": {"shared_memory_region": "r"}}, ("in", "shared_memory_region")),
    ],
)
def test_error_for_a_tensor_names_input_received_and_wanted(tensor: dict[str, Any], words: tuple[str, ...]) -> None:
    response = post({"inputs": [{**ROW, **tensor}]})
    message = error(response, 501 if "shared_memory_region" in words else 400)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("order", ["name first", "name last"])
def test_error_for_nan_and_infinity_names_the_input(text: str, order: str) -> None:
    data, name = f'"data": [1, 2, {text}, 4]', '"name": "in", "shape": [1, 4], "datatype": "FP32"'
    fields = f"{name}, {data}" if order == "name first" else f"{data}, {name}"
    other = '{"name": "o", "shape": [1], "datatype": "FP32", "data": [1]}'
    message = error(post(('{"inputs": [' + other + ", {" + fields + "}]}").encode()))
    assert "input 'in'" in message
    assert text.lstrip("-") in message


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"hello",
        b'{"inputs": 3}',
        b'{"inputs": [3]}',
        b'{"inputs": []} x',
        b"\xff\xfe",
        b'{"inputs": [{"name": "\xff"}]}',
        b"[" * 200_000,
        b'{"inputs": [{"data": ' + b"[" * 200_000,
        b"{}",
        b'{"inputs": [], "id": 5}',
        b'{"inputs": [], "outputs": [{"nam": 1}]}',
    ],
)
def test_invalid_body(body: bytes) -> None:
    assert "body: " in error(post(body))


def test_duplicates_and_unknown_outputs() -> None:
    assert "given twice" in error(post({"inputs": [GOOD["inputs"][0]] * 2}))
    assert "requested twice" in error(post({**GOOD, "outputs": [{"name": "out"}] * 2}))
    assert "output 'nope': unknown, wanted one of out" in error(post({**GOOD, "outputs": [{"name": "nope"}]}))


@pytest.mark.parametrize("length", ["-1", "9999", "1e3", "", "²", "0x10", " 1"])
def test_wrong_header_length(length: str) -> None:
    response = post(b"{}", {"Inference-Header-Content-Length": length})
    assert "Inference-Header-Content-Length" in error(response)


@pytest.mark.parametrize("size", [15, 17, 0, -1, 2**70, "16", None, True, 1.5])
def test_wrong_binary_data_size(size: Any) -> None:
    message = error(binary({"inputs": [{**ROW, "parameters": {"binary_data_size": size}}]}, FOUR))
    assert "input 'in': binary_data_size" in message


def test_binary_body_of_wrong_length() -> None:
    header = {"inputs": [{**ROW, "parameters": {"binary_data_size": 16}}]}
    assert "only 15 bytes are left" in error(binary(header, FOUR[:-1]))
    assert "1 bytes after the last binary input" in error(binary(header, FOUR + b"!"))


@pytest.mark.parametrize(
    "payload", [b"\x01\x00\x00\x00", b"\x01\x00\x00\x00aa", b"\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x00" * 2]
)
def test_wrong_binary_strings(payload: bytes) -> None:
    tensor = {"name": "in", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": len(payload)}}
    assert "input 'in': BYTES" in error(binary({"inputs": [tensor]}, payload, model="text"))


def test_too_many_strings() -> None:
    tensor = {"name": "in", "shape": [1 << 20], "datatype": "BYTES", "parameters": {"binary_data_size": 0}}
    assert "at most" in error(binary({"inputs": [tensor]}, model="text"), 413)


@pytest.mark.parametrize(
    ("model", "status"), [("refused", 429), ("lost", 503), ("late", 504), ("failed", 500), ("too-large", 413)]
)
def test_http_status_of_each_answer(model: str, status: int) -> None:
    response = post(GOOD, model=model)
    assert error(response, status)
    assert json.loads(response.body)["status"] == model.upper().replace("-", "_")
    assert (b"retry-after" in dict(response.headers)) == (status in (429, 503))


def test_retry_after_in_seconds_and_in_milliseconds() -> None:
    headers = dict(post(GOOD, model="refused").headers)
    assert headers[b"retry-after"] == b"1"
    assert headers[b"retry-after-ms"] == b"2"


def test_unknown_model_and_version() -> None:
    response = post(GOOD, model="nope")
    assert "nope" in error(response, 404)
    assert json.loads(response.body)["status"] == "UNKNOWN_MODEL"
    assert error(post(GOOD, model="echo/versions/77"), 404)
    assert json.loads(post(GOOD, model="echo/versions/10").body)["model_version"] == "10"
    assert json.loads(post(GOOD, model="odd%2Fn%C3%A4me").body)["model_name"] == "odd/näme"


def test_internal_error_hides_its_cause(caplog: pytest.LogCaptureFixture) -> None:
    response = post(GOOD, model="broken")
    assert error(response, 500) == "internal error"
    assert json.loads(response.body)["status"] == "INTERNAL_SERVER_ERROR"  # FAILED would blame the model
    assert "a fault of ours" in caplog.text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(tensor=json_values, extra=json_values, model=st.sampled_from(["echo", "all", "text", "wide", "huge"]))
def test_any_json_gets_a_valid_status(tensor: Any, extra: Any, model: str) -> None:
    gateway = FakeGateway()
    for body in (
        tensor,
        {"inputs": tensor},
        {"inputs": [tensor]},
        {"inputs": [{**ROW, "data": tensor}]},
        {"inputs": [{**ROW, "shape": tensor, "data": extra}]},
        {**GOOD, "parameters": extra},
        {**GOOD, "outputs": extra},
        {"inputs": [{**ROW, "parameters": extra}]},
    ):
        assert post(body, model=model, gateway=gateway).status in (200, 400, 404, 413, 501)
    assert post(GOOD, gateway=gateway).status == 200


@settings(max_examples=200, deadline=None)
@given(body=st.binary(max_size=300), length=st.integers(-2, 320), encoding=st.sampled_from(["", "gzip", "deflate"]))
def test_any_bytes_get_a_valid_status(body: bytes, length: int, encoding: str) -> None:
    headers = {"Inference-Header-Content-Length": str(length), "Content-Encoding": encoding}
    assert post(body, headers, "text").status in (200, 400, 413)
    assert post(body).status in (200, 400)


@pytest.mark.parametrize(
    ("tensor", "model", "words"),
    [
        (ROW, "echo", ("'in'", "40000 values", "wanted 4")),
        ({**ROW, "shape": [1, 40_000]}, "echo", ("'in'", "[1, 40000]", "[-1, 4]")),
        ({**ROW, "shape": [10_000, 4]}, "echo", ("inputs", "10000 rows", "1 to 8")),
        ({**ROW, "name": "other"}, "echo", ("'other'", "'in'")),
        ({**ROW, "shape": [0] * 40_000, "datatype": "FP32"}, "echo", ("40000 dimensions", "32")),
    ],
)
def test_long_data_is_checked_against_the_signature_before_it_is_parsed(
    tensor: Any, model: str, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_encoding, "list_decoder", None)
    said = error(post({"inputs": [{**tensor, "data": [0.5] * 40_000}]}, model=model))
    assert all(word in said for word in words), said


def test_too_many_outputs_are_refused_by_their_number() -> None:
    said = error(post({**GOOD, "outputs": [{"name": "out"}] * 1000}))
    assert said == "outputs: got 1000, wanted at most 1"
