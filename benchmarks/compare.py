"""Side by side in one run: Horologe, the servers users would pick instead, and the bare chain.

    python benchmarks/compare.py --scenarios noop --sides horologe:sdk,horologe:http,mosec:binary
    python benchmarks/compare.py --scenarios cnn --sides horologe:sdk,mosec:binary,mosec:binary:4 --capacity
    python benchmarks/compare.py --scenarios noop,digits --peers mosec,litserve,mlserver,bentoml,ray,triton

Every side is started alone, in turn, `--rounds` times: figures of one run may be compared, those of two may not.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

import msgspec

from bench import chains, peer, table
from bench.capacity import find, overload
from bench.samples import Figures
from bench.sides import side
from bench.workload import ROOT, named


class Measured(msgspec.Struct, frozen=True):
    """One figure of one side in one round. `what`: `64 clients`, `capacity` or `2x capacity`."""

    scenario: str
    side: str
    round: int
    what: str
    figures: Figures


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", default="noop")
    parser.add_argument("--sides", default="horologe:sdk,horologe:http")
    parser.add_argument("--peers", default="", help=f"further sides by name: {', '.join(peer.KNOWN)}")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=4.0, help="of every measurement")
    parser.add_argument("--clients", default="", help="instead of the scenario's, e.g. 1,64; 0: no closed loop")
    parser.add_argument("--capacity", action="store_true", help="search the open-loop capacity, and overload it")
    parser.add_argument("--yardstick", type=Path, default=None, help="a chain of your own instead of chain.py")
    parser.add_argument("--no-chain", action="store_true")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args()


def measure(name: str, scenario_name: str, turn: int, options: argparse.Namespace) -> list[Measured]:
    """Everything asked for, of one side in one round; a side that does not start says so and is left out."""
    scenario = named(scenario_name)
    clients = [int(count) for count in options.clients.split(",") if count] or scenario.clients
    found: dict[str, Figures] = {}
    try:
        with side(name, scenario) as run:
            run.closed(8, min(2.0, options.seconds))  # the first answers of a server are nobody's steady state
            for count in clients:
                if count:
                    found[f"{count} clients"] = run.closed(count, options.seconds)
            if options.capacity:
                rate = find(run, options.seconds).rate
                if rate:
                    found["capacity"] = run.open(rate, options.seconds)
                    for factor, figures in overload(run, rate, options.seconds).items():
                        found[f"{factor}x capacity"] = figures
    except (RuntimeError, OSError) as error:
        print(f"{name} on {scenario_name}: {error}", file=sys.stderr)
    return [Measured(scenario_name, name, turn, what, figures) for what, figures in found.items()]


def rows(results: list[Measured]) -> list[list[str]]:
    """One row per figure: the round in the middle, and the range of requests per second over all rounds."""
    groups: dict[tuple[str, str, str], list[Figures]] = {}
    for result in results:
        groups.setdefault((result.scenario, result.what, result.side), []).append(result.figures)
    lines = []
    for key, rounds in sorted(groups.items(), key=lambda group: (group[0][0], group[0][1])):
        middle = statistics.median_low([figures.requests_s for figures in rounds])
        shown = next(figures for figures in rounds if figures.requests_s == middle)
        span = f"{min(f.requests_s for f in rounds):.0f}-{max(f.requests_s for f in rounds):.0f}"
        offered = f"{shown.offered_s:.1f}" if shown.offered_s else ""
        lines.append([*key, offered, *table.row(shown), span])
    return lines


def main() -> None:
    options = arguments()
    sides = [name for name in options.sides.split(",") if name] + [f"{p}:json" for p in options.peers.split(",") if p]
    results: list[Measured] = []
    bare: list[chains.ChainRow] = []
    for turn in range(options.rounds):
        if not options.no_chain:
            bare += chains.run(options.yardstick, (1, 64)).values()
        for scenario in options.scenarios.split(","):
            for name in sides:
                print(f"round {turn + 1}: {scenario}: {name}", file=sys.stderr)
                results += measure(name, scenario, turn, options)
    head = ("scenario", "what", "side", "offered/s", *table.COLUMNS, "range")
    print(table.text(head, rows(results)))
    for row in bare:
        print(f"chain, {row.clients} clients: {row.requests_s:.0f}/s, p50 {row.p50_ms} ms, p99 {row.p99_ms} ms")
    path = options.json or ROOT / f"benchmarks/results/compare-{time.strftime('%Y%m%d-%H%M%S')}.json"
    table.save(path, {"machine": table.machine(), "chain": bare, "runs": results})
    print(f"written to {path}")


if __name__ == "__main__":
    main()
