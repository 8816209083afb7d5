"""Large tensors as JSON: requests and responses are converted in steps, in bounded memory, with the same results."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.http_connections import Door, until
from frontend.oip_requests import error, post
from harness.event_loop import in_loop
from horologe_common.core.accounts import Total
from horologe_common.models import DTYPES, ModelSpec, TensorSpec
from horologe_common.status import HorologeError, InvalidInput, Refused, TooLarge
from horologe_common.string_tensors import MAX_STRINGS
from horologe_common.wire import Answer, Predict
from horologe_common.wire.frames import encode_array
from horologe_frontend.http.client_accounts import ClientAccount, HeldBytes
from horologe_frontend.http.steps import Steps, run_at_once, run_in_turns
from horologe_frontend.oip import inference_response
from horologe_frontend.oip.binary_encoding import classify
from horologe_frontend.oip.inference import is_long, read_in_steps, read_request
from horologe_frontend.oip.inference_response import (
    OutputFormat,
    ResponseFormat,
    split_values,
    write_answer,
    write_in_steps,
)
from horologe_frontend.oip.predicts import InferenceRequest

ROWS, COLUMNS = 8, 5000
SPEC = ModelSpec(
    "wide", "1", "onnx", (TensorSpec("in", "FP32", (-1, -1)),), (TensorSpec("out", "FP32", (-1, -1)),), (1, 64)
)
PREDICT = Predict(1, "wide", "1", 0, ())


def find_spec(model: str, version: str) -> ModelSpec:
    return SPEC


LIMIT = 16 << 20


def step_sizes(steps: Steps[Any]) -> list[int]:
    """Return the sizes that the steps yield. Raise as they do."""
    return list(steps)


def an_array(datatype: str) -> np.ndarray[Any, Any]:
    values = np.random.default_rng(0).integers(0, 100, (ROWS, COLUMNS))
    if datatype == "BYTES":
        return np.array([[f"tëxt {value}".encode() for value in row] for row in values[:, :300]], object)
    array = values.astype(DTYPES[datatype])
    if datatype.startswith("FP"):
        array[0, :3] = np.nan, np.inf, 0.1
    return array


@pytest.mark.parametrize("datatype", [*sorted(set(DTYPES) - {"FP16", "BF16"}), "BYTES"])
def test_a_long_output_has_the_json_of_a_short_one(datatype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array = an_array(datatype)
    tensor, buffer = encode_array("out", array)
    answer, form = Answer(1, 0, (tensor,)), ResponseFormat({}, OutputFormat())
    expected = write_answer(PREDICT, form, answer, [buffer], find_spec)
    response = run_at_once(write_in_steps(PREDICT, form, answer, [buffer], find_spec))
    text = b"".join((response.body, *response.parts))
    assert text == b"".join((expected.body, *expected.parts))
    assert len(text) == response.size
    data = json.loads(text)["outputs"][0]["data"]
    assert len(data) == array.size
    steps = step_sizes(write_in_steps(PREDICT, form, answer, [buffer], find_spec))
    assert len(steps) >= array.size // inference_response.STEP_VALUES
    if datatype.startswith("FP"):
        assert data[:2] == [None, None]


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=60), st.integers(1, 20), st.integers(1, 100))
def test_strings_are_divided_between_each_other(items: list[bytes], count: int, size: int) -> None:
    tensor, buffer = encode_array("out", np.array([*items, b""], object)[:-1])
    parts = list(split_values(tensor, buffer, count, size))
    assert b"".join(bytes(part) for _, part in parts) == bytes(buffer)
    assert sum(part.shape[0] for part, _ in parts) == len(items)
    assert all(part.shape[0] <= count and part.nbytes <= size + 34 for part, _ in parts)


def test_binary_and_json_outputs_of_one_response() -> None:
    first, second = encode_array("a", an_array("FP32")[:, 5:]), encode_array("b", an_array("FP32"))
    form = ResponseFormat({"a": OutputFormat(), "b": OutputFormat(binary=True)}, OutputFormat())
    answer = Answer(1, 0, (first[0], second[0]))
    response = run_at_once(write_in_steps(PREDICT, form, answer, [first[1], second[1]], find_spec))
    length = int(dict(response.headers)[b"inference-header-content-length"])
    body = b"".join((response.body, *response.parts))
    document = json.loads(body[:length])
    assert document["outputs"][1]["parameters"] == {"binary_data_size": second[0].nbytes}
    assert body[length:] == bytes(second[1])
    assert any(part is second[1] for part in response.parts), "it is not copied"
    assert form.takes_long(answer.outputs)
    assert not ResponseFormat({}, OutputFormat(binary=True)).takes_long(answer.outputs)


@settings(deadline=None)
@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 8), st.integers(0, 1 << 30), st.integers(2, 30))
def test_the_classes_of_long_rows_are_those_of_sorting(
    rows: int, columns: int, classes: int, seed: int, size: int
) -> None:
    array = np.random.default_rng(seed).integers(0, 9, (rows, columns)).astype(np.float32)
    tensor, buffer = encode_array("out", array)
    header, payload = run_at_once(classify(tensor, buffer, classes, step_values=size))
    order = np.argsort(-array, axis=1, kind="stable")[:, :classes]
    expected = [f"{array[row, index]:f}:{index}" for row in range(rows) for index in order[row]]
    assert header.shape == (rows, min(classes, columns))
    texts, at = [], 0
    payload = bytes(payload)
    while at < len(payload):
        end = at + 4 + int.from_bytes(payload[at : at + 4], "little")
        texts.append(payload[at + 4 : end].decode())
        at = end
    assert texts == expected


def test_classes_of_integers_have_no_decimal_places() -> None:
    tensor, buffer = encode_array("out", np.array([3, 300], np.int64))
    _, payload = run_at_once(classify(tensor, buffer, 1))
    assert bytes(payload)[4:] == b"300:1"


def test_more_classes_than_can_be_written_are_refused() -> None:
    tensor, buffer = encode_array("out", np.zeros((2, MAX_STRINGS), np.float32))
    with pytest.raises(TooLarge, match="classification: got the 65537 highest values of 2 rows"):
        run_at_once(classify(tensor, buffer, MAX_STRINGS // 2 + 1))


def a_body(data: Any, shape: tuple[int, ...] = (ROWS, COLUMNS), datatype: str = "FP32") -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    head = {"name": "in", "datatype": datatype, "shape": list(shape), "data": 0}
    return json.dumps({"inputs": [head]}).replace('"data": 0', f'"data": {text}').encode()


def read_long(body: bytes) -> InferenceRequest:
    assert is_long(body, None)
    return run_at_once(read_in_steps(SPEC, "", body, None, LIMIT))


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("nested", [False, True])
def test_long_numbers_are_those_of_the_text(nested: bool, indent: int | None) -> None:
    values = np.random.default_rng(1).random((ROWS, COLUMNS)).astype(np.float32)
    body = a_body(json.dumps((values if nested else values.ravel()).tolist(), indent=indent))
    request = read_long(body)
    assert np.array_equal(np.frombuffer(request.buffers[0], np.float32).reshape(ROWS, COLUMNS), values)
    assert request.predict == read_request(SPEC, "", body, None, LIMIT).predict
    sizes = step_sizes(read_in_steps(SPEC, "", body, None, LIMIT))
    assert len(sizes) > 10
    assert max(sizes) < 2 * len(body) + values.nbytes


ONES = [[1] * COLUMNS for _ in range(ROWS)]
BAD: dict[str, tuple[Any, str]] = {
    "too few": (ONES[:-1], "data: got 35000 values, wanted 40000 for shape [8, 5000]"),
    "too many": ([*ONES, [1]], "data: got 40001 values, wanted 40000"),
    "uneven rows": ([[1] * (COLUMNS - 1), *ONES[:-2], [1] * (COLUMNS + 1)], "data: got other lists"),
    "moved bracket": (
        [[1] * (COLUMNS - 1), [1] * (COLUMNS + 1), *ONES[2:]],
        "data: got other lists, wanted shape [8, 5000]",
    ),
    "deeper": ([[ONES]], "data: got lists nested 4 deep, wanted 1 (flat) or 2"),
    "one deeper list": ([[[1], *[1] * (COLUMNS - 1)], *ONES[1:]], "nested 3 deep"),
    "later deeper list": ([ONES[0], [[1], *[1] * (COLUMNS - 1)], *ONES[2:]], "got other lists"),
    "text": ([1] * 39_998 + ["x", 1], "data: FP32: Expected `float`, got `str` - at `$[39998]`"),
    "null": ([1] * 20_000 + [None] + [1] * 19_999, "got `null` - at `$[20000]`"),
    "out of range": ([1] * 39_999 + [1e39], "`$[39999]`"),
    "object": ([1] * 39_999 + [{}], "got `object` - at `$[39999]`"),
    "no list": ('"' + "x" * 70_000 + '"', "nested 0 deep"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_long_input_that_is_wrong_is_an_error_that_names_it(name: str) -> None:
    data, reason = BAD[name]
    with pytest.raises(InvalidInput, match="input 'in': data: ") as raised:
        read_long(a_body(data))
    assert reason in raised.value.reason


@pytest.mark.parametrize("text", ["[1,,2]", "[1 2]", "[1[,]2]", "[,1]", "[1,]", "[01]", "[+1]", "[1]]"])
def test_a_long_body_that_is_not_json_is_refused(text: str) -> None:
    body = a_body("[" + "1," * 39_990 + text + "]")
    with pytest.raises(InvalidInput, match="body: got something that is not JSON"):
        read_long(body)


@pytest.mark.parametrize(
    ("datatype", "value"), [("INT8", 128), ("UINT64", -1), ("UINT64", 2**64), ("BOOL", 1), ("INT32", 0.5)]
)
def test_long_numbers_must_be_in_the_range_of_their_datatype(datatype: str, value: Any) -> None:
    spec = ModelSpec("m", "1", "onnx", (TensorSpec("in", datatype, (-1, -1)),), SPEC.outputs, (1, 64))
    body = a_body([False if datatype == "BOOL" else 1] * 39_999 + [value], datatype=datatype)
    with pytest.raises(InvalidInput, match=rf"{datatype}: .*\$\[39999\]"):
        run_at_once(read_in_steps(spec, "", body, None, LIMIT))


def test_the_memory_of_steps_is_counted_and_released() -> None:
    total = Total(max_held_bytes=1000)
    client = ClientAccount(total)

    def holds(*sizes: int) -> Steps[str]:
        yield from sizes
        return "done"

    async def run(*sizes: int) -> str:
        with HeldBytes(client) as held:
            result = await run_in_turns(holds(*sizes), held)
            assert client.held_bytes == sizes[-1]
            return result

    assert asyncio.run(run(100, 500)) == "done"
    with pytest.raises(TooLarge, match="got 501 bytes, wanted at most 500"):
        asyncio.run(run(100, 501))
    total.held_bytes = 700
    with pytest.raises(Refused, match="too many bytes"):
        asyncio.run(run(100, 301))
    assert (client.held_bytes, total.held_bytes) == (0, 700)


WIDE = b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n%s\r\n%s"


def a_request(headers: bytes = b"", parameters: bytes = b"") -> bytes:
    body = a_body(ONES).replace(b'{"inputs"', b'{%s"inputs"' % parameters)
    return WIDE % (len(body), headers, body)


@in_loop
async def test_a_long_request_and_response_are_handled_over_a_connection() -> None:
    door = Door()
    await door.send(a_request())
    await until(lambda: door.written.endswith(b'"model_version":"1"}'))
    assert json.loads(door.written.partition(b"\r\n\r\n")[2])["outputs"][0]["data"] == [1.0] * (ROWS * COLUMNS)
    door.written = b""
    await door.send(a_request(b"Accept-Encoding: gzip\r\n"))
    await until(lambda: b"\r\n\r\n" in door.written and door.connection._current is None)
    packed = door.written.partition(b"\r\n\r\n")[2]
    assert len(json.loads(gzip.decompress(packed))["outputs"][0]["data"]) == ROWS * COLUMNS
    door.close()


@pytest.mark.parametrize("iterations", [0, 3, 10, 20, 30])
@in_loop
async def test_a_disconnect_stops_the_steps_and_releases_their_memory(iterations: int) -> None:
    door = Door()
    other = door.server.clients.add_connection("10.0.0.2")  # with two clients, the steps are in turns
    assert other is not None
    await door.send(a_request(b"Accept-Encoding: gzip\r\n"))
    for _ in range(iterations):
        await asyncio.sleep(0)
    door.connection.connection_lost(None)
    for _ in range(200):
        await asyncio.sleep(0)
    written = door.written
    await asyncio.sleep(0.01)
    assert door.written == written
    assert (door.total.requests, door.total.held_bytes) == (0, 0)


@pytest.mark.parametrize("others", [0, 1_000_000])
@pytest.mark.parametrize("parameters", [b"", b'"parameters": {"binary_data_output": true}, '])
@in_loop
async def test_a_response_without_memory_is_an_error_and_not_a_reset(parameters: bytes, others: int) -> None:
    door = Door(client_share=1.0)
    gateway: Any = door.server.handler._gateway
    predict = gateway.predict

    async def fill_memory(*arguments: Any) -> Any:
        """Leave less memory than the response needs when the request has been parsed."""
        answer = await predict(*arguments)
        door.total.share = 1.0
        door.total.max_held_bytes = others + (100_000 if others else 150_000)
        door.total.held_bytes += others
        return answer

    gateway.predict = fill_memory
    await door.send(a_request(b"", parameters))
    await until(lambda: b"\r\n\r\n" in door.written)
    if others:
        door.total.held_bytes -= others
    status = b"horologe-status: " + (b"REFUSED" if others else b"TOO_LARGE")
    assert status in door.written
    assert not door.aborted
    door.close()


def test_errors_of_long_requests_are_those_of_the_protocol() -> None:
    assert "got 35000 values" in error(post(a_body(ONES[:-1]), model="wide"))
    assert "at most 100000" in error(post(a_body(ONES), model="wide", json_limit_bytes=100_000), 413)
    with pytest.raises(HorologeError):
        read_request(SPEC, "", a_body(ONES, (9, COLUMNS)), None, LIMIT)
