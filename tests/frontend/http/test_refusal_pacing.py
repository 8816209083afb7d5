"""Connections that ask again at once after each refusal learn of refusals later; all others at once."""

from __future__ import annotations

import asyncio

from fakes.http_connections import Door
from harness.event_loop import in_loop
from horologe_common.clock import ms
from horologe_frontend.http.refusal_pacing import AT_ONCE_NS, FIRST_NS, FREE, LONGEST_NS, RefusalPacing

BODY = b'{"inputs": [{"name": "in", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}'
REQUEST = b"POST /v2/models/%s/infer HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s"


async def send(door: Door, model: bytes) -> None:
    door.connection.data_received(REQUEST % (model, len(BODY), BODY))
    for _ in range(8):
        await asyncio.sleep(0)


def pauses(count: int, wait_ns: int, pacing: RefusalPacing, now_ns: int = 0) -> list[int]:
    """Return the pauses before `count` refusals of a client that asks again after `wait_ns`."""
    taken = []
    for _ in range(count):
        pacing.begin_request(now_ns)
        taken.append(pacing.pause_ns())
        now_ns += taken[-1]
        pacing.end_request(now_ns, refused=True)
        now_ns += wait_ns
    return taken


def test_the_pause_doubles_up_to_the_longest() -> None:
    taken = pauses(FREE + 8, ms(1), RefusalPacing())
    assert taken[: FREE + 3] == [*[0] * FREE, FIRST_NS, 2 * FIRST_NS, 4 * FIRST_NS]
    assert taken[-1] == LONGEST_NS


def test_a_client_that_waits_before_it_asks_again_is_never_paused() -> None:
    assert set(pauses(50, AT_ONCE_NS + 1, RefusalPacing())) == {0}


def test_answers_shorten_the_pauses_and_end_them() -> None:
    pacing = RefusalPacing()
    (*_, longest) = pauses(FREE + 8, 0, pacing)
    pacing.end_request(0, refused=False)
    assert 0 < pauses(1, 0, pacing)[0] < longest
    for _ in range(4):
        pacing.end_request(0, refused=False)
    assert pacing.pause_ns() == 0


@in_loop
async def test_a_request_behind_many_refusals_reaches_the_model_at_once() -> None:
    door = Door()
    for _ in range(FREE):
        await send(door, b"refused")
    assert door.written.count(b"HTTP/1.1 429") == FREE
    await send(door, b"refused")
    assert door.written.count(b"HTTP/1.1 429") == FREE  # the last one waits
    for _ in range(1000):
        await asyncio.sleep(0.001 if door.total.requests else 0)
    assert door.written.count(b"HTTP/1.1 429") == FREE + 1
    await send(door, b"echo")
    assert door.written.count(b"HTTP/1.1 200") == 1
    door.close()


@in_loop
async def test_a_client_that_leaves_during_a_pause_leaves_nothing() -> None:
    door = Door()
    for _ in range(FREE + 1):
        await send(door, b"refused")
    assert door.total.requests == 1
    door.close()
    await asyncio.sleep(0)
    assert (door.total.requests, door.total.held_bytes) == (0, 0)
