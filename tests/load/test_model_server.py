"""Requests to models of any server: addresses, inputs from metadata, encoding; and the division of a load."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from horologe_common.models import ModelSpec, TensorSpec
from horologe_common.status import InvalidInput
from horologe_frontend.grpc.messages import ModelInferRequest
from horologe_load.load_processes import Load
from horologe_load.model_server import ModelMetadata, ModelServer, choose_inputs, load_model, make_spec

PAIR = ModelSpec("m", "", "", (TensorSpec("x", "FP32", (-1, 3)), TensorSpec("t", "BYTES", (-1, -1))), ())
HTTP = ModelServer("http://127.0.0.1:8000/prefix", "a b", "2", headers=(("Authorization", "Bearer k"),))


def inputs(spec: ModelSpec, given: Any = None, **shapes: tuple[int, ...]) -> list[Any]:
    return choose_inputs(spec, shapes, given, np.random.default_rng(1))


def test_a_row_is_drawn_for_each_input_and_variable_dimensions_need_a_shape() -> None:
    first, second, *_ = inputs(PAIR, t=(1, 5))
    assert first["x"].shape == (1, 3)
    assert first["x"].dtype == np.float32
    assert first["t"].shape == (1, 5)
    assert not np.array_equal(first["x"], second["x"])
    with pytest.raises(InvalidInput, match=r"--shape t=1,16"):
        inputs(PAIR)
    with pytest.raises(InvalidInput, match=r"--shape x: got \[2, 4\], wanted \[-1, 3\]"):
        inputs(PAIR, x=(2, 4), t=(1, 1))
    with pytest.raises(InvalidInput, match=r"--shape: got z, wanted one of x, t"):
        inputs(PAIR, z=(1,))
    with pytest.raises(InvalidInput, match="--input"):
        inputs(ModelSpec("m", "", "", (), ()))


@pytest.mark.parametrize("binary", [True, False])
def test_requests_over_http_are_encoded_once(binary: bool) -> None:
    given = {"x": [[1, 2, 3]], "t": [["cat"]]}
    model = load_model(HTTP, ModelMetadata(PAIR, binary), inputs(PAIR, given), slo_ns=50_000_000)
    head, _, body = model.request_at(7).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /prefix/v2/models/a%20b/versions/2/infer HTTP/1.1\r\nHost: 127.0.0.1:8000\r\n")
    assert b"\r\nAuthorization: Bearer k\r\n" in head
    assert int(head.rpartition(b": ")[2]) == len(body)
    size = int(head.partition(b"Content-Length: ")[2].split()[0]) if binary else len(body)
    document = json.loads(body[:size])
    assert document["parameters"] == {"timeout": 50_000} | ({"binary_data_output": True} if binary else {})
    if not binary:
        assert [tensor["data"] for tensor in document["inputs"]] == [[1.0, 2.0, 3.0], ["cat"]]
    else:
        assert body[size:] == np.array([1, 2, 3], np.float32).tobytes() + b"\3\0\0\0cat"


def test_requests_over_grpc_have_raw_contents() -> None:
    server = ModelServer("grpc://host", "m")
    model = load_model(server, ModelMetadata(PAIR), inputs(PAIR, {"x": [[1, 2, 3]]}), slo_ns=0)
    request = ModelInferRequest.FromString(model.request_at(0))
    assert (request.model_name, list(request.inputs[0].shape), server.port) == ("m", [1, 3], 8001)
    assert request.raw_input_contents[0] == np.array([1, 2, 3], np.float32).tobytes()


@pytest.mark.parametrize("endpoint", ["localhost:8000", "ftp://x", "http://x:port"])
def test_an_invalid_endpoint_is_named(endpoint: str) -> None:
    with pytest.raises(InvalidInput, match=f"--endpoint: got '{endpoint}'"):
        _ = ModelServer(endpoint, "m").url


def test_an_address_of_ipv6_has_brackets() -> None:
    assert ModelServer("grpc://[::1]:9000", "m").address == "[::1]:9000"
    assert ModelServer("https://host", "m").address == "host:443"


def test_a_document_that_is_no_metadata_is_an_error() -> None:
    with pytest.raises(InvalidInput, match="metadata of 'a b'"):
        make_spec(HTTP, {"inputs": [{"name": "x"}]})


def test_a_load_is_divided_among_processes() -> None:
    parts = Load(arrivals=range(10), seconds=1.0).split(3)
    assert sorted(at for part in parts for at in part.arrivals) == list(range(10))
    assert [part.clients for part in Load(clients=5, seconds=1.0).split(3)] == [2, 2, 1]
    assert len(Load(clients=1, seconds=1.0).split(3)) == 1
