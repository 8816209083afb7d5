"""Requests that repeat: a request is read as if it were the first, whatever came before it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.gateway import FLOATS, FakeGateway, a_model, respond
from harness.event_loop import in_loop
from horologe_common.models import TensorSpec
from horologe_common.status import HorologeError
from horologe_frontend.http.http_messages import HttpRequest
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip import known_requests
from horologe_frontend.oip.handler import OipHandler
from horologe_frontend.oip.inference import read_request
from horologe_frontend.oip.known_requests import BinaryTemplate, KnownRequests

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_frontend.oip.predicts import InferenceRequest

LIMIT = 1 << 20
ECHO = a_model("echo", FLOATS)
SPECS = {
    datatype: a_model(datatype, TensorSpec("in", datatype, (-1, 4))) for datatype in ("FP32", "INT8", "UINT64", "BOOL")
}

numbers = st.lists(
    st.one_of(
        st.integers(-300, 300),
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from([2**64, 2**63, True, None, "1", [1], 1e39]),
    ),
    max_size=5,
) | st.lists(st.integers(0, 9), min_size=4, max_size=4)
texts = st.sampled_from(
    (
        '{"inputs": [{"name": "in", "shape": [1, 4], "datatype": "%s", "data": %s}]}',
        '{"inputs": [{"name": "in", "shape": [4], "data" : %.0s%s, "datatype": "FP32"}], "id": "7"}',
        '{"id": "data", "inputs": [{"name": "in", "shape": [1, 4], "datatype": "%s", "data": %s}]}',
        '{"parameters": {"data": [1, 2]}, "inputs": [{"name": "in", "shape": [4], "datatype": "%s", "data": %s}]}',
        '{"parameters": {"data": [1]}, "inputs": [{"name": "in", "shape": [4], "datatype": "%s", "d\\u0061ta": %s}]}',
        '{"inputs": [{"name": "in", "shape": [1, 4], "datatype": "%s", "data": %s}], "parameters": {"slo_ms": 5}}',
        '{"inputs": [{"name": "in", "shape": [1, 4], "datatype": "%s", "data": [%s]}]}',
        '{"inputs": [{"name": "in", "shape": [1, 4], "datatype": "%s", "data": %s}]',
    )
)


def outcome(read: Callable[[], InferenceRequest]) -> Any:
    try:
        request = read()
    except HorologeError as error:
        return error.status, str(error)
    form = request.form
    return request.predict, [bytes(buffer) for buffer in request.buffers], form.outputs, form.default, form.id


def check_equal(known: KnownRequests, spec: ModelSpec, body: bytes, header_length: bytes | None = None) -> None:
    expected = outcome(lambda: read_request(spec, "", body, header_length, LIMIT))
    assert outcome(lambda: known.read(spec, "", body, header_length)) == expected


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(st.sampled_from(sorted(SPECS)), texts, numbers), min_size=2, max_size=8))
def test_json_is_read_as_the_parser_reads_it(requests: list[tuple[str, str, list[Any]]]) -> None:
    known = KnownRequests(LIMIT)
    for datatype, text, values in requests:
        check_equal(known, SPECS[datatype], (text % (datatype, json.dumps(values))).encode())


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 8, 16]), st.binary(max_size=40), st.sampled_from([b"", b"0", b"9", b"x"])),
        min_size=2,
        max_size=8,
    )
)
def test_binary_data_is_read_as_the_parser_reads_it(requests: list[tuple[int, bytes, bytes]]) -> None:
    known = KnownRequests(LIMIT)
    for size, blob, length in requests:
        tensor = {"name": "in", "shape": [size // 4], "datatype": "FP32", "parameters": {"binary_data_size": size}}
        head = json.dumps({"inputs": [tensor]}).encode()
        for data in (blob, bytes(size)):
            check_equal(known, ECHO, head + data, length or b"%d" % len(head))
            check_equal(known, ECHO, head + data)


@pytest.mark.parametrize("binary", [False, True])
def test_equal_text_is_parsed_once_per_signature(binary: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed = []

    def count_and_read(spec: ModelSpec, *args: Any) -> InferenceRequest:
        parsed.append(spec)
        return read_request(spec, *args)

    monkeypatch.setattr(known_requests, "read_request", count_and_read)
    known, changed = KnownRequests(LIMIT), a_model("echo", FLOATS)
    tensor = {"name": "in", "shape": [1, 4], "datatype": "FP32"}
    for spec in (ECHO, ECHO, changed, changed):
        if binary:
            head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": 16}}]}).encode()
            known.read(spec, "", head + bytes(16), b"%d" % len(head))
        else:
            known.read(spec, "", json.dumps({"inputs": [{**tensor, "data": [len(parsed)] * 4}]}).encode(), None)
    assert parsed == [ECHO, changed]
    assert parsed[1] is changed


def test_binary_data_is_not_compared_to_make_a_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing 48 MB of two memoryviews blocked the loop for 0.13 s."""
    reads: list[int] = []
    read_buffers = BinaryTemplate.read_buffers

    def count_and_read(template: BinaryTemplate, body: bytes, begin: int) -> list[Buffer] | None:
        reads.append(begin)
        return read_buffers(template, body, begin)

    monkeypatch.setattr(BinaryTemplate, "read_buffers", count_and_read)
    known = KnownRequests(LIMIT)
    for wanted in (0, 1):
        known.read(ECHO, "", bytes(16), b"0")
        assert len(reads) == wanted


@pytest.mark.parametrize("form", [{}, {"parameters": {"binary_data_output": True}}, {"outputs": [{"name": "out"}]}])
@in_loop
async def test_responses_to_a_known_request_hold_their_own_values(form: dict[str, Any]) -> None:
    oip = OipHandler(FakeGateway(), HttpSettings())
    for rows in (1, 1, 2, 1):
        data = [float(rows * 10 + n) for n in range(4 * rows)]
        tensor = {"name": "in", "shape": [rows, 4], "datatype": "FP32", "data": data}
        body = json.dumps({"inputs": [tensor], **form}).encode()
        request = HttpRequest("POST", "/v2/models/echo/infer", "", {}, body)
        fresh = await respond(OipHandler(FakeGateway(), HttpSettings()), request)
        assert await respond(oip, request) == fresh
        assert fresh.status == 200
