"""Connections that are lost at any step of a request, without sockets: the limits release every request."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fakes.gateway import ENDS
from fakes.http_connections import Door, until
from harness.event_loop import in_loop
from horologe_common.clock import s
from horologe_frontend.http import connection
from horologe_frontend.http.connection import HttpConnection
from horologe_frontend.http.timeouts import ConnectionState
from horologe_frontend.oip import lasting_refusals

if TYPE_CHECKING:
    from collections.abc import Iterator

BODY = b'{"inputs": [{"name": "in", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}'
REQUEST = b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s"


@pytest.fixture(autouse=True, scope="module")
def long_memory() -> Iterator[None]:
    """A refusal lasts also where the test waits for its processor, and pauses after it are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lasting_refusals, "MEMORY_NS", s(100))
        patch.setattr(connection, "PAUSE_S", 0.0)
        yield


@pytest.mark.parametrize("model", [b"echo", b"slow"])
@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("ahead", [1, 3])
@in_loop
async def test_disconnect_at_any_step_releases_the_requests(model: bytes, steps: int, ahead: int) -> None:
    door = Door()
    door.connection.data_received(REQUEST % (model, len(BODY), BODY) * ahead)
    assert door.total.requests == ahead
    for _ in range(steps):
        await asyncio.sleep(0)
    door.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert (door.total.requests, door.total.held_bytes) == (0, 0)


def a_binary_request(model: bytes, rows: int = 16) -> bytes:
    tensor = '{"name": "in", "shape": [%d, 4], "datatype": "FP32", "parameters": {"binary_data_size": %d}}'
    content = f'{{"inputs": [{tensor % (rows, 16 * rows)}]}}'.encode()
    length = b"h\r\nInference-Header-Content-Length: %d" % len(content)
    body = content + b"\x01" * 16 * rows
    return (REQUEST % (model, len(body), body)).replace(b"h\r\n", length + b"\r\n", 1)


MESSAGES = (
    REQUEST % (b"echo", len(BODY), BODY),
    REQUEST % (b"echo", len(BODY), BODY.replace(b"[1, 2", b"[5, 6")),
    REQUEST % (b"refused", len(BODY), BODY),
    REQUEST % (b"full", len(BODY), BODY),
    REQUEST % (b"full", len(BODY), BODY.replace(b"[1, 2", b"[5, 6")),
    REQUEST % (b"echo", 3, b"{]}"),
    b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
    % (len(BODY), BODY),
    b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nAccept-Encoding: gzip\r\n\r\n",
    b"HEAD /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n",
    b"GET /v2/health/live HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"\r\nGET /v2/nope HTTP/1.1\r\nHost: h\r\nA: 1\r\nA: 2\r\n\r\n",
    b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\nGET /v2 HTTP/1.1\r\nHost: h\r\n\r\n",
    FULL := a_binary_request(b"full"),
    FULL[:-64] + bytes(64),
)


async def responses(arrivals: list[bytes], **settings: Any) -> list[bytes]:
    """Return what a new server writes after each of the arrivals, without dates."""
    door = Door(**settings)
    after = []
    for arrival in arrivals:
        door.connection.data_received(arrival)
        for _ in range(40):
            await asyncio.sleep(0)
        after.append(re.sub(rb"date: [^\r]*", b"", door.written))
        door.written = b""
    assert door.total.requests == 0
    door.close()
    return after


@hypothesis_settings(deadline=None, max_examples=50)
@given(
    st.lists(st.sampled_from(MESSAGES), min_size=1, max_size=8), st.integers(1, 60) | st.sampled_from((200, 300, 1000))
)
@in_loop
async def test_responses_depend_neither_on_earlier_requests_nor_on_the_reads(messages: list[bytes], size: int) -> None:
    alone = [(await responses([message]))[0] for message in messages]
    assert await responses(messages) == alone
    data = b"".join(messages)
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    assert b"".join(await responses(parts)) == b"".join(alone)


@pytest.mark.parametrize("size", [1, 30, 1000])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_request_to_upgrade_is_answered_over_http_1(size: int, chunked: bool) -> None:
    """Java's HttpClient and `curl --http2` send these headers with every first request."""
    framed = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY) if chunked else BODY
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % len(BODY)
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB"
    data = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: h\r\n%s\r\n%s\r\n\r\n%s" % (length, upgrade, framed)
    written = b"".join(asyncio.run(responses([data[at : at + size] for at in range(0, len(data), size)])))
    assert written.startswith(b"HTTP/1.1 200 OK\r\n")
    assert (written.count(b"HTTP/1.1"), b"connection: close" in written) == (1, True)


def test_requests_to_upgrade_have_one_answer_for_each_connection() -> None:
    request = b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    for method in (b"GET", b"CONNECT"):
        written = b"".join(asyncio.run(responses([request.replace(b"GET", method) * 5000, request])))
        assert written.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize(("version", "continues"), [(b"1.1", 1), (b"1.0", 0)])
def test_only_clients_of_http_1_1_get_100_continue(version: bytes, continues: int) -> None:
    """An HTTP/1.0 client takes it for the response (RFC 9110 10.1.1)."""
    head = b"POST /v2/models/echo/infer HTTP/%s\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    written = b"".join(asyncio.run(responses([head % (version, len(BODY)), BODY])))
    assert (written.count(b" 100 Continue"), written.count(b" 200 OK")) == (continues, 1)


