"""The critical rate of a case: the highest at which the best schedule found still finishes 0.99 at 5 x P99.

`critical.json` holds them; `python -m horologe_experiments.orloj.critical` finds them again and writes it, showing
every probe, or only those of the cases named after it.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from horologe_experiments.orloj import llm
from horologe_experiments.orloj.cases import cases
from horologe_experiments.orloj.workloads import build_case

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_experiments.orloj.cases import Case
    from horologe_experiments.orloj.workloads import Workload

    Build = Callable[[float, int], Workload]
    """A workload by rate and seed."""
    Told = Callable[[float, float], None]
    """Told of every probe: the rate, and the share that finishes."""

LLM = "llm-conv"
FILE = Path(__file__).with_name("critical.json")
SLO_X_P99 = 5.0
TARGET = 0.99
REQUESTS, SEEDS = 1000, (0, 1)
FIRST = 1.3
"""Requests in the mean time of one alone: the first probe."""
STEP, EXACT = 1.25, 1.01
"""Probes are this factor apart until the rate is between two of them, and then halve that until it is within 1%."""


@functools.cache
def rates() -> dict[str, float]:
    """Requests a second by name of the case, as committed."""
    found: dict[str, float] = json.loads(FILE.read_text())["rates"]
    return found


def find(case: Case, told: Told) -> float:
    """The critical rate of a case, requests a second, by bisection."""

    def build(rate: float, seed: int) -> Workload:
        return build_case(case, SLO_X_P99, rate, REQUESTS, seed)

    return bisect(build, FIRST / (case.mean_ms / 1e3), told)


def find_llm(told: Told) -> float:
    """The critical rate of the language model."""

    def build(rate: float, seed: int) -> Workload:
        return llm.build(SLO_X_P99, rate, REQUESTS, seed)

    return bisect(build, FIRST / (float(llm.solo_ns(llm.read()).mean()) / 1e9), told)


def bisect(build: Build, first: float, told: Told) -> float:
    """The highest rate found at which workloads still finish, on average over the seeds."""

    def reached(rate: float) -> bool:
        finished = finish_rate(build, rate)
        told(rate, finished)
        return finished >= TARGET

    low = high = first
    if reached(first):
        while reached(high := high * STEP):
            low = high
    else:
        while not reached(low := low / STEP):
            high = low
    while high / low > EXACT:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if reached(middle) else (low, middle)
    return low


def finish_rate(build: Build, rate: float) -> float:
    """What the best schedules found finish, on average over the seeds."""
    from horologe_experiments.orloj.bounds.clairvoyant import solve  # needs numba, which reading the file does not

    return float(np.mean([solve(build(rate, seed)).rate for seed in SEEDS]))


def main(names: Sequence[str]) -> None:
    """Find all, or those named, and write the file. Raises KeyError for a name that is none."""
    finders = {case.name: functools.partial(find, case) for case in cases()} | {LLM: find_llm}
    found = {} if not names else dict(rates())
    for name in names or finders:
        found[name] = round(finders[name](functools.partial(_show, name)), 6)
    how = {"requests": REQUESTS, "seeds": SEEDS, "slo_x_p99": SLO_X_P99, "target": TARGET, "exact": EXACT}
    made = {"made_by": "python -m horologe_experiments.orloj.critical", **how, "rates": found}
    FILE.write_text(json.dumps(made, indent=2) + "\n")


def _show(name: str, rate: float, finished: float) -> None:
    sys.stdout.write(f"{name}: {rate:.4g} r/s, {finished:.4f}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
