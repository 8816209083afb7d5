"""Load on running services, and the final status of every request, for tests of failures."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from horologe import AsyncClient, Client
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

GRACE_MS = 250
SLO_MS = 400
CLOSED_SLO_MS = 5_000
SETTLE_S = 20
START_S = 60


class Tally:
    """Final statuses of requests by number. A second status, or the data of another request, is an error."""

    def __init__(self) -> None:
        self.ends: dict[int, str] = {}
        self.overtime_s = 0.0

    def end(self, number: int, status: str) -> None:
        assert number not in self.ends, f"request {number} ended twice"
        self.ends[number] = status

    def counts(self) -> Counter[str]:
        return Counter(self.ends.values())


async def ask(client: AsyncClient, tally: Tally, number: int, slo_ms: float = SLO_MS) -> None:
    """Send a request whose rows contain its number, and count its status."""
    rows = 1 + number % 2
    x = np.full((rows, 4), number, np.float32)
    x[:, 1] = np.arange(rows)
    begin = time.monotonic()
    try:
        y = await client.predict("pretend", x, slo_ms=slo_ms)
    except HorologeError as error:
        tally.end(number, error.status.name)
    except asyncio.CancelledError:
        tally.end(number, "CANCELLED")
    else:
        np.testing.assert_array_equal(y, x)
        tally.end(number, "OK")
    tally.overtime_s = max(tally.overtime_s, time.monotonic() - begin - slo_ms / 1000)


async def offer(
    client: AsyncClient, tally: Tally, rate: float, seconds: float, *, cancel_every: int = 0, slo_ms: float = SLO_MS
) -> None:
    """Send a request every 1/rate seconds without waiting for answers, then wait for all of them."""
    tasks = []
    first = len(tally.ends)
    for index in range(int(rate * seconds)):
        task = asyncio.ensure_future(ask(client, tally, first + index, slo_ms))
        tasks.append(task)
        if cancel_every and index % cancel_every == 0:
            asyncio.get_running_loop().call_later(0.002, task.cancel)
        await asyncio.sleep(1 / rate)
    await asyncio.wait_for(asyncio.gather(*tasks), SETTLE_S)


class ClosedLoad:
    """Requests from threads, one after the other, until `stop`. Each has exactly one outcome."""

    def __init__(
        self, endpoint: str, threads: int = 1, model: str = "pretend", pause_s: float = 0, slo_ms: float = CLOSED_SLO_MS
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self.sent = 0
        self._endpoint, self._model, self._pause_s, self._slo_ms = endpoint, model, pause_s, slo_ms
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        with Client(self._endpoint) as client:
            while not self._stopping.wait(self._pause_s):
                with self._lock:
                    self.sent += 1
                try:
                    client.predict(self._model, np.zeros((1, 4), np.float32), slo_ms=self._slo_ms)
                    outcome = "OK"
                except HorologeError as error:
                    outcome = f"{error.status.name}: {error.reason}"
                with self._lock:
                    self.outcomes[outcome] += 1

    def stop(self) -> Counter[str]:
        """Wait for the answers to the last requests. Return the outcomes."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(SETTLE_S)
            assert not thread.is_alive()
        return self.outcomes


async def wait_for_service(client: AsyncClient, within_s: float = SETTLE_S) -> None:
    """Send requests until five in a row succeed."""
    tally, number = Tally(), 0
    end = time.monotonic() + within_s
    while list(tally.ends.values())[-5:] != ["OK"] * 5:
        assert time.monotonic() < end, f"service did not resume: {tally.counts()}"
        await ask(client, tally, number)
        await asyncio.sleep(0.01)  # a request that fails at once must not occupy the loop
        number += 1


def run_beside_load(endpoint: str, work: Callable[[], None], rate: float, slo_ms: float) -> Counter[str]:
    """Send requests while `work` runs in a thread. Return how they ended."""

    async def scenario() -> Counter[str]:
        tally = Tally()
        async with AsyncClient(endpoint) as client:
            await wait_for_service(client, START_S)
            working = asyncio.create_task(asyncio.to_thread(work))
            while not working.done():
                await offer(client, tally, rate, 1, slo_ms=slo_ms)
            await working
        return tally.counts()

    return asyncio.run(scenario())


def run_under_load(
    endpoint: str,
    fault: Callable[[AsyncClient], Awaitable[None]],
    rate: int,
    seconds: int,
    *,
    cancel_every: int = 0,
    slo_ms: float = SLO_MS,
) -> Tally:
    """Send requests, and call `fault` meanwhile. Return the statuses of all requests once service has resumed."""

    async def scenario() -> Tally:
        tally = Tally()
        async with AsyncClient(endpoint, grace_ms=GRACE_MS) as client:
            await wait_for_service(client, START_S)
            load = asyncio.ensure_future(offer(client, tally, rate, seconds, cancel_every=cancel_every, slo_ms=slo_ms))
            await asyncio.sleep(0.5)
            await fault(client)
            await load
            await wait_for_service(client)
        return tally

    tally = asyncio.run(scenario())
    assert sorted(tally.ends) == list(range(rate * seconds))
    assert tally.counts()["UNKNOWN_MODEL"] == 0
    return tally


def a_process(module: str, *sets: str) -> subprocess.Popen[bytes]:
    """Start a service without metrics, with these settings."""
    command = [sys.executable, "-m", module, "--set=metrics.bind=", *(f"--set={text}" for text in sets)]
    return subprocess.Popen(command)
