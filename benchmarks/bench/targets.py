"""Targets of the benchmarks: Horologe through its SDK, any server over HTTP."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

from horologe import AsyncClient, Reply
from horologe_common.status import HorologeError
from horologe_load.targets import ModelInput, OnAnswer, SdkTarget, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.workload import Inputs, Scenario


class CheckedTarget(Target, Protocol):
    """A target whose answers are checked after the run."""

    def decode(self, answer: object) -> object:
        """Return the numbers of an answer that was kept."""

    def cache_hits(self) -> int:
        """Return the number of answers that came from the server's cache."""

    async def stop(self) -> None:
        """Close every connection. Requests in flight stay unanswered."""


class SdkScenarioTarget:
    """Sends through one `AsyncClient`, which carries any number of requests in flight."""

    def __init__(self, url: str, scenario: Scenario, inputs: Inputs) -> None:
        self._url = url
        self._scenario = scenario
        self._inputs = inputs
        self._client: AsyncClient
        self._target: SdkTarget
        self.send: Callable[[int, int], None]
        """See `Target`. Set by `start`."""

    async def start(self, clients: int, on_answer: OnAnswer) -> None:
        """Connect, and wait for one answer: the handshake and the model's signature are not measured."""
        scenario, array = self._scenario, self._inputs.array
        self._client = AsyncClient(self._url)
        self._target = SdkTarget(
            self._client,
            lambda index: ModelInput(scenario.model, array(index)),
            round(scenario.slo_ms * 1e6),
            from_due=False,
        )
        self.send = self._target.send
        await self._target.start(clients, on_answer)
        with contextlib.suppress(HorologeError):
            await self._client.predict(scenario.model, array(-1))

    def decode(self, answer: object) -> object:
        """Return the output that the scenario names."""
        assert isinstance(answer, Reply)
        return answer.outputs[self._scenario.output.name]

    def cache_hits(self) -> int:
        """See `CheckedTarget`."""
        return self._target.cached

    async def stop(self) -> None:
        """See `CheckedTarget`."""
        await self._client.close()


def make_target(url: str, dialect: str, scenario: Scenario, inputs: Inputs) -> CheckedTarget:
    """Return an HTTP target for `http://` addresses, an SDK target for `tcp://` and `ipc://` addresses."""
    if url.startswith("http://"):
        from bench.http_target import HttpTarget

        return HttpTarget(url, dialect, scenario, inputs)
    return SdkScenarioTarget(url, scenario, inputs)
