"""Bounds of the HTTP server for each client: framing, held bytes, turns."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
import weakref
from typing import TYPE_CHECKING, Any

import pytest

from harness.event_loop import in_loop
from horologe_common.clock import ms
from horologe_common.transport.clients.fair_turns import LONG_CALL_NS, PAUSE_S, FairTurns
from horologe_frontend.http.client_accounts import ClientAccounts, client_name
from horologe_frontend.http.connection import READ_NS
from horologe_frontend.http.request_reader import LINGER_BYTES
from horologe_frontend.http.settings import HttpSettings

if TYPE_CHECKING:
    from collections.abc import Callable
from fakes.http_connections import Door, until

CHUNKED = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = b'{"inputs": [{"name": "in", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}'
REQUEST = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


def answer_to(data: bytes, **settings: Any) -> bytes:
    """Return what a server writes when `data` arrives. It holds nothing when the connection is closed."""

    async def scenario() -> bytes:
        door = Door(**settings)
        written = await door.send(data)
        door.close()
        return written

    return asyncio.run(scenario())


def chunks(body: bytes, size: int, extension: bytes = b"") -> bytes:
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x%s\r\n%s\r\n" % (len(part), extension, part) for part in parts) + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (CHUNKED + chunks(b" " * 400_000, 1), 400),
        (CHUNKED + chunks(b" " * 400_000, 64, b";" + b"e" * 200), 400),
        (CHUNKED + b"5;" + b"e" * 200_000, 400),
        (CHUNKED + b"0\r\n" + b"a: b\r\n" * 300, 431),
        (CHUNKED + b"0\r\n" + b"a: %s\r\n" % (b"b" * 30_000) * 5, 431),
        (b"GET /%s HTTP/1.1\r\nHost: h\r\n\r\n" % (b"u" * 70_000), 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\n" + b"a:b\r\n" * 300 + b"\r\n", 431),
        (CHUNKED + chunks(BODY + b" " * 400_000, 512), 200),
        (CHUNKED + chunks(BODY, 1), 200),
    ],
)
def test_framing_is_bounded(data: bytes, status: int) -> None:
    assert answer_to(data).startswith(b"HTTP/1.1 %d " % status)


@in_loop
async def test_tiny_chunks_take_the_memory_of_the_body() -> None:
    door = Door()
    await door.send(CHUNKED + chunks(BODY + b" " * 50_000, 60)[:-5])
    reader = door.connection._reader
    assert reader is not None
    assert isinstance(reader._body._parts, bytearray)
    assert door.total.held_bytes < len(BODY) + 50_000 + len(CHUNKED)
    door.close()


@in_loop
async def test_incomplete_headers_are_held_bytes() -> None:
    door = Door(held_limit_bytes=20_000)
    await door.send(b"GET / HTTP/1.1\r\nHost: h\r\nA: " + b"x" * 5000)
    assert door.total.held_bytes > 5000
    assert b" 429 " in await door.send(b"x" * 30_000)
    door.close()


@in_loop
async def test_one_client_gets_half_of_what_the_others_leave() -> None:
    clients = ClientAccounts(HttpSettings(held_limit_bytes=1000, max_connections=4))
    first, second = clients.add_connection("10.0.0.1"), clients.add_connection("10.0.0.2")
    assert first is not None
    assert second is not None
    assert first.try_reserve(500)
    assert not first.try_reserve(1)
    assert second.try_reserve(250)
    assert not second.try_reserve(1)
    assert clients.add_connection("10.0.0.1") is first
    assert clients.add_connection("10.0.0.1") is None
    assert clients.add_connection("10.0.0.2") is None
    assert clients.add_connection("10.0.0.3") is not None
    assert clients.add_connection("10.0.0.4") is None


def test_a_client_is_an_address_or_a_network() -> None:
    assert client_name("10.1.2.3") == client_name("::ffff:10.1.2.3")
    assert client_name("2001:db8::1") == client_name("2001:db8::ffff:1%eth0")
    assert client_name("2001:db8::1") != client_name("2001:db8:0:1::1")
    assert client_name("::ffff:10.1.2.3") != client_name("::ffff:10.1.2.4")


@pytest.mark.parametrize(("unsent", "aborted"), [(400, False), (600, True)])
@in_loop
async def test_responses_that_are_not_read_are_held_bytes(unsent: int, aborted: bool) -> None:
    door = Door(held_limit_bytes=1000)
    door.unsent = unsent
    door.connection.pause_writing()
    assert (door.aborted, door.total.held_bytes) == (aborted, 0 if aborted else unsent)
    if not aborted:
        door.connection.resume_writing()
        assert door.total.held_bytes == 0
        door.connection.pause_writing()
    door.close()


def test_clients_take_turns_and_calls_of_one_client_keep_their_order() -> None:
    calls: list[str] = []

    def call(name: str) -> Callable[[], None]:
        return lambda: calls.append(name)

    async def scenario() -> None:
        turns = FairTurns(turn_ns=0)
        for number in range(3):
            turns.call("a", call(f"a{number}"))
        turns.call("b", call("b0"))
        assert calls == []
        await until(lambda: len(calls) == 4)

    asyncio.run(scenario())
    assert calls == ["a0", "b0", "a1", "a2"]


class LargeBody:
    """An argument that a test can hold weakly."""


def test_the_arguments_of_a_call_that_fails_are_freed_without_a_garbage_collection() -> None:
    def fail(body: LargeBody) -> None:
        raise ValueError(body)

    async def scenario() -> bool:
        turns, body = FairTurns(), LargeBody()
        freed = weakref.ref(body)
        turns.defer("a", lambda: None)
        with contextlib.suppress(ValueError):
            await turns.in_turn("a", fail, body)
        del body
        await asyncio.sleep(0)  # until then the loop holds the future that has woken this task
        return freed() is None

    gc.disable()
    try:
        assert asyncio.run(scenario())
    finally:
        gc.enable()


def test_a_client_rests_after_a_long_call_while_there_are_others() -> None:
    calls: list[str] = []

    def long_call() -> None:
        calls.append("a0")
        end_ns = time.thread_time_ns() + LONG_CALL_NS + ms(1)
        while time.thread_time_ns() < end_ns:
            pass

    async def scenario(*, contended: bool) -> None:
        turns, done = FairTurns(lambda: PAUSE_S if contended else 0.0), asyncio.Event()
        turns.call("a", long_call)
        turns.call("a", lambda: calls.append("a1"))
        turns.call("a", done.set)
        turns.call("b", lambda: calls.append("b0"))
        await until(lambda: "b0" in calls)
        resting = "a1" not in calls
        await done.wait()
        assert resting == contended

    asyncio.run(scenario(contended=True))
    assert calls == ["a0", "b0", "a1"]
    asyncio.run(scenario(contended=False))


@in_loop
async def test_reads_beyond_the_turn_wait_and_are_held_bytes() -> None:
    door = Door(held_limit_bytes=1000)
    door.account.turns.turn_ns = 0
    door.connection.data_received(REQUEST)
    assert (door.written, door.total.held_bytes) == (b"", len(REQUEST))
    for _ in range(8):
        await asyncio.sleep(0)
    assert door.written.startswith(b"HTTP/1.1 200 ")
    door.connection.data_received(b"x" * 501)
    assert door.aborted
    door.close()


@in_loop
async def test_what_follows_the_last_request_is_read_in_the_turns_of_its_client() -> None:
    doors = [Door() for _ in range(3)]
    turns = doors[0].account.turns
    turns.turn_ns = READ_NS
    for door in doors:
        door.connection._turns = turns
        await door.send(b"malformed\r\n\r\n")
    for door in doors:
        door.connection.data_received(bytes(1000))
    assert [door.is_read for door in doors] == [False] * 3
    counts = []
    while not all(door.is_read for door in doors):
        await asyncio.sleep(0)
        counts.append(sum(door.is_read for door in doors))
    assert {1, 2, 3} <= set(counts)
    for door in doors:
        door.close()


@in_loop
async def test_what_follows_the_last_request_is_bounded() -> None:
    door = Door()
    await door.send(b"malformed\r\n\r\n")
    await door.send(bytes(LINGER_BYTES + 1), 200_000)
    assert not door.is_read
    door.close()
