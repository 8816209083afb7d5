"""The two ways of asking: closed loop (so many in flight, always) and open loop (when the schedule says)."""

from __future__ import annotations

import asyncio
import gc
import time
from typing import TYPE_CHECKING

import uvloop

from bench.samples import Figures, Samples, figures
from bench.schedule import poisson
from bench.timer import Timer
from bench.workload import Check, Inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.target import Target
    from bench.workload import Scenario

DRAIN_S = 10.0
"""How long the last answers are waited for; what has not come by then is `silent`."""


async def closed_loop(target: Target, samples: Samples, clients: int, seconds: float) -> float:
    """`clients` requests in flight, each answer followed at once by the next request. Returns the seconds it took."""
    start_ns = time.monotonic_ns()
    end_ns = start_ns + round(seconds * 1e9)
    idle = asyncio.Event()

    def send(now_ns: int) -> None:
        target.send(samples.sent(now_ns, now_ns))

    def done(index: int, now_ns: int, code: int, answer: object) -> None:
        samples.done(index, now_ns, code, answer)
        if now_ns < end_ns:
            send(time.monotonic_ns())
        elif not samples.open:
            idle.set()

    await target.start(clients, done)
    start_ns = time.monotonic_ns()
    end_ns = start_ns + round(seconds * 1e9)
    for _ in range(clients):
        send(time.monotonic_ns())
    await _drain(idle, seconds + DRAIN_S)
    return (max(end_ns, max(samples.done_ns)) - start_ns) / 1e9


async def open_loop(target: Target, samples: Samples, arrivals: list[int], clients: int = 16) -> float:
    """Send at `arrivals` (ns from the start) whatever the answers do. Returns the seconds of sending.

    A latency counts from the arrival, not from when this loop came round to it; how late it was is in `samples`.
    """
    total, idle, start_ns, at = len(arrivals), asyncio.Event(), 0, 0

    def done(index: int, now_ns: int, code: int, answer: object) -> None:
        samples.done(index, now_ns, code, answer)
        if not samples.open and at == total:
            idle.set()

    def fire() -> None:
        nonlocal at
        now_ns = time.monotonic_ns()
        while at < total and (due_ns := start_ns + arrivals[at]) <= now_ns:
            at += 1
            target.send(samples.sent(due_ns, now_ns))
            now_ns = time.monotonic_ns()
        if at < total:
            timer.at(start_ns + arrivals[at])

    await target.start(clients, done)
    timer = Timer(fire)
    start_ns = time.monotonic_ns() + 10_000_000
    fire()
    seconds = arrivals[-1] / 1e9
    try:
        await _drain(idle, seconds + DRAIN_S)
    finally:
        timer.close()
    return seconds


async def _drain(idle: asyncio.Event, timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            await idle.wait()
    except TimeoutError:
        pass


class Run:
    """A scenario against one target address; every call is one run with a loop and a connection pool of its own."""

    def __init__(self, scenario: Scenario, make: Callable[[Inputs], Target]) -> None:
        self.scenario = scenario
        self._make = make
        self._inputs = Inputs(scenario)
        self._check = Check(scenario, self._inputs)

    def closed(self, clients: int, seconds: float) -> Figures:
        return self._go(lambda target, samples: closed_loop(target, samples, clients, seconds), 0.0, 0.0)

    def open(self, rate: float, seconds: float, seed: int = 1) -> Figures:
        """The SLO counts here, and only here: a closed loop has no arrivals to be late for."""
        arrivals = poisson(rate, seconds, seed) or [0]
        return self._go(lambda target, samples: open_loop(target, samples, arrivals), self.scenario.slo_ms, rate)

    def _go(self, loop: Callable[..., object], slo_ms: float, offered_s: float) -> Figures:
        samples = Samples()
        self._inputs.renew()
        target = self._make(self._inputs)

        async def main() -> float:
            try:
                return await loop(target, samples)  # type: ignore[no-any-return,misc]  # one of the two above
            finally:
                await target.stop()

        gc.collect()
        gc.freeze()
        gc.disable()
        try:
            seconds = uvloop.run(main())
        finally:
            gc.enable()
            gc.unfreeze()
        samples.cached = target.hits()
        checked, wrong = self._check.wrong({index: target.decode(kept) for index, kept in samples.kept.items()})
        return figures(samples, seconds, slo_ms, checked, wrong, offered_s)
