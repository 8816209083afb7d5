"""What one HTTP client may use: memory, framing, connections, and turns of the loop."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fake_gateway import FakeGateway
from horologe_common.clock import ms
from horologe_common.status import InvalidInput, Refused, TooLarge
from horologe_frontend.http import fair_turns
from horologe_frontend.http.accounts import Account, ClientAccounts, HeldBytes, client_name
from horologe_frontend.http.compression import STEP_BYTES, Inflation, compress_body, decompress_body
from horologe_frontend.http.connection import HttpConnection
from horologe_frontend.http.fair_turns import FairTurns
from horologe_frontend.http.request_reader import LINGER_BYTES
from horologe_frontend.http.server import HttpServer
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip.handler import OipHandler

if TYPE_CHECKING:
    from collections.abc import Callable

CHUNKED = b"POST /v2/models/echo/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
BODY = b'{"inputs": [{"name": "in", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}'
REQUEST = b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(BODY), BODY)


class Door:
    """A server and one connection with a transport that records what is written, and whether it was aborted."""

    def __init__(self, **settings: Any) -> None:
        self.server = HttpServer(values := HttpSettings(**settings), OipHandler(FakeGateway(), values))
        self.total = self.server.limits.total
        account = self.server.limits.clients.add_connection("10.0.0.1")
        assert account is not None
        self.account = account
        self.connection = HttpConnection(self.server, account)
        self.written = b""
        self.aborted = False
        self.unsent = 0
        self.is_read = True
        transport: Any = SimpleNamespace(
            write=self._write,
            writelines=lambda parts: self._write(b"".join(parts)),
            abort=self._abort,
            can_write_eof=lambda: False,
            get_write_buffer_size=lambda: self.unsent,
            pause_reading=lambda: self._read(False),
            resume_reading=lambda: self._read(True),
            close=lambda: None,
            is_closing=lambda: False,
        )
        self.connection.connection_made(transport)

    def _write(self, data: bytes) -> None:
        self.written += data

    def _abort(self) -> None:
        self.aborted = True

    def _read(self, is_read: bool) -> None:
        self.is_read = is_read

    async def send(self, data: bytes, size: int = 50_000) -> bytes:
        """Pass `data` to the connection in reads of `size` bytes. Return what was written."""
        for at in range(0, len(data), size):
            self.connection.data_received(data[at : at + size])
            for _ in range(4):
                await asyncio.sleep(0)
        return self.written

    def close(self) -> None:
        self.connection.connection_lost(None)
        self.total.check()
        assert (self.total.requests, self.total.held_bytes, self.total.connections) == (0, 0, 0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true, at most 1,000 iterations of the loop."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition did not become true")


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
        (b"GET /%s HTTP/1.1\r\n\r\n" % (b"u" * 70_000), 431),
        (b"GET / HTTP/1.1\r\n" + b"a:b\r\n" * 300 + b"\r\n", 431),
        (CHUNKED + chunks(BODY + b" " * 400_000, 512), 200),
        (CHUNKED + chunks(BODY, 1), 200),
    ],
)
def test_framing_is_bounded(data: bytes, status: int) -> None:
    assert answer_to(data).startswith(b"HTTP/1.1 %d " % status)


def test_tiny_chunks_take_the_memory_of_the_body() -> None:
    async def scenario() -> None:
        door = Door()
        await door.send(CHUNKED + chunks(BODY + b" " * 50_000, 60)[:-5])
        reader = door.connection._reader
        assert reader is not None
        assert isinstance(reader._body._parts, bytearray)
        assert door.total.held_bytes < len(BODY) + 50_000 + len(CHUNKED)
        door.close()

    asyncio.run(scenario())


def test_incomplete_headers_are_held_bytes() -> None:
    async def scenario() -> None:
        door = Door(held_limit_bytes=20_000)
        await door.send(b"GET / HTTP/1.1\r\nA: " + b"x" * 5000)
        assert door.total.held_bytes > 5000
        assert b" 503 " in await door.send(b"x" * 30_000)
        door.close()

    asyncio.run(scenario())


def test_one_client_holds_half_of_the_bytes_and_requests() -> None:
    async def scenario() -> None:
        clients = ClientAccounts(HttpSettings(held_limit_bytes=1000, max_connections=4))
        first, second = clients.add_connection("10.0.0.1"), clients.add_connection("10.0.0.2")
        assert first is not None
        assert second is not None
        assert first.try_reserve(500)
        assert not first.try_reserve(1)
        assert second.try_reserve(500)
        assert clients.add_connection("10.0.0.1") is first
        assert clients.add_connection("10.0.0.1") is None
        assert clients.add_connection("10.0.0.2") is second
        assert clients.add_connection("10.0.0.3") is None

    asyncio.run(scenario())


def test_a_client_is_an_address_or_a_network() -> None:
    assert client_name("10.1.2.3") == client_name("::ffff:10.1.2.3")
    assert client_name("2001:db8::1") == client_name("2001:db8::ffff:1%eth0")
    assert client_name("2001:db8::1") != client_name("2001:db8:0:1::1")
    assert client_name("::ffff:10.1.2.3") != client_name("::ffff:10.1.2.4")


@pytest.mark.parametrize(("unsent", "aborted"), [(400, False), (600, True)])
def test_responses_that_are_not_read_are_held_bytes(unsent: int, aborted: bool) -> None:
    async def scenario() -> None:
        door = Door(held_limit_bytes=1000)
        door.unsent = unsent
        door.connection.pause_writing()
        assert (door.aborted, door.total.held_bytes) == (aborted, 0 if aborted else unsent)
        if not aborted:
            door.connection.resume_writing()
            assert door.total.held_bytes == 0
            door.connection.pause_writing()
        door.close()

    asyncio.run(scenario())


def inflate(body: bytes, limit: int = 1 << 20, held: HeldBytes | None = None, encoding: bytes = b"gzip") -> bytes:
    held = held or HeldBytes(Account())
    return asyncio.run(decompress_body(body, encoding, limit, held))


@pytest.mark.parametrize("size", [0, 1, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, 1_000_000])
def test_bodies_are_decompressed_in_steps(size: int) -> None:
    content = bytes(size)
    assert inflate(gzip.compress(content)) == content
    assert inflate(gzip.compress(content[:1000]) + gzip.compress(content)) == content[:1000] + content
    assert inflate(zlib.compress(content), encoding=b"deflate") == content
    packed = asyncio.run(compress_body(content, b"gzip", HeldBytes(Account())))
    assert gzip.decompress(packed) == content


def test_a_body_of_many_empty_members_is_refused_after_few_bytes() -> None:
    body = gzip.compress(b"") * 500_000
    with pytest.raises(InvalidInput, match="gzip members"):
        inflate(body)
    inflation = Inflation(body, 31)
    assert not inflation.step()
    assert inflation._at < STEP_BYTES // 4


def test_a_step_is_bounded() -> None:
    inflation = Inflation(gzip.compress(bytes(50_000_000)), 31)
    size = 0
    while not inflation.step():
        assert len(inflation.output) - size <= 2 * STEP_BYTES
        size = len(inflation.output)


def test_decompressed_bodies_are_held_bytes() -> None:
    account = Account(max_held_bytes=10_000_000)
    bomb = gzip.compress(bytes(9_000_000))
    with HeldBytes(account) as held:
        assert len(inflate(bomb, 1 << 30, held)) == 9_000_000
        assert account.held_bytes == 9_000_000
        with HeldBytes(account) as second, pytest.raises(Refused):
            inflate(bomb, 1 << 30, second)
        with pytest.raises(TooLarge):
            inflate(bomb, 100_000, HeldBytes(Account()))
    assert account.held_bytes == 0


def test_no_step_runs_after_the_client_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_turns, "TURN_NS", 0)
    body = gzip.compress(bytes(40_000_000))
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    steps = []
    step = Inflation.step

    def count_step(inflation: Inflation) -> bool:
        steps.append(1)
        return step(inflation)

    monkeypatch.setattr(Inflation, "step", count_step)

    async def scenario() -> None:
        door = Door()
        await door.send(head % len(body) + body)
        await until(lambda: len(steps) >= 3)
        assert door.total.held_bytes > STEP_BYTES
        door.connection.connection_lost(None)
        ran = len(steps)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(steps) == ran
        assert door.total.held_bytes == 0

    asyncio.run(scenario())


def test_clients_take_turns_and_calls_of_one_client_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_turns, "TURN_NS", 0)
    calls: list[str] = []

    def call(name: str) -> Callable[[], None]:
        return lambda: calls.append(name)

    async def scenario() -> None:
        turns = FairTurns()
        for number in range(3):
            turns.call("a", call(f"a{number}"))
        turns.call("b", call("b0"))
        assert calls == []
        await until(lambda: len(calls) == 4)

    asyncio.run(scenario())
    assert calls == ["a0", "b0", "a1", "a2"]


def test_a_client_rests_after_a_long_call_while_there_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_turns, "LONG_CALL_NS", -ms(1))
    calls: list[str] = []

    async def scenario(*, contended: bool) -> None:
        turns, done = FairTurns(), asyncio.Event()
        turns.is_contended = lambda: contended
        turns.call("a", lambda: calls.append("a0"))
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


def test_reads_beyond_the_turn_wait_and_are_held_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_turns, "TURN_NS", 0)

    async def scenario() -> None:
        door = Door(held_limit_bytes=1000)
        door.connection.data_received(REQUEST)
        assert (door.written, door.total.held_bytes) == (b"", len(REQUEST))
        for _ in range(8):
            await asyncio.sleep(0)
        assert door.written.startswith(b"HTTP/1.1 200 ")
        door.connection.data_received(b"x" * 501)
        assert door.aborted
        door.close()

    asyncio.run(scenario())


def test_what_follows_the_last_request_is_read_in_the_turns_of_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_turns, "READ_NS", fair_turns.TURN_NS)

    async def scenario() -> None:
        doors = [Door() for _ in range(3)]
        turns = doors[0].total.turns
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

    asyncio.run(scenario())


def test_what_follows_the_last_request_is_bounded() -> None:
    async def scenario() -> None:
        door = Door()
        await door.send(b"malformed\r\n\r\n")
        await door.send(bytes(LINGER_BYTES + 1), 200_000)
        assert not door.is_read
        door.close()

    asyncio.run(scenario())
