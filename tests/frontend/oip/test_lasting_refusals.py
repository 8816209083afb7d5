"""Requests that the controller would refuse again get the same refusal at once, and no other request does."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.gateway import FakeGateway, respond
from frontend.oip_requests import FOUR, GOOD, ROW
from harness.builders import a_spec
from horologe_common.clock import ms, s
from horologe_common.wire import Predict
from horologe_frontend.core.access import KeyEntry
from horologe_frontend.http.client_accounts import ClientAccount
from horologe_frontend.http.http_messages import HttpRequest, HttpResponse
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip import lasting_refusals
from horologe_frontend.oip.handler import OipHandler
from horologe_frontend.oip.inference_response import OutputFormat, ResponseFormat
from horologe_frontend.oip.known_requests import BinaryTemplate, RequestTemplate
from horologe_frontend.oip.lasting_refusals import LastingRefusals

if TYPE_CHECKING:
    from collections.abc import Iterator

LENGTH = b"inference-header-content-length"
PLACE_NS = ms(6)


def a_template() -> RequestTemplate:
    return BinaryTemplate(a_spec("m"), Predict(0, "m", "", 0, ()), ResponseFormat({}, OutputFormat()))


ANN, TEMPLATE, FULL = "ann", a_template(), HttpResponse(429)


@pytest.fixture(autouse=True, scope="module")
def long_memory() -> Iterator[None]:
    """A refusal lasts also where the test waits for its processor."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lasting_refusals, "MEMORY_NS", s(100))
        yield


@given(st.integers(0, ms(10)), st.lists(st.integers(0, ms(8)), max_size=30))
def test_no_request_is_refused_once_a_place_is_free_except_behind_two_for_each_place(
    first_ns: int, gaps_ns: list[int]
) -> None:
    """`sent` requests go to the controller. At least twice as many as there are places do."""
    refusals = LastingRefusals()
    refusals.add(0, (ANN, TEMPLATE), FULL, first_ns, PLACE_NS)
    now_ns = sent = 0
    for gap_ns in gaps_ns:
        now_ns += gap_ns
        places = (now_ns - first_ns) // PLACE_NS + 1 if now_ns >= first_ns else 0
        if refusals.find(now_ns, (ANN, TEMPLATE)) is None:
            sent += 1
            assert places, "it would have been refused"
        else:
            assert sent >= 2 * places - 1 if places else not sent


def test_a_refusal_is_forgotten_after_a_while_without_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting_refusals, "MEMORY_NS", ms(100))
    refusals = LastingRefusals()
    for now_ns in (0, ms(60)):
        refusals.add(now_ns, (ANN, TEMPLATE), FULL, s(1), PLACE_NS)
    assert refusals.find(ms(159), (ANN, TEMPLATE)) is FULL
    assert refusals.find(ms(160), (ANN, TEMPLATE)) is None


def test_another_client_or_kind_of_request_is_not_refused() -> None:
    refusals = LastingRefusals()
    refusals.add(0, (ANN, TEMPLATE), FULL, ms(3), PLACE_NS)
    assert refusals.find(0, ("bob", TEMPLATE)) is None
    assert refusals.find(0, (ANN, a_template())) is None
    assert refusals.find(0, (ANN, TEMPLATE)) is FULL


@given(st.lists(st.integers(0, 20), max_size=60))
def test_the_memory_is_bounded(names: list[int]) -> None:
    refusals = LastingRefusals(limit=8)
    for name in names:
        refusals.add(0, (str(name), TEMPLATE), FULL, ms(3), PLACE_NS)
        assert refusals.find(0, (str(name), TEMPLATE)) is FULL
        assert len(refusals._refusals) <= 8


class Server:
    """A handler whose model `full` has no place for 9 s. Every other model echoes."""

    def __init__(self) -> None:
        self.gateway = FakeGateway()
        self.oip = OipHandler(self.gateway, HttpSettings())

    async def post(
        self, body: bytes, length: bytes = b"", client: str = ANN, model: str = "full", key: bytes = b""
    ) -> HttpResponse:
        """Send a body. `length`: that of the JSON before binary data."""
        headers = {LENGTH: length, b"authorization": key}
        headers = {name: value for name, value in headers.items() if value}
        account = ClientAccount(name=client)
        request = HttpRequest("POST", f"/v2/models/{model}/infer", "", headers, body, account)
        return self.oip.refuse_again(request, len(body)) or await respond(self.oip, request)

    def counts(self) -> tuple[int, int]:
        """Return how many requests went to the core, and how many were refused without it."""
        return len(self.gateway.predicts), len(self.gateway.refused)


