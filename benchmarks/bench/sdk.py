"""Requests through the SDK: one `AsyncClient` with as many in flight as the loop wants."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

from bench.samples import Code
from horologe import AsyncClient, Reply
from horologe_common.status import HorologeError, Late, Refused

if TYPE_CHECKING:
    from bench.target import Done
    from bench.workload import Inputs, Scenario


class SdkTarget:
    """`send` submits and returns; the answer's arrival is when the future of the client is done."""

    def __init__(self, url: str, scenario: Scenario, inputs: Inputs) -> None:
        self._url = url
        self._scenario = scenario
        self._array = inputs.array
        self._client: AsyncClient
        self._done: Done
        self._hits = 0

    async def start(self, clients: int, done: Done) -> None:
        self._done = done
        self._client = AsyncClient(self._url)
        with contextlib.suppress(HorologeError):
            # One answer before the run: the handshake and the model's signature are not what is measured
            await self._client.predict(self._scenario.model, self._array(-1))

    def send(self, index: int) -> None:
        future = self._client.submit(self._scenario.model, self._array(index), slo_ms=self._scenario.slo_ms)
        future.add_done_callback(lambda ended: self._ended(index, ended))

    def _ended(self, index: int, future: asyncio.Future[Reply]) -> None:
        now_ns = time.monotonic_ns()
        if future.cancelled():
            return
        match future.exception():
            case None:
                self._hits += future.result().cached
                self._done(index, now_ns, Code.OK, future.result())
            case Refused():
                self._done(index, now_ns, Code.REFUSED, None)
            case Late():
                self._done(index, now_ns, Code.LATE, None)
            case error:
                self._done(index, now_ns, Code.FAILED, error)

    def decode(self, answer: object) -> object:
        """The output that the scenario names."""
        assert isinstance(answer, Reply)
        return answer.outputs[self._scenario.output.name]

    def hits(self) -> int:
        """How many answers said that they came from the cache."""
        return self._hits

    async def stop(self) -> None:
        await self._client.close()
