"""Decompression of HTTP bodies in bounded steps."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import pytest

from fakes.http_connections import Door, until
from horologe_common.core.accounts import Total
from horologe_common.status import InvalidInput, Refused, TooLarge
from horologe_frontend.http.client_accounts import ClientAccount, HeldBytes
from horologe_frontend.http.compression import STEP_BYTES, Inflation, compress_body, decompress_body


def inflate(body: bytes, limit: int = 1 << 20, held: HeldBytes | None = None, encoding: bytes = b"gzip") -> bytes:
    held = held or HeldBytes(ClientAccount())
    return asyncio.run(decompress_body(body, encoding, limit, held))


@pytest.mark.parametrize("size", [0, 1, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, 1_000_000])
def test_bodies_are_decompressed_in_steps(size: int) -> None:
    content = bytes(size)
    assert inflate(gzip.compress(content)) == content
    assert inflate(gzip.compress(content[:1000]) + gzip.compress(content)) == content[:1000] + content
    assert inflate(zlib.compress(content), encoding=b"deflate") == content
    packed = asyncio.run(compress_body((content[:1000], content[1000:]), b"gzip", HeldBytes(ClientAccount())))
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
    account = ClientAccount(Total(max_held_bytes=10_000_000, share=1.0))
    bomb = gzip.compress(bytes(9_000_000))
    with HeldBytes(account) as held:
        assert len(inflate(bomb, 1 << 30, held)) == 9_000_000
        assert account.held_bytes == 9_000_000
        with HeldBytes(account) as second, pytest.raises(Refused):
            inflate(bomb, 1 << 30, second)
        with pytest.raises(TooLarge):
            inflate(bomb, 100_000, HeldBytes(ClientAccount()))
    assert account.held_bytes == 0


def test_no_step_runs_after_the_client_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    body = gzip.compress(bytes(40_000_000))
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    steps = []
    step = Inflation.step

    def count_step(inflation: Inflation) -> bool:
        steps.append(1)
        return step(inflation)

    monkeypatch.setattr(Inflation, "step", count_step)

    async def scenario() -> None:
        door = Door()
        door.account.turns.turn_ns = 0
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