def json_body(*values: float, **fields: Any) -> bytes:
    return json.dumps({"inputs": [{**ROW, "data": values or (1, 2, 3, 4)}], **fields}).encode()


def binary_body(data: bytes = FOUR, **fields: Any) -> tuple[bytes, bytes]:
    """Return a body, and the length of its JSON."""
    head = json.dumps({"inputs": [{**ROW, "parameters": {"binary_data_size": len(data)}}], **fields}).encode()
    return head + data, b"%d" % len(head)


@pytest.mark.parametrize("is_binary", [False, True])
def test_the_same_request_with_other_values_gets_the_same_refusal(is_binary: bool) -> None:
    async def run() -> None:
        server = Server()
        first, length = binary_body() if is_binary else (json_body(), b"")
        second = first[:-16] + bytes(range(16)) if is_binary else json_body(5.5, 6, 7, 8)
        refused = [await server.post(body, length) for body in (first, second, second)]
        assert server.counts() == (1, 2)
        assert server.gateway.refused == ["full/1"] * 2
        assert refused[1] == refused[2] == refused[0]
        assert (refused[0].status, dict(refused[0].headers)[b"retry-after"]) == (429, b"9")

    asyncio.run(run())


@pytest.mark.parametrize("model", ["refused", "late", "lost"])
def test_other_failures_say_nothing_about_the_next_request(model: str) -> None:
    async def run() -> None:
        server = Server()
        for _ in range(3):
            await server.post(json_body(), model=model)
        assert server.counts() == (3, 0)

    asyncio.run(run())


def test_requests_that_may_have_a_place_go_to_the_core() -> None:
    async def run() -> None:
        server = Server()
        await server.post(json_body())
        await server.post(json_body(), client="bob")
        await server.post(json_body(), model="echo")
        await server.post(json_body(parameters={"slo_ms": 500}))
        await server.post(json_body().replace(b"4.0]", b'4], "x": [1]').replace(b"4]", b'4], "x": [1]'))
        two = json.dumps({"inputs": [{**ROW, "shape": [2, 4], "data": list(range(8))}]}).encode()
        await server.post(two)
        body, length = binary_body()
        await server.post(body, length)
        assert server.counts()[1] == 0
        await server.post(body, length)
        assert server.counts()[1] == 1
        cut = await server.post(body[:-1], length)
        assert (cut.status, server.counts()[1]) == (400, 1)

    asyncio.run(run())


def test_the_head_and_the_begin_of_a_binary_body_are_enough() -> None:
    async def run() -> None:
        server = Server()
        body, length = binary_body()
        await server.post(body, length)
        begin = body[: int(length) + 3]
        request = HttpRequest("POST", "/v2/models/full/infer", "", {LENGTH: length}, begin, ClientAccount(name=ANN))
        assert server.oip.refuse_again(request, len(body)) is not None
        assert server.oip.refuse_again(request, len(body) + 4) is None, "its body must be invalid"

    asyncio.run(run())


def test_while_a_canary_gets_requests_only_those_for_a_version_are_refused_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        server = Server()
        monkeypatch.setattr(server.gateway.core.catalogue, "has_canary", lambda name: name == "full")
        for _ in range(2):
            await server.post(json_body())
        for _ in range(2):
            await server.post(json_body(), model="full/versions/1")
        assert server.counts() == (3, 1)

    asyncio.run(run())


def test_refused_requests_count_for_their_key_and_its_rate() -> None:
    async def run() -> None:
        server = Server()
        access = server.gateway.core.access
        digest = "sha256:" + hashlib.sha256(b"k").hexdigest()
        access.replace_keys({"ann": KeyEntry((digest,), infer=("full",), rate=0.001, burst=3)})
        responses = [await server.post(json_body(), key=b"Bearer k") for _ in range(5)]
        assert [b"has sent more than" in response.body for response in responses] == [False] * 3 + [True] * 2
        assert access.find_grant("ann").requests == 5
        wrong = await server.post(json_body(), key=b"Bearer x")
        assert wrong.status == 401

    asyncio.run(run())


def test_after_a_while_without_a_refusal_all_requests_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lasting_refusals, "MEMORY_NS", 0)

    async def run() -> None:
        server = Server()
        for _ in range(2):
            await server.post(json.dumps(GOOD).encode())
        assert server.counts() == (2, 0)

    asyncio.run(run())
