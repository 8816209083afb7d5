"""Closed loops: a fixed number of requests in flight; each answer is followed by the next request."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horologe_load.samples import Samples
    from horologe_load.targets import Target

DRAIN_S = 10.0
"""Timeout of the last answers. Requests without an answer by then stay UNANSWERED."""


async def closed_loop(target: Target, samples: Samples, clients: int, seconds: float) -> float:
    """Keep `clients` requests in flight for `seconds`. Return the seconds until the last answer."""
    start_ns = time.monotonic_ns()
    end_ns = start_ns + round(seconds * 1e9)
    all_answered = asyncio.Event()

    def send(now_ns: int) -> None:
        target.send(samples.add_request(now_ns, now_ns), now_ns)

    def on_answer(index: int, now_ns: int, outcome: int, answer: object) -> None:
        samples.add_answer(index, now_ns, outcome, answer)
        if now_ns < end_ns:
            send(time.monotonic_ns())
        elif not samples.in_flight:
            all_answered.set()

    await target.start(clients, on_answer)
    start_ns = time.monotonic_ns()
    end_ns = start_ns + round(seconds * 1e9)
    for _ in range(clients):
        send(time.monotonic_ns())
    await wait_for(all_answered, seconds + DRAIN_S)
    return (max(end_ns, max(samples.done_ns)) - start_ns) / 1e9


async def one_by_one(target: Target, samples: Samples, count: int, gap_s: float) -> None:
    """Send `count` requests, each `gap_s` after the answer to the one before, so that no request queues."""
    answered = asyncio.Event()

    def on_answer(index: int, now_ns: int, outcome: int, answer: object) -> None:
        samples.add_answer(index, now_ns, outcome, answer)
        answered.set()

    await target.start(1, on_answer)
    for _ in range(count):
        answered.clear()
        now_ns = time.monotonic_ns()
        target.send(samples.add_request(now_ns, now_ns), now_ns)
        await answered.wait()
        await asyncio.sleep(gap_s)


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    """Return when `event` is set, or after the timeout."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        pass
