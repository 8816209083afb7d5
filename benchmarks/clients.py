"""Clients that share devices: what each gets, and what all get together, beside one client with the same load.

    python benchmarks/clients.py                 # the whole grid, simulated
    python benchmarks/clients.py --live          # twelve points of it on real processes
    python benchmarks/clients.py --json FILE

Two workers have a model whose batch of 8 takes `batch` ms, and a batch of one 0.4 times as long. The grid has all pairs
of batch times and SLOs of at least 2.5 batch times, loads below and above the capacity, and these clients:

    two     two clients with half of the load each
    ten     ten clients with a tenth each
    small   one client that sends a tenth of the capacity, and one that floods with the rest
    loops   one client with an open loop, and one with closed loops over HTTP

A point holds if one client alone gets 0.9 of what is offered or of what full batches serve, if all clients together get
0.95 of what one client with the same load gets, if each gets 0.9 of its demand or of an equal share, and if batches are
as full as with one client (0.97, at least where requests are lost).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from horologe_common.clock import ms, s
from horologe_sim.engine.noise import Noise
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase

BATCH_MS = (0.01, 1.0, 5.0, 20.0, 80.0, 200.0)
SLO_MS = (20.0, 50.0, 100.0, 400.0, 1000.0)
LOADS = (0.9, 1.25, 2.0)
MIXES = ("two", "ten", "small", "loops")
SIZE, WORKERS, LOOPS = 8, 2, 6
PARTS = {1: 0.4, 2: 0.5, 4: 0.7, 8: 1.0}
"""Execution time of each batch size, in parts of the time of the largest."""
MOST_PER_S = 2_000.0
"""Requests per second beyond which the processes decide, not the devices."""
REQUESTS = 3_000
LEAST_BATCHES = 2.5
ALONE, TOGETHER, EACH, FULL = 0.9, 0.95, 0.9, 0.97


class Point(NamedTuple):
    """One combination. `load` is relative to what full batches serve."""

    batch_ms: float
    slo_ms: float
    load: float
    mix: str
    scheduler: str = "horologe"
    seed: int = 0

    @property
    def capacity(self) -> float:
        """Return the requests per second that full batches serve, or the limit of the processes."""
        return min(MOST_PER_S / max(LOADS), 1e3 * WORKERS * SIZE / self.batch_ms)

    def demands(self) -> dict[str, float]:
        """Return the requests per second that each client offers. Closed loops offer what they get: 0."""
        total = self.capacity * self.load
        match self.mix:
            case "two":
                return {"a": total / 2, "b": total / 2}
            case "ten":
                return {f"c{number}": total / 10 for number in range(10)}
            case "small":
                return {"small": self.capacity / 10, "flood": total - self.capacity / 10}
            case _:
                return {"open": total, "loops": 0.0}


class Result(msgspec.Struct):
    """What a run served: requests per second by client, mean rows of a batch, and the part of lost requests."""

    served: dict[str, float]
    rows: float
    lost: float


def simulate(point: Point, demands: dict[str, float]) -> Result:
    """Return what the clients get in a simulation with the default settings."""
    seconds = max(2.0, 20 * point.slo_ms / 1e3, REQUESTS / max(1.0, sum(demands.values())))
    exec_ms = {size: part * point.batch_ms for size, part in PARTS.items()}
    loads = [
        LoadPhase("closed", clients=LOOPS, client=name) if not rate else LoadPhase(rate=rate, client=name)
        for name, rate in demands.items()
    ]
    scenario = Scenario(
        (ModelEntry("model", exec_ms, slo_ns=ms(point.slo_ms)),), tuple(loads), seed=point.seed, workers=WORKERS,
        duration_ns=s(1.2 * seconds), warmup_ns=s(0.2 * seconds), noise=Noise(sigma=0.02),
    )  # fmt: skip
    controller = msgspec.structs.replace(scenario.controller, scheduler=point.scheduler)
    cluster = SimulatedCluster(msgspec.structs.replace(scenario, controller=controller))
    cluster.run()
    report = cluster.report()
    rows = sum(size * count for size, count in report.batches.items()) / max(1, sum(report.batches.values()))
    served = {name: report.clients[name].goodput for name in demands}
    return Result(served, rows, 1 - report.attainment)


def judge(point: Point, alone: Result, shared: Result) -> dict[str, Any]:
    """Return the figures of a point, and which bars it misses."""
    demands, offered = point.demands(), point.load * point.capacity
    best = min(offered, point.capacity)
    total, least = sum(shared.served.values()), 1.0
    equal = point.capacity / len(demands)
    for name, demand in demands.items():
        wanted = min(demand, equal) if demand else 0.0
        least = min(least, shared.served[name] / wanted) if wanted else least
    figures = {
        "alone": alone.served["alone"] / best,
        "together": total / alone.served["alone"] if alone.served["alone"] else 0.0,
        "each": least,
        "full": shared.rows / alone.rows if alone.lost > 0.01 and point.mix != "loops" else 1.0,
    }
    bars = {"alone": ALONE, "together": TOGETHER, "each": EACH, "full": FULL}
    missed = [name for name, bar in bars.items() if figures[name] < bar]
    return {**point._asdict(), **figures, "served": shared.served, "rows": shared.rows, "missed": missed}


def simulate_point(point: Point) -> dict[str, Any]:
    """Simulate the clients of a point, and one client with the same load."""
    demands = point.demands()
    alone = simulate(point, {"alone": sum(demands.values())})
    return judge(point, alone, simulate(point, demands))


def points(scheduler: str, seed: int) -> list[Point]:
    """Return the grid."""
    return [
        Point(batch_ms, slo_ms, load, mix, scheduler, seed)
        for batch_ms in BATCH_MS
        for slo_ms in SLO_MS
        if slo_ms >= LEAST_BATCHES * batch_ms
        for load in LOADS
        for mix in MIXES
    ]


def print_row(row: dict[str, Any]) -> None:
    served = ", ".join(f"{name} {rate:.0f}" for name, rate in list(row["served"].items())[:3])
    print(
        f"{row['batch_ms']:7g} {row['slo_ms']:6g} {row['load']:5g} {row['mix']:6} {row['alone']:6.3f} "
        f"{row['together']:6.3f} {row['each']:6.3f} {row['full']:6.3f}  {served:40} {' '.join(row['missed'])}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", action="store_true", help="twelve points on real processes")
    parser.add_argument("--scheduler", default="horologe")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="simulate every n-th point only")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    print("  batch    slo  load clients alone together each   full  served/s                                missed")
    rows = []
    with ProcessPoolExecutor(options.processes) as pool:
        for row in pool.map(simulate_point, points(options.scheduler, options.seed)[:: options.every]):
            rows.append(row)
            print_row(row)
    missed = sum(bool(row["missed"]) for row in rows)
    print(f"{len(rows) - missed} of {len(rows)} points hold")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
