"""Open loops send requests at times drawn in advance. Closed loops keep a fixed number of requests in flight.

In an open loop, latency counts from the due time (no coordinated omission): a generator that falls behind makes no
request look faster.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from horologe_common.transport.alarm import Alarm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_load.samples import Samples
    from horologe_load.targets import Target

BURST = 32
"""Requests sent without a break at most when the loop is behind, so that it reads answers in between."""
DRAIN_S = 10.0
"""Timeout of the last answers. Requests without an answer by then stay UNANSWERED."""
HEAD_START_NS = 20_000_000
CLIENTS = 16
"""Connections opened before the first request."""


async def open_loop(
    target: Target, samples: Samples, arrivals: Sequence[int], drain_s: float = DRAIN_S, not_before_ns: int = 0
) -> float:
    """Send requests at `arrivals`, in nanoseconds from the start, and wait up to `drain_s` for the last answers.

    The start is when the connections are open, but not before the monotonic time `not_before_ns`. Return the seconds
    from the start to the last arrival.
    """
    total, all_answered, start_ns, sent = len(arrivals), asyncio.Event(), 0, 0

    def on_answer(index: int, now_ns: int, outcome: int, answer: object) -> None:
        samples.add_answer(index, now_ns, outcome, answer)
        if not samples.in_flight and sent == total:
            all_answered.set()

    def send_due() -> None:
        nonlocal sent
        now_ns = time.monotonic_ns()
        stop = sent + BURST
        while sent < total and sent < stop and (due_ns := start_ns + arrivals[sent]) <= now_ns:
            sent += 1
            target.send(samples.add_request(due_ns, now_ns), due_ns)
            now_ns = time.monotonic_ns()
        if sent < total:
            timer.set(start_ns + arrivals[sent])

    if not total:
        return 0.0
    await target.start(CLIENTS, on_answer)
    timer = Alarm(asyncio.get_running_loop(), send_due)
    start_ns = max(time.monotonic_ns() + HEAD_START_NS, not_before_ns)
    timer.set(start_ns + max(0, arrivals[0]))
    seconds = arrivals[-1] / 1e9
    try:
        await wait_for(all_answered, (start_ns - time.monotonic_ns()) / 1e9 + seconds + drain_s)
    finally:
        timer.close()
    return seconds


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


async def wait_for(event: asyncio.Event, timeout_s: float) -> None:
    """Return when `event` is set, or after the timeout."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
