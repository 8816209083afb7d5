"""The 99th percentile of requests over HTTP with the gRPC server, of that without, in turn in one run.

    python benchmarks/http_beside_grpc.py                  # no-op, 64 clients that ask again at once
    python benchmarks/http_beside_grpc.py --clients 1 --starts 2

Two starts of one system differ by a tenth, so each start makes a new pair of systems, and the one that is started first
alternates. The systems are warmed by mixed traffic. No request arrives over gRPC.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from typing import TYPE_CHECKING

from bench import report
from bench.systems import DEFAULT, Conditions, start_systems
from bench.workload import ROOT, load_scenario

if TYPE_CHECKING:
    from bench.runs import ScenarioRuns

WITH, WITHOUT = "with", "without"
MOST = 1.10
"""Largest ratio of the 99th percentiles."""


def compare(options: argparse.Namespace, order: tuple[str, str]) -> list[float]:
    """Start both systems in this order. Return the ratio of their 99th percentiles for each round."""
    scenario = load_scenario("noop")
    off = Conditions(options.learn, settings=("grpc.enabled=false",))
    conditions = {WITH: Conditions(options.learn), WITHOUT: off}
    arguments = ROOT / scenario.repository, scenario.workers, (DEFAULT,)
    with (
        start_systems(conditions[order[0]], *arguments) as first,
        start_systems(conditions[order[1]], *arguments) as second,
    ):
        runs = {
            name: systems[DEFAULT].runs(scenario, "binary")
            for name, systems in zip(order, (first, second), strict=True)
        }
        return [measure(runs, options, number % 2 == 1) for number in range(options.rounds)]


def measure(runs: dict[str, ScenarioRuns], options: argparse.Namespace, turned: bool) -> float:
    """Measure both systems, one after the other. Return the ratio of their 99th percentiles."""
    names = sorted(runs, reverse=turned)
    p99_ms = {name: runs[name].closed(options.clients, options.seconds).p99_ms for name in names}
    return p99_ms[WITH] / p99_ms[WITHOUT]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=64, help="requests in flight")
    parser.add_argument("--starts", type=int, default=4, help="pairs of systems")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each pair")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of every measurement")
    parser.add_argument("--learn", type=float, default=20.0, help="seconds of mixed traffic before the first one")
    options = parser.parse_args()
    report.print_machine(report.describe_machine())
    ratios: list[float] = []
    for start in range(options.starts):
        order = (WITH, WITHOUT) if start % 2 else (WITHOUT, WITH)
        found = compare(options, order)
        print(f"{order[0]} gRPC first: {', '.join(f'{ratio:.2f}' for ratio in found)}", flush=True)
        ratios += found
    median = statistics.median(ratios)
    print(f"p99 with gRPC / without: {median:.2f} ({min(ratios):.2f}-{max(ratios):.2f}), wanted at most {MOST}")
    return 0 if median <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
