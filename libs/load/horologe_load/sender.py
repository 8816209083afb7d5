"""Sends requests to several models and notes when each was really sent and how it ended."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horologe_common.status import HorologeError, Status
from horologe_load.open_loop import HEAD_START_NS, quiet_collector

if TYPE_CHECKING:
    from horologe import AsyncClient

ONE_BY_ONE_GAP_S = 0.02
"""Between a request's answer and the next request: the lanes are asleep again by then."""


class Ended(NamedTuple):
    """A request. `sent_ns`: when it was sent, from the start; `model`: its place; `status`: a `Status` by name."""

    sent_ns: int
    model: int
    took_ns: int
    status: str


class Sender:
    """Requests of one row of `width` ones, with the same SLO."""

    def __init__(self, client: AsyncClient, models: list[str], slo_ns: int, width: int = 1) -> None:
        self._client = client
        self._models = models
        self._slo_ms = slo_ns / 1e6
        self._row = np.ones((1, width), np.float32)
        self._ended: list[Ended] = []
        self._open = 0
        self._all_ended = asyncio.Event()

    async def one_by_one(self, count: int) -> list[Ended]:
        """Each when the one before has its answer: nothing queues."""
        self._ended = []
        with quiet_collector():
            for number in range(count):
                self._send(0, number % len(self._models))
                await self._all_ended.wait()
                await asyncio.sleep(ONE_BY_ONE_GAP_S)
        return self._ended

    async def poisson(self, rate: float, seconds: float, rng: np.random.Generator, skew: float = 0.0) -> list[Ended]:
        """An open loop of `rate` requests a second over all models; returns when all have their answers.

        The n-th model gets a share of them in proportion to `n ** -skew`.
        """
        self._ended = []
        count = rng.poisson(rate * seconds)
        times = np.sort(rng.integers(0, round(seconds * 1e9), count)).tolist()
        weights = np.arange(1, len(self._models) + 1) ** -skew
        models = rng.choice(len(self._models), count, p=weights / weights.sum()).tolist()
        start_ns = time.monotonic_ns() + HEAD_START_NS
        with quiet_collector():
            for at_ns, model in zip(times, models, strict=True):
                wait_ns = start_ns + at_ns - time.monotonic_ns()
                await asyncio.sleep(max(0, wait_ns) / 1e9)
                self._send(start_ns, model)
            if self._open:
                await self._all_ended.wait()
        return sorted(self._ended)

    def _send(self, start_ns: int, model: int) -> None:
        self._open += 1
        self._all_ended.clear()
        sent_ns = time.monotonic_ns()
        future = self._client.submit(self._models[model], self._row, slo_ms=self._slo_ms)
        future.add_done_callback(lambda done: self._took(done, start_ns, sent_ns, model))

    def _took(self, future: asyncio.Future[Any], start_ns: int, sent_ns: int, model: int) -> None:
        took_ns = time.monotonic_ns() - sent_ns
        error = future.exception()
        if error is not None and not isinstance(error, HorologeError):
            raise error
        status = Status.OK if error is None else error.status
        self._ended.append(Ended(max(0, sent_ns - start_ns), model, took_ns, status.name))
        self._open -= 1
        if not self._open:
            self._all_ended.set()
