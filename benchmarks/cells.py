"""Load that a cell of 100 devices carries, and how evenly models spread over 100 cells: figures of results/scaling.md.

    python benchmarks/cells.py
    python benchmarks/cells.py --rates 5000,10000,20000 --seconds 3 --json benchmarks/results/cells.json

One cell is simulated with the real controller: 4,026 models on 100 devices with the times of a V100, the Azure trace,
SLO 100 ms. `cores` is the CPU time that the controller's core needs per second: above 1, one controller cannot make the
decisions in time. The second table places 100 times as many models, with rates drawn from those of the trace, on 100
cells. `worst` is the load of the most loaded cell in any minute of an hour, as a multiple of the mean of all cells.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from decisions import Case, run
from horologe_experiments.clockwork.trace_replay import Scene
from horologe_experiments.harness.experiment import load_scene
from horologe_experiments.traces.azure_functions import replay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Loads = NDArray[np.float64]

DEVICES, CELLS, MINUTES = 100, 100, 60


def simulate_cell(rates: list[float], seconds: int, scheduler: str) -> Iterator[dict[str, Any]]:
    """Yield a row for each rate of a cell, in requests per second."""
    for rate in rates:
        result = run(Case(devices=DEVICES, scheduler=scheduler), rate, seconds, 1)
        cost_us = result.cpu_ns / 1e3 / max(1, result.served)
        yield {
            "scheduler": scheduler, "rate": rate, "in_time": round(result.satisfaction, 5),
            "rows_a_batch": round(result.rows_a_batch, 2), "us_per_served": round(cost_us, 1),
            "cores": round(cost_us * rate * result.satisfaction / 1e6, 2),
        }  # fmt: skip


def model_loads() -> Loads:
    """Return the device time that each model of the trace needs in each minute of an hour: shape (models, minutes)."""
    trace = replay(load_scene("scale", Scene, False, {}).mapping, 1000.0, MINUTES)
    loads: Loads = (trace.rates * trace.best_row_s).T
    return loads


def place_at_random(loads: Loads, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return the cell of each model: the hash of its name."""
    return generator.integers(0, CELLS, len(loads))


def place_by_two_choices(loads: Loads, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return the cell of each model: the less loaded of two random ones, by the mean load of the models before."""
    choices = generator.integers(0, CELLS, (len(loads), 2)).tolist()
    held, cells = [0.0] * CELLS, []
    for load, (first, second) in zip(loads.mean(1).tolist(), choices, strict=True):
        cell = first if held[first] <= held[second] else second
        held[cell] += load
        cells.append(cell)
    return np.array(cells)


def place_largest_first(loads: Loads, generator: np.random.Generator) -> NDArray[np.int64]:
    """Return the cell of each model by two choices, the models with the largest load first."""
    order = np.argsort(-loads.mean(1), kind="stable")
    cells = np.empty(len(loads), np.int64)
    cells[order] = place_by_two_choices(loads[order], generator)
    return cells


def measure_placement(split: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each rule of placement. The `split` largest models of the draw are in every cell instead."""
    drawn = model_loads()
    generator = np.random.default_rng(1)
    loads = drawn[generator.integers(0, len(drawn), CELLS * len(drawn))]
    largest = np.argsort(-loads.mean(1), kind="stable")[:split]
    everywhere = loads[largest].sum(0) / CELLS
    rest = np.delete(loads, largest, 0)
    rules: dict[str, Callable[[Loads, np.random.Generator], NDArray[np.int64]]] = {
        "hash": place_at_random, "two choices": place_by_two_choices, "largest first": place_largest_first,
    }  # fmt: skip
    for name, rule in rules.items():
        cells = np.zeros((CELLS, MINUTES))
        np.add.at(cells, rule(rest, generator), rest)
        cells += everywhere
        yield {"rule": name, "in_every_cell": split, "worst": round(float((cells / cells.mean(0)).max()), 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", default="5000,10000,20000,40000,80000", help="requests per second of the cell")
    parser.add_argument("--seconds", type=int, default=2)
    parser.add_argument("--scheduler", default="horologe")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cells, placements = [], []
    for row in simulate_cell([float(rate) for rate in options.rates.split(",")], options.seconds, options.scheduler):
        cells.append(row)
        print(row, flush=True)
    for split in (0, 1000):
        for row in measure_placement(split):
            placements.append(row)
            print(row, flush=True)
    if options.json:
        options.json.write_text(json.dumps({"cells": cells, "placements": placements}, indent=1) + "\n")


if __name__ == "__main__":
    main()
