"""Runs of a scenario against a server: closed loop, open loop, search for its capacity, overload."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import uvloop

from bench.workload import AnswerCheck, Inputs
from horologe_load.arrivals import poisson
from horologe_load.capacity_search import CapacitySearch
from horologe_load.load_loops import closed_loop, open_loop
from horologe_load.samples import LoadSummary, Samples, no_garbage_collection, summarize

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from bench.targets import CheckedTarget
    from bench.workload import Scenario

IDLE_TIMEOUT_S = 20.0
GROWTH, PRECISION, MAX_TRIALS = 1.5, 1.05, 16
FACTORS = (2, 3, 4)
"""Multiples of the capacity that `overload` offers."""


class ScenarioRuns:
    """A scenario against one address. Every run has its own event loop and connections."""

    def __init__(self, scenario: Scenario, make_target: Callable[[Inputs], CheckedTarget]) -> None:
        self.scenario = scenario
        self._make_target = make_target
        self._inputs = Inputs(scenario)
        self._check = AnswerCheck(scenario, self._inputs)

    def closed(self, clients: int, seconds: float) -> LoadSummary:
        """Keep `clients` requests in flight. The summary has no SLO: a closed loop has no arrival times."""
        return self._run(lambda target, samples: closed_loop(target, samples, clients, seconds), 0.0, 0.0)

    def open(self, rate: float, seconds: float, seed: int = 1) -> LoadSummary:
        """Send Poisson arrivals at `rate` requests per second. The scenario's SLO counts from the due times."""
        arrivals = poisson(rate, seconds, seed) or [0]
        return self._run(lambda target, samples: open_loop(target, samples, arrivals), self.scenario.slo_ms, rate)

    def _run(
        self, loop: Callable[[CheckedTarget, Samples], Coroutine[Any, Any, float]], slo_ms: float, rate: float
    ) -> LoadSummary:
        samples = Samples()
        self._inputs.start_epoch()
        target = self._make_target(self._inputs)

        async def main() -> float:
            try:
                return await loop(target, samples)
            finally:
                await target.stop()

        with no_garbage_collection():
            seconds = uvloop.run(main())
        cached = target.cache_hits()
        checked, wrong = self._check.count_wrong(
            {index: target.decode(answer) for index, answer in samples.kept.items()}
        )
        return summarize(samples, seconds, slo_ms, rate, cached, checked, wrong)


def find_capacity(
    runs: ScenarioRuns,
    seconds: float,
    max_trials: int = MAX_TRIALS,
    first_rate: float = 0.0,
    growth: float = GROWTH,
) -> float:
    """Return the highest Poisson rate of which 99% of the answers are right and within the SLO; 0 if none is.

    The seed of a trial is its rate, so every server gets the same arrivals at the same rate. The search starts at
    `first_rate`, or at the scenario's.
    """
    search = CapacitySearch(first_rate or runs.scenario.start_rate, max_trials, growth, PRECISION)
    while (rate := search.next_rate()) is not None:
        wait_until_idle(runs)
        run = runs.open(rate, seconds, seed=round(rate))
        print(f"  {rate:9.1f}/s offered: {run.attained:7.2%} in time, p99 {run.p99_ms:.1f} ms", file=sys.stderr)
        search.observe(rate, 0.0 if run.wrong else run.attained)
    return search.carried or 0.0


def overload(
    runs: ScenarioRuns, rate: float, seconds: float, factors: tuple[float, ...] = FACTORS
) -> dict[float, LoadSummary]:
    """Return a summary for each multiple of `rate`."""
    summaries = {}
    for factor in factors:
        wait_until_idle(runs)
        summaries[factor] = runs.open(rate * factor, seconds, seed=round(rate * factor))
    return summaries


def wait_until_idle(runs: ScenarioRuns, timeout_s: float = IDLE_TIMEOUT_S) -> None:
    """Wait until a lone request is within the SLO: the queues of the last overload must not count in the next run."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        probe = runs.closed(1, 0.2)
        if probe.ok and probe.p99_ms <= runs.scenario.slo_ms:
            return
