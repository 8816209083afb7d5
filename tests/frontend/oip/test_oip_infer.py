"""Inference over the Open Inference Protocol, without a socket: formats, parameters and compression."""

from __future__ import annotations

import gzip
import json
import struct
import zlib
from typing import Any

import msgspec
import numpy as np
import pytest

from fakes.gateway import ENDS, FLOATS, FakeGateway, a_model
from frontend.oip_requests import FOUR, GOOD, ROW, binary, content, error, post
from horologe_common.wire import ModelState
from horologe_frontend.http.http_messages import HttpResponse


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
        "model_version": "10",
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


def test_classes_have_the_labels_of_the_version_that_answers() -> None:
    gateway = FakeGateway()
    labels = {"9": (("old",),), "10": (("a", "", "c:d"),)}
    specs = [msgspec.structs.replace(a_model("echo", FLOATS, version=key), labels=labels[key]) for key in labels]
    gateway.core.catalogue.replace_models([ModelState(spec) for spec in specs])
    tensor = {"name": "in", "shape": [1, 4], "datatype": "FP32", "data": [4, 3, 2, 1]}
    outputs = [{"name": "out", "parameters": {"classification": 4}}]
    response = post({"inputs": [tensor], "outputs": outputs}, gateway=gateway)
    data = content(response)["outputs"][0]["data"]
    assert data == ["4.000000:0:a", "3.000000:1", "2.000000:2:c:d", "1.000000:3"]


@pytest.mark.parametrize(
    ("parameters", "budget_ns"),
    [
        ({}, 0),
        ({"timeout": 0}, 0),
        ({"timeout": 30_000}, 30_000_000),
        ({"slo_ms": 12.5}, 12_500_000),
        ({"timeout": 30_000, "slo_ms": 20}, 20_000_000),
        ({"timeout": 10_000, "slo_ms": 20, "priority": 1}, 10_000_000),
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


def test_valid_long_data_is_parsed() -> None:
    response = post({"inputs": [{**ROW, "shape": [1, 40_000], "data": [[0.5] * 40_000]}]}, model="wide")
    assert response.status == 200
