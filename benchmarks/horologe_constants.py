"""Requests in time with several values of the constants of `horologe`. Prints a table for docs/experiments/orloj.md.

    python benchmarks/horologe_constants.py

Each row replaces one constant. The constants for dynamic models run on workloads of `horologe experiment orloj-tables`:
lengths hidden, 0.8 of the critical rate, 1,000 requests, mean over SLOs of 1.5, 3 and 5 times P99. The constants for
static models run copies of ResNet-50 with Poisson arrivals in the fast simulated cluster, admission off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_common.clock import ms, s
from horologe_controller.core import runtime_distributions
from horologe_controller.core.scheduling import batch_value
from horologe_controller.schedulers import horologe
from horologe_controller.settings import ControllerSettings
from horologe_experiments.clockwork.catalogue_models import batch_limited_rate, catalogue_models
from horologe_experiments.orloj.cases import all_cases
from horologe_experiments.orloj.critical import critical_rates
from horologe_experiments.orloj.orloj_tables import TUNED_CASES
from horologe_experiments.orloj.workload_replay import HISTORY, SchedulerKnowledge, finish_rate
from horologe_experiments.orloj.workloads import build_case
from horologe_sim.fast.fast_worker import FastClusterSettings
from horologe_sim.fast.fast_world import FastWorld
from horologe_sim.fast.ledger import Ledger
from horologe_sim.fast.traffic import Stream, poisson

if TYPE_CHECKING:
    from types import ModuleType

SLOS = (1.5, 3.0, 5.0)
LOAD = 0.8
REQUESTS = 1000
SEED = 501
"""Not a seed of `orloj-tables`, so that constants are not chosen on the runs that judge them."""
SECONDS = 6


class StaticCase(NamedTuple):
    """Copies of ResNet-50 on some devices. `load`: part of what full batches within the SLO would serve."""

    models: int
    devices: int
    slo_ms: int
    load: float


STATIC_CASES = (StaticCase(2, 4, 25, 0.9), StaticCase(15, 4, 50, 0.9), StaticCase(4, 1, 50, 0.35))
DYNAMIC: tuple[tuple[ModuleType, str, tuple[object, ...]], ...] = (
    (batch_value, "PATIENCE", (2.0, 0.2, 1.0, 5.0, 20.0)),
    (runtime_distributions, "CANDIDATE_QUANTILES", ((0.5, 0.95), (0.5,), (0.95,), (0.25, 0.5, 0.75, 0.95))),
    (batch_value, "MAX_CANDIDATES", (256, 32, 1024)),
)
STATIC: tuple[tuple[ModuleType, str, tuple[object, ...]], ...] = (
    (horologe, "IDLE", (0.6, 0.0, 0.3, 0.9)),
    (horologe, "BUSY", (1.2, 0.9, 2.0)),
    (horologe, "LIKELY", (1.0, 0.0, 0.4)),
    (horologe, "SILENCE", (3, 1, 10)),
    (horologe, "COLLISION", (4.0, 0.0, 2.0, 8.0)),
    (horologe, "MESSAGE_TRIPS", (3, 1, 10)),
)
"""(module, constant, values); the first value is the one in use."""


def run_dynamic(name: str) -> float:
    """Return the mean finish rate of a case over the SLOs."""
    (case,) = [case for case in all_cases() if case.name == name]
    rate = LOAD * critical_rates()[name]
    finished = []
    for slo in SLOS:
        knowledge = SchedulerKnowledge(build_case(case, slo, rate, HISTORY, 977), False)
        finished.append(finish_rate(build_case(case, slo, rate, REQUESTS, SEED), knowledge, "horologe", {}))
    return sum(finished) / len(finished)


def run_static(case: StaticCase) -> float:
    """Return the part of the requests that finish in time."""
    (resnet,) = catalogue_models(["resnet50_v1"])
    rate = case.load * case.devices * batch_limited_rate(resnet, case.slo_ms)
    stream = Stream(lambda step: np.full(case.models, rate / case.models), s(SECONDS), lambda step: ms(case.slo_ms))
    setting = FastClusterSettings(devices=case.devices, controller=ControllerSettings(admission=False))
    ledger = Ledger(["all"], case.models, s(SECONDS + 1))
    world = FastWorld(setting, resnet.copies(case.models), ledger, 1, poisson([stream], s(SECONDS), [1]))
    world.run(s(SECONDS + 1))
    return world.ledger.lines[0].ok / world.ledger.lines[0].sent


def main() -> None:
    for variants, cases, run in ((DYNAMIC, TUNED_CASES, run_dynamic), (STATIC, STATIC_CASES, run_static)):
        print("| constant | value |", " | ".join(map(_title, cases)), "|\n| --- | --- |", " ---: |" * len(cases))
        for module, constant, values in variants:
            for value in values:
                setattr(module, constant, value)
                in_time = " | ".join(f"{run(case):.3f}" for case in cases)  # type: ignore[operator]
                print(f"| `{constant}` | {value} | {in_time} |", flush=True)
            setattr(module, constant, values[0])
        print()


def _title(case: str | StaticCase) -> str:
    if isinstance(case, str):
        return case
    return f"{case.models} models, {case.devices} devices, {case.slo_ms} ms, load {case.load}"


if __name__ == "__main__":
    main()
