"""Open-loop capacity of a running server, and what is left of it when more is asked."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from bench.search import Capacity, capacity

if TYPE_CHECKING:
    from bench.loops import Run
    from bench.samples import Figures

SETTLE_S = 20.0


def settle(run: Run, seconds: float = SETTLE_S) -> None:
    """Wait until a lone request is quick again: what an overload left in the queues is not the next run's fault."""
    end = time.monotonic() + seconds
    limit_ms = run.scenario.slo_ms
    while time.monotonic() < end:
        probe = run.closed(1, 0.2)
        if probe.ok and probe.p99_ms <= limit_ms:
            return


def find(run: Run, seconds: float, trials: int = 16, tolerance: float = 0.05) -> Capacity:
    """The highest Poisson rate of which at least 99% come back right and inside the scenario's SLO.

    Every trial has a schedule of its own, the same for every server that is asked at that rate.
    """

    def attained(rate: float) -> float:
        settle(run)
        figures = run.open(rate, seconds, seed=round(rate))
        print(f"  {rate:9.1f}/s offered: {figures.attained:7.2%} in time, p99 {figures.p99_ms:.1f} ms", file=sys.stderr)
        return 0.0 if figures.wrong else figures.attained

    return capacity(attained, run.scenario.start_rate, trials=trials, tolerance=tolerance)


def overload(run: Run, rate: float, seconds: float, factors: tuple[float, ...] = (2, 3, 4)) -> dict[float, Figures]:
    """Figures at these multiples of `rate`."""
    results = {}
    for factor in factors:
        settle(run)
        results[factor] = run.open(rate * factor, seconds, seed=round(rate * factor))
    return results
