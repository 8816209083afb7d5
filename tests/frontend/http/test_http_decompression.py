"""Decompression of HTTP bodies in bounded steps."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from itertools import pairwise
from typing import Any

import pytest

from fakes.http_connections import Door, until
from horologe_common.core.accounts import Total
from horologe_common.status import InvalidInput, Refused, TooLarge
from horologe_frontend.http import steps
from horologe_frontend.http.client_accounts import ClientAccount, HeldBytes
from horologe_frontend.http.compression import GZIP, STEP_BYTES, compress, decompress, inflate
from horologe_frontend.http.steps import run_at_once, run_in_turns


def unpack(body: bytes, limit: int = 1 << 20, encoding: bytes = b"gzip") -> bytes:
    return run_at_once(decompress(body, encoding, limit))


def unpack_held(body: bytes, limit: int, held: HeldBytes) -> bytes:
    return asyncio.run(run_in_turns(decompress(body, b"gzip", limit), held))


@pytest.mark.parametrize("size", [0, 1, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, 1_000_000])
def test_bodies_are_decompressed_in_steps(size: int) -> None:
    content = bytes(size)
    assert unpack(gzip.compress(content)) == content
    assert unpack(gzip.compress(content[:1000]) + gzip.compress(content)) == content[:1000] + content
    assert unpack(zlib.compress(content), encoding=b"deflate") == content
    packed = run_at_once(compress((content[:1000], content[1000:]), b"gzip"))
    assert gzip.decompress(packed) == content


def test_a_body_of_many_empty_members_is_refused_after_few_bytes() -> None:
    body = gzip.compress(b"") * 500_000
    with pytest.raises(InvalidInput, match="gzip members"):
        unpack(body)
    sizes: list[int] = []
    with pytest.raises(InvalidInput):
        sizes.extend(inflate(body, GZIP, 1 << 20))
    assert 0 < len(sizes) < 20


def test_a_step_is_bounded() -> None:
    sizes = list(inflate(gzip.compress(bytes(50_000_000)), GZIP, 1 << 30))
    assert sizes[-1] == 50_000_000
    assert all(after - before <= 2 * STEP_BYTES for before, after in pairwise([0, *sizes]))


def test_decompressed_bodies_are_held_bytes() -> None:
    account = ClientAccount(Total(max_held_bytes=10_000_000, share=1.0))
    bomb = gzip.compress(bytes(9_000_000))
    with HeldBytes(account) as held:
        assert len(unpack_held(bomb, 1 << 30, held)) == 9_000_000
        assert account.held_bytes == 9_000_000
        with HeldBytes(account) as second, pytest.raises(Refused):
            unpack_held(bomb, 1 << 30, second)
        with pytest.raises(TooLarge):
            unpack(bomb, 100_000)
    assert account.held_bytes == 0


def test_no_step_runs_after_the_client_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    body = gzip.compress(bytes(40_000_000))
    head = b"POST /v2/models/echo/infer HTTP/1.1\r\nHost: h\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n"
    ran = []
    advance = steps._advance

    def count_and_advance(*arguments: Any) -> int:
        ran.append(1)
        return advance(*arguments)

    monkeypatch.setattr(steps, "_advance", count_and_advance)

    async def scenario() -> None:
        door = Door()
        door.account.turns.turn_ns = 0
        await door.send(head % len(body) + body)
        await until(lambda: len(ran) >= 3)
        assert door.total.held_bytes > STEP_BYTES
        door.connection.connection_lost(None)
        count = len(ran)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(ran) == count
        assert door.total.held_bytes == 0

    asyncio.run(scenario())
