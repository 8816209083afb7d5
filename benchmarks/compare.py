"""Compare Horologe with other model servers and with the bare chain, side by side in one run.

    python benchmarks/compare.py --scenarios noop --sides horologe:sdk,horologe:binary,mosec:binary
    python benchmarks/compare.py --scenarios cnn --sides horologe:sdk,mosec:binary,mosec:binary:4 --capacity
    python benchmarks/compare.py --scenarios cnn --sides horologe:binary,mosec:binary:4 --rates 180,240,360 --rounds 5
    python benchmarks/compare.py --scenarios noop,digits-mlp --peers mosec,litserve,mlserver,bentoml,ray,triton

Every side is started alone, in turn, `--rounds` times. Compare figures of one run only, never of two runs. Horologe
gets mixed traffic first, and runs with and without a profiler: the exit code is 1 if the profiler costs more than 5%.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from pathlib import Path

import msgspec

from bench import report
from bench.chains import ChainRow, run_chain
from bench.horologe_server import remove_profiles
from bench.peers import PEER_SERVERS
from bench.runs import find_capacity, overload, wait_until_idle
from bench.sides import start_side
from bench.systems import NO_PROFILER, Conditions
from bench.warm_up import LEARN_S, QUICK_LEARN_S
from bench.workload import ROOT, load_scenario
from horologe_load.samples import LoadSummary

LEAST_SHARE = 0.95
"""Least goodput of a side, of the same side without a profiler."""


class Measurement(msgspec.Struct, frozen=True):
    """A run of one side in one round. `load`: `64 clients`, `capacity` or `2x capacity`."""

    scenario: str
    side: str
    round: int
    load: str
    summary: LoadSummary


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", default="noop")
    parser.add_argument("--sides", default="horologe:sdk,horologe:binary")
    parser.add_argument("--peers", default="", help=f"more sides by name: {', '.join(PEER_SERVERS)}")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of every measurement")
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_LEARN_S:.0f} s of mixed traffic, not {LEARN_S:.0f}"
    )
    parser.add_argument("--learn", type=float, default=0, help="seconds of mixed traffic", metavar="S")
    parser.add_argument(
        "--clients", default="", help="in-flight requests instead of the scenario's, e.g. 1,64; 0: no closed loop"
    )
    parser.add_argument(
        "--capacity", action="store_true", help="search for the open-loop capacity, then offer multiples of it"
    )
    parser.add_argument("--rates", default="", help="open loops at these requests/s, e.g. 180,240,360")
    parser.add_argument("--yardstick", type=Path, default=None, help="script to run instead of chain.py")
    parser.add_argument("--no-chain", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def measure(name: str, scenario_name: str, turn: int, options: argparse.Namespace) -> list[Measurement]:
    """Measure one side in one round. A side that does not start is reported and left out."""
    scenario = load_scenario(scenario_name)
    conditions = Conditions(options.learn or (QUICK_LEARN_S if options.quick else LEARN_S))
    clients = [int(count) for count in options.clients.split(",") if count] or scenario.clients
    summaries: dict[str, LoadSummary] = {}
    try:
        with start_side(name, scenario, conditions) as runs:
            runs.closed(8, min(2.0, options.seconds))  # warm-up
            for count in clients:
                if count:
                    summaries[f"{count} clients"] = runs.closed(count, options.seconds)
            for rate in [float(rate) for rate in options.rates.split(",") if rate]:
                wait_until_idle(runs)
                summaries[f"{rate:g}/s"] = runs.open(rate, options.seconds, seed=1000 * turn + round(rate))
            if options.capacity:
                rate = find_capacity(runs, options.seconds)
                if rate:
                    summaries["capacity"] = runs.open(rate, options.seconds)
                    for factor, summary in overload(runs, rate, options.seconds).items():
                        summaries[f"{factor}x capacity"] = summary
    except (RuntimeError, OSError) as error:
        print(f"{name} on {scenario_name}: {error}", file=sys.stderr)
    return [Measurement(scenario_name, name, turn, load, summary) for load, summary in summaries.items()]


def rows(results: list[Measurement]) -> list[list[str]]:
    """Return one row per scenario, load and side: the median round, and the range of throughput over all rounds."""
    groups: dict[tuple[str, str, str], list[LoadSummary]] = {}
    for result in results:
        groups.setdefault((result.scenario, result.load, result.side), []).append(result.summary)
    lines = []
    for key, rounds in sorted(groups.items(), key=lambda group: (group[0][0], group[0][1])):
        middle = statistics.median_low([summary.throughput for summary in rounds])
        shown = next(summary for summary in rounds if summary.throughput == middle)
        span = f"{min(run.throughput for run in rounds):.0f}-{max(run.throughput for run in rounds):.0f}"
        offered = f"{shown.rate:.1f}" if shown.rate else ""
        lines.append([*key, offered, *report.run_row(shown), span])
    return lines


def profiler_costs(results: list[Measurement]) -> list[str]:
    """Return a line for each load on which a side reaches less than `LEAST_SHARE` of itself without a profiler."""
    rates: dict[tuple[str, str, str], list[float]] = {}
    for result in results:
        rates.setdefault((result.scenario, result.load, result.side), []).append(result.summary.goodput)
    lines = []
    for (scenario, load, side), values in rates.items():
        beside = rates.get((scenario, load, f"{side}:{NO_PROFILER}"))
        if not beside:
            continue
        ratio = statistics.median(values) / (statistics.median(beside) or math.nan)
        if not ratio >= LEAST_SHARE:  # NaN does not hold either
            lines.append(f"{scenario}, {load}: {side} reaches {ratio:.2f} of itself without a profiler")
    return lines


def main() -> int:
    options = parse_arguments()
    sides = [name for name in options.sides.split(",") if name] + [f"{p}:json" for p in options.peers.split(",") if p]
    for name in [name for name in sides if name.startswith("horologe") and NO_PROFILER not in name]:
        sides.insert(sides.index(name) + 1, f"{name}:{NO_PROFILER}")
    machine = report.describe_machine()
    report.print_machine(machine)
    remove_profiles()
    results: list[Measurement] = []
    bare: list[ChainRow] = []
    for turn in range(options.rounds):
        if not options.no_chain:
            bare += run_chain(options.yardstick, (1, 64)).values()
        for scenario in options.scenarios.split(","):
            for name in sides:
                print(f"round {turn + 1}: {scenario}: {name}", file=sys.stderr)
                results += measure(name, scenario, turn, options)
    columns = ("scenario", "load", "side", "offered/s", *report.RUN_COLUMNS, "range")
    print(report.markdown(columns, rows(results)))
    for row in bare:
        print(f"chain, {row.clients} clients: {row.requests_s:.0f}/s, p50 {row.p50_ms} ms, p99 {row.p99_ms} ms")
    path = options.json or ROOT / f"benchmarks/results/compare-{time.strftime('%Y%m%d-%H%M%S')}.json"
    report.save_json(
        path,
        {
            "machine": machine,
            "chain": bare,
            "runs": [
                {**msgspec.to_builtins(result), "summary": report.run_document(result.summary)} for result in results
            ],
        },
    )
    print(f"written to {path}")
    costs = profiler_costs(results)
    print("\n".join(costs))
    return 1 if costs else 0


if __name__ == "__main__":
    sys.exit(main())
