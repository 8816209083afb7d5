"""Clients that share devices: what each gets, and what all get together, beside one client with the same load.

    python benchmarks/clients.py                 # the whole grid, simulated
    python benchmarks/clients.py --live          # twelve points of it on real processes, after two minutes of traffic
    python benchmarks/clients.py --json FILE

Two workers have a model whose batch of 8 takes `batch` ms, and a batch of one 0.4 times as long. The grid has all pairs
of batch times and SLOs of at least 2.5 batch times, loads below and above the capacity, and these clients:

    two     two clients with half of the load each
    ten     ten clients with a tenth each
    small   one client that sends a tenth of the capacity, and one that floods with the rest
    loops   one client with an open loop, and one with six closed loops (live: over HTTP)

A point holds if one client alone gets 0.9 of what is offered or of what full batches serve, if all clients together
get 0.95 of what one client with the same load gets, if each gets 0.9 of its demand or of an equal share, and if batches
have 0.97 of the rows that they have with one client.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.client_points import LOOPS, PARTS, WORKERS, Point, Result, grid, judge
from horologe_common.clock import ms, s
from horologe_controller.settings import ControllerSettings
from horologe_sim.engine.noise import Noise
from horologe_sim.scenario.scenario import ModelEntry, Scenario
from horologe_sim.scenario.simulated_cluster import SimulatedCluster
from horologe_sim.scenario.workload import LoadPhase

if TYPE_CHECKING:
    from collections.abc import Iterable

MOST_PER_S = 16_000.0
"""Capacity from which the simulation of a point takes minutes. Faster models are offered as much as this."""
SLOS, LEAST_SLOS = 15, 4
REQUESTS, MOST_REQUESTS = 3_000, 12_000
"""A point has `REQUESTS` and lasts `SLOS`; if that is more than `MOST_REQUESTS`, it lasts at least `LEAST_SLOS`."""


def simulate(point: Point, scheduler: str, seed: int, as_one: bool = False) -> Result:
    """Return what the clients get in a simulation of controller and workers. `as_one`: they are one client."""
    demands = point.demands()
    rate, slo_s = sum(demands.values()), point.slo_ms / 1e3
    seconds = max(LEAST_SLOS * slo_s, REQUESTS / rate, min(SLOS * slo_s, MOST_REQUESTS / rate))
    load = [
        LoadPhase(rate=rate, client=client) if rate else LoadPhase("closed", clients=LOOPS, client=client)
        for name, rate in demands.items()
        for client in ("one" if as_one else name,)
    ]
    exec_ms = {size: part * point.batch_ms for size, part in PARTS.items()}
    scenario = Scenario(
        (ModelEntry("model", exec_ms, slo_ns=ms(point.slo_ms)),), tuple(load), path="direct", workers=WORKERS,
        duration_ns=s(1.2 * seconds), warmup_ns=s(0.2 * seconds), noise=Noise(sigma=0.02), seed=seed,
        controller=ControllerSettings(scheduler=scheduler),
    )  # fmt: skip
    cluster = SimulatedCluster(scenario)
    cluster.run()
    report = cluster.report()
    rows = sum(size * count for size, count in report.batches.items()) / max(1, sum(report.batches.values()))
    return Result({name: summary.goodput for name, summary in report.clients.items()}, rows, 1 - report.attainment)


def simulate_point(scheduler: str, seed: int, point: Point) -> dict[str, Any]:
    """Simulate the clients of a point, and one client with the same load."""
    return judge(point, simulate(point, scheduler, seed, as_one=True), simulate(point, scheduler, seed))


def print_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Print the rows as they come, and return them."""
    print("  batch    slo  load clients alone together each   full  served/s")
    printed = []
    for row in rows:
        served = ", ".join(f"{name} {rate:.0f}" for name, rate in list(row["served"].items())[:3])
        figures = " ".join(f"{row[name]:6.3f}" for name in ("alone", "together", "each", "full"))
        place = f"{row['batch_ms']:7g} {row['slo_ms']:6g} {row['load']:5g} {row['mix']:6}"
        print(f"{place} {figures}  {served:36} {' '.join(row['missed'])}", flush=True)
        printed.append(row)
    return printed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--live", action="store_true", help="twelve points on real processes")
    parser.add_argument("--seconds", type=float, default=10.0, help="live: length of each measurement")
    parser.add_argument("--warm-up", type=float, default=120.0, help="live: seconds of mixed traffic before")
    parser.add_argument("--scheduler", default="horologe", help="simulated: another scheduler")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=int, default=1, help="simulated: every n-th point only")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()
    if options.live:
        from bench.live_clients import measure_points

        rows = print_rows(measure_points(options.seconds, options.warm_up, options.seed))
    else:
        with ProcessPoolExecutor(options.processes) as pool:
            points = grid(MOST_PER_S)[:: options.every]
            rows = print_rows(pool.map(partial(simulate_point, options.scheduler, options.seed), points))
    missed = sum(bool(row["missed"]) for row in rows)
    print(f"{len(rows) - missed} of {len(rows)} points hold")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
