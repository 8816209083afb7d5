"""Requests to several models through the SDK, each with the time it was sent, its latency and its outcome."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_experiments.harness.request_streams import popularity
from horologe_load.arrivals import poisson
from horologe_load.load_loops import open_loop
from horologe_load.samples import ClientOutcome, Samples, no_garbage_collection
from horologe_load.targets import TIMEOUT_S, ModelInput, SdkTarget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe import AsyncClient
    from horologe_load.targets import Target

GAP_S = 0.02
"""Pause after each request of `send_one_by_one`, so that the worker's lanes are asleep again."""


class ModelRequest(NamedTuple):
    """A request that has ended. Times in nanoseconds: `sent_ns` from the start of the run, `took_ns` from sending."""

    sent_ns: int
    model: int
    """Index into the models of the traffic."""
    took_ns: int
    outcome: int

    @property
    def ok(self) -> bool:
        """Return True if the request was answered."""
        return self.outcome == ClientOutcome.OK


class ModelTraffic:
    """Sends requests of one row of `width` ones, all with the same SLO, which counts from sending."""

    def __init__(self, client: AsyncClient, models: Sequence[str], slo_ns: int, width: int = 1) -> None:
        self._client = client
        self._models = models
        self._slo_ns = slo_ns
        self._row = np.ones((1, width), np.float32)

    async def send_one_by_one(self, count: int) -> list[ModelRequest]:
        """Send `count` requests to the models in turn, each after the answer to the one before: nothing queues."""
        models, samples = [number % len(self._models) for number in range(count)], Samples()
        with no_garbage_collection():
            await one_by_one(self._target(models), samples, count, GAP_S)
        return _requests(samples, models, samples.due_ns[0])

    async def send_poisson(
        self, rate: float, seconds: float, rng: np.random.Generator, skew: float = 0.0
    ) -> list[ModelRequest]:
        """Send `rate` requests per second over all models; the n-th gets a share in proportion to `n ** -skew`."""
        arrivals = poisson(rate, seconds, rng)
        shares = popularity(len(self._models), skew)
        return await self.send_at(arrivals, rng.choice(len(self._models), len(arrivals), p=shares).tolist())

    async def send_at(self, arrivals: Sequence[int], models: Sequence[int]) -> list[ModelRequest]:
        """Send a request to each of `models` at these times in nanoseconds from the start, in an open loop."""
        samples = Samples()
        with no_garbage_collection():
            await open_loop(self._target(models), samples, arrivals, drain_s=TIMEOUT_S)
        return sorted(_requests(samples, models, samples.due_ns[0] - arrivals[0])) if arrivals else []

    def _target(self, models: Sequence[int]) -> SdkTarget:
        inputs = [ModelInput(name, self._row) for name in self._models]
        return SdkTarget(self._client, lambda index: inputs[models[index]], self._slo_ns, from_due=False)


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


def _requests(samples: Samples, models: Sequence[int], begin_ns: int) -> list[ModelRequest]:
    rows = zip(samples.sent_ns, models, samples.done_ns, samples.outcomes, strict=True)
    return [ModelRequest(sent - begin_ns, model, done - sent, outcome) for sent, model, done, outcome in rows]
