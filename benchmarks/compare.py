"""Compare Horologe with other model servers and with the bare chain, side by side in one run.

    python benchmarks/compare.py --scenarios noop --sides horologe:sdk,horologe:http,mosec:binary
    python benchmarks/compare.py --scenarios cnn --sides horologe:sdk,mosec:binary,mosec:binary:4 --capacity
    python benchmarks/compare.py --scenarios noop,digits --peers mosec,litserve,mlserver,bentoml,ray,triton

Every side is started alone, in turn, `--rounds` times. Compare figures of one run only, never of two runs.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import msgspec

from bench import report
from bench.chains import ChainRow, run_chain
from bench.peers import PEER_SERVERS
from bench.runs import find_capacity, overload
from bench.sides import start_side
from bench.workload import ROOT, load_scenario
from horologe_load.samples import LoadSummary


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
    parser.add_argument("--sides", default="horologe:sdk,horologe:http")
    parser.add_argument("--peers", default="", help=f"more sides by name: {', '.join(PEER_SERVERS)}")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="length of every measurement")
    parser.add_argument(
        "--clients", default="", help="in-flight requests instead of the scenario's, e.g. 1,64; 0: no closed loop"
    )
    parser.add_argument(
        "--capacity", action="store_true", help="search for the open-loop capacity, then offer multiples of it"
    )
    parser.add_argument("--yardstick", type=Path, default=None, help="script to run instead of chain.py")
    parser.add_argument("--no-chain", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def measure(name: str, scenario_name: str, turn: int, options: argparse.Namespace) -> list[Measurement]:
    """Measure one side in one round. A side that does not start is reported and left out."""
    scenario = load_scenario(scenario_name)
    clients = [int(count) for count in options.clients.split(",") if count] or scenario.clients
    summaries: dict[str, LoadSummary] = {}
    try:
        with start_side(name, scenario) as runs:
            runs.closed(8, min(2.0, options.seconds))  # warm-up
            for count in clients:
                if count:
                    summaries[f"{count} clients"] = runs.closed(count, options.seconds)
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


def main() -> None:
    options = parse_arguments()
    sides = [name for name in options.sides.split(",") if name] + [f"{p}:json" for p in options.peers.split(",") if p]
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
            "machine": report.describe_machine(),
            "chain": bare,
            "runs": [
                {**msgspec.to_builtins(result), "summary": report.run_document(result.summary)} for result in results
            ],
        },
    )
    print(f"written to {path}")


if __name__ == "__main__":
    main()
