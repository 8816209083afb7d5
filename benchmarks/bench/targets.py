"""Targets of the benchmarks: Horologe through its SDK, any server over HTTP."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from bench.dialects import DIALECTS
from horologe import Reply
from horologe_load.http_target import HttpTarget
from horologe_load.targets import ModelInput, SdkServerTarget, ServerTarget

if TYPE_CHECKING:
    from bench.workload import Inputs, Scenario


class CheckedTarget(ServerTarget, Protocol):
    """A target whose answers are checked after the run."""

    def decode(self, answer: object) -> object:
        """Return the numbers of an answer that was kept."""

    def cache_hits(self) -> int:
        """Return the number of answers that came from the server's cache."""


class SdkScenarioTarget(SdkServerTarget):
    """Sends the inputs of a scenario through the SDK. The SLO counts from sending."""

    def __init__(self, url: str, scenario: Scenario, inputs: Inputs) -> None:
        self._scenario = scenario
        slo_ns = round(scenario.slo_ms * 1e6)
        super().__init__(url, lambda index: ModelInput(scenario.model, inputs.array(index)), slo_ns, from_due=False)

    def decode(self, answer: object) -> object:
        """Return the output that the scenario names."""
        assert isinstance(answer, Reply)
        return answer.outputs[self._scenario.output.name]

    def cache_hits(self) -> int:
        """See `CheckedTarget`."""
        return self.cached


class HttpScenarioTarget(HttpTarget):
    """Sends over HTTP in the format of a dialect."""

    def __init__(self, url: str, dialect: str, scenario: Scenario, inputs: Inputs, connections: int = 512) -> None:
        parts = urlsplit(url)
        host, port = parts.hostname or "127.0.0.1", parts.port or 80
        self._dialect = DIALECTS[dialect](scenario, inputs, f"{host}:{port}", parts.path)
        super().__init__(host, port, self._dialect.request, connections)
        self._stats = f"http://{parts.netloc}/v2/models/{scenario.model}/stats" if dialect.endswith("-slo") else ""
        self._hits_before = self._count_cache_hits()

    def _count_cache_hits(self) -> int:
        if not self._stats:
            return 0
        with urllib.request.urlopen(self._stats, timeout=5) as response:
            rows = json.load(response)["model_stats"]
        return sum(row["inference_stats"]["cache_hit"]["count"] for row in rows)

    def cache_hits(self) -> int:
        """Return the cache hits since the start, from the server's statistics; 0 for peers."""
        return self._count_cache_hits() - self._hits_before

    def decode(self, answer: object) -> object:
        """Return the numbers of a kept answer. Called after the run."""
        assert isinstance(answer, tuple)
        return self._dialect.answer(*answer)


def make_target(url: str, dialect: str, scenario: Scenario, inputs: Inputs) -> CheckedTarget:
    """Return an HTTP target for `http://` addresses, an SDK target for `tcp://` and `ipc://` addresses."""
    if url.startswith("http://"):
        return HttpScenarioTarget(url, dialect, scenario, inputs)
    return SdkScenarioTarget(url, scenario, inputs)
