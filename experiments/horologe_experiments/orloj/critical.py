"""Critical rates: the highest rate of a case at which the best known schedule finishes 0.99 with an SLO of 5 x P99.

`critical.json` holds the rates. `python -m horologe_experiments.orloj.critical [CASE...]` searches them again, prints
every probe and writes the file.
"""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from horologe_experiments.orloj import llm
from horologe_experiments.orloj.cases import all_cases
from horologe_experiments.orloj.workloads import build_case

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_experiments.orloj.cases import Case
    from horologe_experiments.orloj.workloads import Workload

    Build = Callable[[float, int], Workload]
    """Builds a workload from rate and seed."""
    OnProbe = Callable[[float, float], None]
    """Called after every probe with the rate and the share that finishes."""

LLM = "llm-conv"
FILE = Path(__file__).with_name("critical.json")
SLO_X_P99 = 5.0
TARGET = 0.99
REQUESTS, SEEDS = 1000, (0, 1)
FIRST = 1.3
"""First probe, in requests per mean solo time."""
STEP, EXACT = 1.25, 1.01
"""Factor between probes until the rate is between two of them; then bisection until they are within `EXACT`."""


@functools.cache
def critical_rates() -> dict[str, float]:
    """Read the committed rates: requests per second by name of the case."""
    rates: dict[str, float] = json.loads(FILE.read_text())["rates"]
    return rates


def find_rate(case: Case, on_probe: OnProbe) -> float:
    """Search the critical rate of a case, in requests per second."""

    def build(rate: float, seed: int) -> Workload:
        return build_case(case, SLO_X_P99, rate, REQUESTS, seed)

    return search_rate(build, FIRST / (case.mean_ms / 1e3), on_probe)


def find_llm_rate(on_probe: OnProbe) -> float:
    """Search the critical rate of the language model, in requests per second."""

    def build(rate: float, seed: int) -> Workload:
        return llm.build_llm(SLO_X_P99, rate, REQUESTS, seed)

    return search_rate(build, FIRST / (float(llm.solo_ns(llm.read_trace()).mean()) / 1e9), on_probe)


def search_rate(build: Build, first: float, on_probe: OnProbe) -> float:
    """Return the highest rate at which `TARGET` of the requests finish, on average over the seeds."""

    def is_reached(rate: float) -> bool:
        finished = mean_finish_rate(build, rate)
        on_probe(rate, finished)
        return finished >= TARGET

    low = high = first
    if is_reached(first):
        while is_reached(high := high * STEP):
            low = high
    else:
        while not is_reached(low := low / STEP):
            high = low
    while high / low > EXACT:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_reached(middle) else (low, middle)
    return low


def mean_finish_rate(build: Build, rate: float) -> float:
    """Return the finish rate of the best known schedules, averaged over the seeds."""
    from horologe_experiments.orloj.bounds.clairvoyant import solve  # needs numba

    return float(np.mean([solve(build(rate, seed)).rate for seed in SEEDS]))


def main(names: Sequence[str]) -> None:
    """Search all rates, or those of the named cases, and write the file. Raises KeyError for an unknown name."""
    finders = {case.name: functools.partial(find_rate, case) for case in all_cases()} | {LLM: find_llm_rate}
    rates = {} if not names else dict(critical_rates())
    for name in names or finders:
        rates[name] = round(finders[name](functools.partial(_print_probe, name)), 6)
    parameters = {"requests": REQUESTS, "seeds": SEEDS, "slo_x_p99": SLO_X_P99, "target": TARGET, "exact": EXACT}
    document = {"made_by": "python -m horologe_experiments.orloj.critical", **parameters, "rates": rates}
    FILE.write_text(json.dumps(document, indent=2) + "\n")


def _print_probe(name: str, rate: float, finished: float) -> None:
    sys.stdout.write(f"{name}: {rate:.4g} r/s, {finished:.4f}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
