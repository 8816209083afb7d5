"""Inference over the Open Inference Protocol, without a socket: formats, limits and error messages."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
import zlib
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_gateway import ENDS, FakeGateway, respond
from horologe_frontend.http.http_responses import HttpResponse
from horologe_frontend.http.request_limits import HttpRequest
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip import json_encoding
from horologe_frontend.oip.handler import OipHandler

ROW = {"name": "in", "shape": [1, 4], "datatype": "FP32"}
GOOD = {"inputs": [{**ROW, "data": [1, 2, 3, 4]}]}
FOUR = struct.pack("<4f", 1, 2, 3, 4)


def post(
    body: Any,
    headers: dict[str, str] | None = None,
    model: str = "echo",
    gateway: FakeGateway | None = None,
    **limits: Any,
) -> HttpResponse:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    raw = {name.lower().encode(): value.encode() for name, value in (headers or {}).items()}
    request = HttpRequest("POST", f"/v2/models/{model}/infer", "", raw, content)
    return asyncio.run(respond(OipHandler(gateway or FakeGateway(), HttpSettings(**limits)), request))


def binary(header: Any, *blobs: bytes, model: str = "echo", length: int | None = None) -> HttpResponse:
    content = json.dumps(header).encode()
    size = len(content) if length is None else length
    return post(content + b"".join(blobs), {"Inference-Header-Content-Length": str(size)}, model)


def error(response: HttpResponse, status: int = 400) -> str:
    assert response.status == status, response.body
    content = json.loads(response.body)
    assert list(content) == ["error", "status"]
    assert dict(response.headers)[b"horologe-status"].decode() == content["status"]
    return str(content["error"])


def split(response: HttpResponse) -> tuple[Any, bytes]:
    assert response.status == 200, response.body
    size = int(dict(response.headers)[b"inference-header-content-length"])
    return json.loads(response.body[:size]), response.body[size:]


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1.0, 2.0, 3.0, 4.0]], [1, 2.0, 3, 4e0]])
def test_json_in_json_out(data: Any) -> None:
    response = post({"id": "x7", "model_name": "ignored", "inputs": [{**ROW, "data": data}]})
    assert response.status == 200
    assert json.loads(response.body) == {
        "model_name": "echo",
        "model_version": "9",
        "id": "x7",
        "outputs": [{"name": "out", "datatype": "FP32", "shape": [1, 4], "data": [1.0, 2.0, 3.0, 4.0]}],
    }


def test_an_error_names_the_request_and_recordings_its_own_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENDS, "late", msgspec.structs.replace(ENDS["late"], id=4711))
    gateway = FakeGateway()
    zipped = gzip.compress(json.dumps({"id": "order-17", **GOOD}).encode())
    for body, headers in (({"id": "order-17", **GOOD}, {}), (zipped, {"Content-Encoding": "gzip"})):
        response = post(body, headers, "late", gateway)
        assert response.status == 504
        assert dict(response.headers)[b"horologe-request"] == b"4711"
        assert gateway.predicts.pop().name == "order-17"
    post({"id": "x" * 1000, **GOOD}, gateway=gateway)
    assert gateway.predicts.pop().name == "x" * 128
    assert b"horologe-request" not in dict(post(GOOD).headers)


def test_json_round_trip_of_every_datatype() -> None:
    data: dict[str, list[Any]] = {
        "BOOL": [True, False],
        "INT8": [-128, 127],
        "INT64": [-(2**63), 2**63 - 1],
        "UINT64": [0, 2**64 - 1],
        "FP64": [0.1, -1e300],
        "BYTES": ["", "pří"],
    }
    inputs = [{"name": f"in{t}", "shape": [2], "datatype": t, "data": values} for t, values in data.items()]
    outputs = json.loads(post({"inputs": inputs}, model="all").body)["outputs"]
    assert {output["datatype"]: output["data"] for output in outputs} == data


def test_binary_in_binary_out() -> None:
    header = {
        "inputs": [{**ROW, "parameters": {"binary_data_size": 16}}],
        "parameters": {"binary_data_output": True},
    }
    head, blob = split(binary(header, FOUR))
    assert head["outputs"] == [
        {"name": "out", "datatype": "FP32", "shape": [1, 4], "parameters": {"binary_data_size": 16}}
    ]
    assert blob == FOUR


def test_mixed_inputs_and_a_format_per_output() -> None:
    header = {
        "inputs": [
            {"name": "inINT8", "shape": [2], "datatype": "INT8", "parameters": {"binary_data_size": 2}},
            {"name": "inBOOL", "shape": [1], "datatype": "BOOL", "data": [True]},
            {"name": "inFP64", "shape": [1], "datatype": "FP64", "parameters": {"binary_data_size": 8}},
        ],
        "parameters": {"binary_data_output": True},
        "outputs": [{"name": "outBOOL", "parameters": {"binary_data": False}}, {"name": "outINT8"}],
    }
    head, blob = split(binary(header, b"\x01\x02", struct.pack("<d", 0.5), model="all"))
    assert blob == b"\x01\x02"
    by_name = {output["name"]: output for output in head["outputs"]}
    assert by_name["outBOOL"]["data"] == [True]
    assert set(by_name) == {"outBOOL", "outINT8"}


def test_fp16_is_binary_only() -> None:
    tensor = {"name": "in", "shape": [1, 2], "datatype": "FP16"}
    header = {"inputs": [{**tensor, "parameters": {"binary_data_size": 4}}], "parameters": {"binary_data_output": True}}
    assert split(binary(header, b"\x00\x3c\x00\x40", model="half"))[1] == b"\x00\x3c\x00\x40"
    assert "no JSON form" in error(post({"inputs": [{**tensor, "data": [1, 2]}]}, model="half"))
    del header["parameters"]
    assert "output 'out': FP16 has no JSON form" in error(binary(header, b"\x00\x3c\x00\x40", model="half"))


@pytest.mark.parametrize(
    ("model", "body", "shape", "blob"),
    [
        ("echo", FOUR * 3, [3, 4], FOUR * 3),
        ("wide", FOUR, [1, 4], FOUR),
        ("text", b"abc", [1], b"\x03\x00\x00\x00abc"),
    ],
)
def test_raw_request(model: str, body: bytes, shape: list[int], blob: bytes) -> None:
    head, out = split(post(body, {"inference-HEADER-content-length": "0"}, model))
    assert head["outputs"][0]["shape"] == shape
    assert out == blob


@pytest.mark.parametrize(("model", "body"), [("echo", FOUR[:-1]), ("echo", b""), ("all", b"1")])
def test_raw_request_that_fits_no_shape(model: str, body: bytes) -> None:
    assert "body: got" in error(post(body, {"Inference-Header-Content-Length": "0"}, model))


def test_classification() -> None:
    tensor = {"name": "in", "shape": [2, 4], "datatype": "FP32", "data": [0.1, 0.9, 0.5, 0, 7, 8, 9, -1]}
    outputs = [{"name": "out", "parameters": {"classification": 2}}]
    output = json.loads(post({"inputs": [tensor], "outputs": outputs}).body)["outputs"][0]
    assert output["shape"] == [2, 2]
    assert output["datatype"] == "BYTES"
    assert output["data"] == ["0.900000:1", "0.500000:2", "9.000000:2", "8.000000:1"]


@pytest.mark.parametrize(
    ("parameters", "budget_ns"),
    [
        ({}, 0),
        ({"timeout": 0}, 0),
        ({"timeout": 30_000}, 30_000_000),
        ({"slo_ms": 12.5}, 12_500_000),
        ({"timeout": 30_000, "slo_ms": 20}, 20_000_000),
        ({"timeout": 10_000, "slo_ms": 20, "priority": 1, "own": "x"}, 10_000_000),
        ({"timeout": 1 << 80}, 86_400_000_000_000),
    ],
)
def test_deadline_is_the_smaller_of_timeout_and_slo_ms(parameters: dict[str, Any], budget_ns: int) -> None:
    gateway = FakeGateway()
    assert post({**GOOD, "parameters": parameters}, gateway=gateway).status == 200
    assert gateway.predicts[0].budget_ns == budget_ns


def test_application_parameter_is_forwarded() -> None:
    gateway = FakeGateway()
    assert post({**GOOD, "parameters": {"application": "chat"}}, gateway=gateway).status == 200
    assert gateway.predicts[0].application == "chat"


@pytest.mark.parametrize(
    "parameters",
    [
        {"timeout": "5"},
        {"timeout": -1},
        {"timeout": True},
        {"slo_ms": 0},
        {"slo_ms": -1},
        {"slo_ms": "fast"},
        {"priority": "high"},
        {"triton_final": True},
        {"binary_data_output": 1},
        {"application": 5},
    ],
)
def test_bad_parameter_is_named(parameters: dict[str, Any]) -> None:
    assert next(iter(parameters)) in error(post({**GOOD, "parameters": parameters}))


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
        ({"data": [2**64, 2, 3, 4], "datatype": "UINT64"}, ("in", "UINT64")),
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
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(json.dumps(GOOD).encode(), mtime=0)),
        ("deflate", zlib.compress(json.dumps(GOOD).encode())),
        ("deflate", zlib.compress(json.dumps(GOOD).encode())[2:-4]),
        ("identity", json.dumps(GOOD).encode()),
        (
            "GZip",
            gzip.compress(b'{"inputs":', mtime=0) + gzip.compress(json.dumps(GOOD["inputs"]).encode() + b"}", mtime=0),
        ),
    ],
)
def test_compressed_request(encoding: str, body: bytes) -> None:
    assert post(body, {"Content-Encoding": encoding}).status == 200


def test_damaged_compressed_request() -> None:
    body = gzip.compress(json.dumps(GOOD).encode())
    for bad in (body[:-9], body[:12], b"junk", b"", body + b"junk"):
        assert "body" in error(post(bad, {"Content-Encoding": "gzip"}))
    assert "br" in error(post(body, {"Content-Encoding": "br"}), 415)


def test_decompression_is_bounded() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    assert "more than 1000000 bytes" in error(post(bomb, {"Content-Encoding": "gzip"}, body_limit_bytes=1_000_000), 413)
    assert "more than 1000 bytes" in error(post(bomb, {"Content-Encoding": "gzip"}, body_limit_bytes=1000), 413)


def test_large_compressed_body() -> None:
    array = np.arange(400_000, dtype=np.uint8)
    tensor = {"name": "in", "shape": [400_000], "datatype": "UINT8", "parameters": {"binary_data_size": 400_000}}
    header = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    sent = {"Content-Encoding": "gzip", "Accept-Encoding": "br, deflate;q=0, gzip"}
    sent["Inference-Header-Content-Length"] = str(len(header))
    response = post(gzip.compress(header + array.tobytes()), sent, "huge")
    assert (b"content-encoding", b"gzip") in response.headers
    assert len(response.body) < 100_000
    _, blob = split(msgspec.structs.replace(response, body=gzip.decompress(response.body)))
    assert blob == array.tobytes()


def test_json_part_is_bounded() -> None:
    assert "binary" in error(post(GOOD, json_limit_bytes=20), 413)


@pytest.mark.parametrize(
    ("model", "status"), [("refused", 503), ("lost", 503), ("late", 504), ("failed", 500), ("too-large", 413)]
)
def test_http_status_of_each_answer(model: str, status: int) -> None:
    response = post(GOOD, model=model)
    assert error(response, status)
    assert json.loads(response.body)["status"] == model.upper().replace("-", "_")
    assert (b"retry-after" in dict(response.headers)) == (status == 503)


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


def test_valid_long_data_is_parsed() -> None:
    response = post({"inputs": [{**ROW, "shape": [1, 40_000], "data": [[0.5] * 40_000]}]}, model="wide")
    assert response.status == 200


def test_too_many_outputs_are_refused_by_their_number() -> None:
    said = error(post({**GOOD, "outputs": [{"name": "out"}] * 1000}))
    assert said == "outputs: got 1000, wanted at most 1"
