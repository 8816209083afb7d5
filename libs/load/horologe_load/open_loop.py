"""Open-loop load: requests leave at times drawn in advance, whether or not earlier ones have been answered.

Latency counts from the intended time of sending, so a generator that is held up makes no request look faster, and
the deadline it tells the server is what then remains of the SLO.
"""

from __future__ import annotations

import asyncio
import gc
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.clock import ms, s
from horologe_common.status import HorologeError, Late, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from horologe import AsyncClient

BURST = 32
"""Requests sent in one go at most, when behind: answers must be taken in between."""
HEAD_START_NS = ms(20)
PATIENCE_S = 30.0


class Step(msgspec.Struct):
    """What became of the requests of one step. Times in milliseconds from the intended time of sending."""

    rate: float
    """Offered, requests a second."""
    seconds: float
    slo_ms: float
    sent: int = 0
    in_time: int = 0
    late: int = 0
    """Answered, but after the SLO by our own clock."""
    refused: int = 0
    other: int = 0
    """Lost, failed, or anything else that must not happen."""
    unsent: int = 0
    """Whose time to be sent had passed by more than the SLO before the generator came to it."""
    cached: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    refusal_p99_ms: float = 0.0
    reasons: dict[str, int] = {}

    @property
    def attained(self) -> float:
        """Share of the requests that were answered in time."""
        return self.in_time / self.sent if self.sent else 0.0

    @property
    def goodput(self) -> float:
        """Requests answered in time, a second."""
        return self.in_time / self.seconds


def poisson(rate: float, seconds: float, seed: int) -> NDArray[np.int64]:
    """Arrival times in nanoseconds from the start, increasing, of a Poisson process with `rate` a second."""
    random = np.random.default_rng(seed)
    gaps = random.exponential(1e9 / rate, size=int(rate * seconds * 1.5) + 50)
    times = np.cumsum(gaps).astype(np.int64)
    return times[times < s(seconds)]


class OpenLoop:
    """Sends one-row requests for `model`, made from the rows of `images`, every one distinct."""

    def __init__(self, client: AsyncClient, model: str, images: NDArray[np.float32], slo_ms: float, seed: int) -> None:
        self._client = client
        self._model = model
        self._images = images
        self._slo_ms = slo_ms
        self._seed = seed
        self._steps = 0

    async def run(self, rate: float, seconds: float) -> Step:
        """Offer `rate` for `seconds`, wait for every answer, and count."""
        self._steps += 1
        times = poisson(rate, seconds, self._seed + self._steps)
        inputs = distinct(self._images, len(times), self._seed + self._steps)
        run = _Run(self._client, self._model, Step(rate, seconds, self._slo_ms))
        with quiet_collector():
            await run.send(times, inputs)
        return run.finish()

    async def saturate(self, seconds: float, in_flight: int) -> float:
        """Keep `in_flight` requests open, without a deadline: answers a second. Warms everything up, too."""
        inputs = distinct(self._images, len(self._images), self._seed)
        end_ns = time.monotonic_ns() + s(seconds)
        answered = 0

        async def one(first: int) -> None:
            nonlocal answered
            at = first
            while time.monotonic_ns() < end_ns:
                await self._client.submit(self._model, inputs[at : at + 1], timeout=PATIENCE_S)
                answered += 1
                at = (at + in_flight) % len(inputs)

        with quiet_collector():
            await asyncio.gather(*(one(number) for number in range(in_flight)))
        return answered / seconds


class _Run:
    def __init__(self, client: AsyncClient, model: str, step: Step) -> None:
        self._client = client
        self._model = model
        self._step = step
        self._slo_ns = ms(step.slo_ms)
        self._latencies: list[int] = []
        self._refusals: list[int] = []
        self._open = 0
        self._all_answered = asyncio.Event()

    async def send(self, times: NDArray[np.int64], inputs: NDArray[np.float32]) -> None:
        start_ns = time.monotonic_ns() + HEAD_START_NS
        for number, intended_ns in enumerate((times + start_ns).tolist()):
            wait_ns = intended_ns - time.monotonic_ns()
            if wait_ns > 0 or number % BURST == 0:
                await asyncio.sleep(max(0, wait_ns) / 1e9)
            self._submit(intended_ns, inputs[number : number + 1])
        if self._open:
            await self._all_answered.wait()

    def _submit(self, intended_ns: int, row: NDArray[np.float32]) -> None:
        self._step.sent += 1
        remaining_ns = intended_ns + self._slo_ns - time.monotonic_ns()
        if remaining_ns <= 0:
            self._step.unsent += 1
            return
        self._open += 1
        self._all_answered.clear()
        future = self._client.submit(self._model, row, slo_ms=remaining_ns / 1e6)
        future.add_done_callback(lambda done: self._ended(done, intended_ns))

    def _ended(self, future: asyncio.Future[Any], intended_ns: int) -> None:
        took_ns = time.monotonic_ns() - intended_ns
        error = future.exception()
        step = self._step
        if error is None:
            self._latencies.append(took_ns)
            step.cached += future.result().cached
            if took_ns <= self._slo_ns:
                step.in_time += 1
            else:
                step.late += 1
        elif isinstance(error, Refused):
            self._refusals.append(took_ns)
            step.refused += 1
            self._reason(error)
        elif isinstance(error, Late):
            step.late += 1
        else:
            step.other += 1
            self._reason(error)
        self._open -= 1
        if not self._open:
            self._all_answered.set()

    def _reason(self, error: BaseException) -> None:
        reason = error.reason if isinstance(error, HorologeError) else repr(error)
        kind = reason.partition(":")[0]  # what follows are the numbers of this one request
        self._step.reasons[kind] = self._step.reasons.get(kind, 0) + 1

    def finish(self) -> Step:
        step = self._step
        step.p50_ms, step.p99_ms = quantile_ms(self._latencies, 0.5), quantile_ms(self._latencies, 0.99)
        step.refusal_p99_ms = quantile_ms(self._refusals, 0.99)
        return step


def distinct(images: NDArray[np.float32], count: int, seed: int) -> NDArray[np.float32]:
    """`count` rows drawn from `images`, with noise too small to matter: no two requests are the same."""
    random = np.random.default_rng(seed)
    rows = images[random.integers(0, len(images), size=count)]
    return np.ascontiguousarray(rows + random.uniform(0, 1e-3, size=rows.shape).astype(np.float32))


def quantile_ms(times_ns: list[int], share: float) -> float:
    """The smallest time that `share` of all do not exceed; 0 where there are none."""
    if not times_ns:
        return 0.0
    ordered = sorted(times_ns)
    return ordered[min(len(ordered) - 1, int(np.ceil(share * len(ordered))) - 1)] / 1e6


@contextmanager
def quiet_collector() -> Iterator[None]:
    """No garbage collection while times are taken."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
