"""How much the constants of `horologe` matter: each is halved and doubled on random workloads of the tournament.

    python benchmarks/horologe_constants.py --seeds 40 --requests 1500
    python benchmarks/horologe_constants.py --only WORTH,PATIENCE --factors 0,0.5,2 --first-seed 61
    python benchmarks/horologe_constants.py --json constants.json

Prints a table for experiments/results/orloj.md. All settings are the defaults. A column has the mean change of the
score, and in parentheses the seeds that gain and that lose more than 0.002.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from horologe_controller.core import runtime_distributions, traffic
from horologe_controller.core.cluster import message_latency
from horologe_controller.core.scheduling import admission, batch_value, device_price
from horologe_controller.core.scheduling.loading import eviction
from horologe_controller.schedulers import horologe
from horologe_controller.schedulers.horologe_parameters import HorologeParameters
from horologe_experiments.tournament.match import play
from horologe_experiments.tournament.traits import find_traits
from horologe_experiments.tournament.workload import build_workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

CONSTANTS: dict[str, tuple[ModuleType, ...]] = {
    "LEAST_BUDGET": (horologe,),
    **dict.fromkeys(("SMOOTHING_GAPS", "FAIR_POWER"), (traffic,)),
    "MEMORY_NS": (traffic, eviction),
    "MARGIN_PART": (message_latency,),
    **dict.fromkeys(("PATIENCE", "MAX_CANDIDATES"), (batch_value,)),
    **dict.fromkeys(("STEP", "WORTH", "FORGOTTEN"), (device_price,)),
    "HOPELESS_QUANTILE": (runtime_distributions, batch_value),
    "RESERVED_PART": (admission,),
}
"""Constant -> the modules that read it."""
PARAMETERS = ("advance",)
CHANGED = 0.002
"""Change of a score that counts as a gain or a loss."""


class Variant(NamedTuple):
    """A constant or a parameter of the policy, multiplied by `factor`."""

    name: str
    factor: float


def play_variant(workload: Any, variant: Variant) -> float:
    """Return the score with one value changed."""
    if variant.name in PARAMETERS:
        value = variant.factor * getattr(HorologeParameters(), variant.name)
        return play(workload, "horologe", {"policy": {variant.name: value}}).value
    name = variant.name
    before = [(module, getattr(module, name)) for module in CONSTANTS[name]]
    for module, value in before:
        setattr(module, name, type(value)(variant.factor * value))
    try:
        return play(workload, "horologe", {}).value
    finally:
        for module, value in before:
            setattr(module, name, value)


def play_seed(seed: str, requests: int, variants: Sequence[Variant]) -> tuple[float, list[float]]:
    """Return the score of the defaults, and of each variant."""
    workload = build_workload(find_traits(seed), requests)
    return play(workload, "horologe", {}).value, [play_variant(workload, variant) for variant in variants]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="constants and parameters; default all")
    parser.add_argument("--factors", default="0.5,2")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--processes", type=int, default=multiprocessing.cpu_count())
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    names = options.only.split(",") if options.only else [*CONSTANTS, *PARAMETERS]
    factors = [float(factor) for factor in options.factors.split(",")]
    variants = [Variant(name, factor) for name in names for factor in factors]
    seeds = [str(seed) for seed in range(options.first_seed, options.first_seed + options.seeds)]
    scores = {}
    with ProcessPoolExecutor(options.processes, multiprocessing.get_context("spawn")) as pool:
        work = partial(play_seed, requests=options.requests, variants=variants)
        for seed, score in zip(seeds, pool.map(work, seeds), strict=True):
            scores[seed] = score
            print(f"seed {seed}: {score[0]:.3f}", file=sys.stderr, flush=True)
    print("| constant |", " | ".join(f"x {factor:g}" for factor in factors), "|\n| --- |", " --- |" * len(factors))
    for name in names:
        cells = [_cell(scores, variants.index(Variant(name, factor))) for factor in factors]
        print(f"| `{name}` | {' | '.join(cells)} |")
    if options.json:
        document = {"variants": variants, "scores": scores, "requests": options.requests}
        options.json.write_text(json.dumps(document, indent=1))


def _cell(scores: dict[str, tuple[float, list[float]]], at: int) -> str:
    changes = [values[at] - default for default, values in scores.values()]
    gains, losses = (sum(sign * change > CHANGED for change in changes) for sign in (1, -1))
    return f"{sum(changes) / len(changes):+.4f} ({gains}, {losses})"


if __name__ == "__main__":
    main()