def test_a_repeated_request_is_refused_at_the_limit() -> None:
    refused = asyncio.run(responses([MESSAGES[0]] * 2, max_requests=0))
    assert [b" 429 " in response for response in refused] == [True, True]


def lengths_parsed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the lengths of the data that is parsed from now on."""
    lengths: list[int] = []
    parse = HttpConnection._parse

    def count_and_parse(connection: HttpConnection, data: bytes) -> None:
        lengths.append(len(data))
        parse(connection, data)

    monkeypatch.setattr(HttpConnection, "_parse", count_and_parse)
    return lengths


def test_a_head_that_two_requests_share_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = lengths_parsed(monkeypatch)
    asyncio.run(responses([MESSAGES[0], MESSAGES[1], MESSAGES[0][:-5], MESSAGES[0][-5:], MESSAGES[0]]))
    assert lengths == [len(MESSAGES[0]), len(MESSAGES[0]) - 5, 5]


@pytest.mark.parametrize("model", [b"full", b"refused"])
@in_loop
async def test_the_body_of_a_request_that_is_refused_again_is_neither_parsed_nor_held(
    model: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    door, request = Door(), a_binary_request(model, 20_000)
    refusal = await door.send(request)
    assert refusal.startswith(b"HTTP/1.1 429 ")
    parsed = lengths_parsed(monkeypatch)
    await door.send(request[:-1], 50_000)
    assert (door.written, door.connection.state()) == (refusal, ConnectionState.BODY)
    is_again = model == b"full"
    assert bool(parsed) != is_again
    assert bool(door.total.held_bytes) != is_again
    await door.send(request[-1:] + request)
    assert door.written.count(b"HTTP/1.1 429 ") == 3
    door.close()


@pytest.mark.parametrize("rows", [16, 4000])
@in_loop
async def test_what_arrives_after_a_refusal_that_is_repeated_is_held(
    rows: int,
) -> None:
    door, request = Door(), a_binary_request(b"full", rows)
    await door.send(request)
    door.connection.data_received(request)
    assert (door.written.count(b"HTTP/1.1 429 "), door.is_read) == (2, True)
    door.connection.data_received(request[:100])
    assert (door.written.count(b"HTTP/1.1 429 "), door.is_read) == (2, False)
    door.connection.data_received(request[100:])  # reading was resumed for another reason
    assert door.total.held_bytes == len(request)
    await until(lambda: door.written.count(b"HTTP/1.1 429 ") == 3)
    assert (door.total.held_bytes, door.is_read) == (0, True)
    door.close()


@in_loop
async def test_the_time_for_which_a_request_was_held_counts_for_its_deadline() -> None:
    door, request = Door(), a_binary_request(b"full")
    await door.send(request)
    predicts = door.server.handler._gateway.predicts  # type: ignore[attr-defined]
    door.connection.data_received(request)
    assert (len(predicts), door.written.count(b"HTTP/1.1 429 ")) == (1, 2)
    for _ in range(2):
        door.written = b""
        door.connection.data_received(a_binary_request(b"echo"))
        await until(lambda: b" 200 OK" in door.written)
    assert [predict.waited_ns > 0 for predict in predicts] == [False, True, False]
    door.close()


@pytest.mark.parametrize("end", ["close", "drain"])
@in_loop
async def test_a_connection_that_ends_while_it_holds_a_request(end: str) -> None:
    door, request = Door(), a_binary_request(b"full")
    await door.send(request)
    door.connection.data_received(request)
    door.connection.data_received(request)
    assert door.total.held_bytes == len(request)
    if end == "drain":
        door.server.closing = True
        door.connection.drain()
        await until(lambda: door.written.count(b"HTTP/1.1 429 ") == 3)
        assert door.written.count(b"connection: close") == 1
    door.close()
    assert door.total.held_bytes == 0


@in_loop
async def test_a_client_that_leaves_or_stops_in_a_body_that_is_discarded() -> None:
    request = a_binary_request(b"full", 2000)
    for end, status in (("close", b""), ("expire", b" 408 "), ("eof_received", b" 400 ")):
        door = Door()
        await door.send(request)
        door.written = b""
        await door.send(request[:-1])
        if end != "close":
            getattr(door.connection, end)()
        assert door.written[8:13] == status
        door.close()


@pytest.mark.parametrize("size", [100, 10_000, 100_000])
@in_loop
async def test_a_request_that_may_have_a_place_uses_up_one(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place is free at once, the next one after a second, and two requests are sent for each."""
    full = msgspec.structs.replace(ENDS["full"], refuses_ns=0, place_ns=s(1))
    monkeypatch.setitem(ENDS, "full", full)
    door, request = Door(), a_binary_request(b"full", 4000)
    sent = []
    for _ in range(4):
        await door.send(request, size)
        sent.append(len(door.server.handler._gateway.predicts))  # type: ignore[attr-defined]
    assert sent == [1, 2, 2, 2]
    assert door.written.count(b"HTTP/1.1 429 ") == 4
