"""Measure every promise about speed in one run, each beside its yardstick.

    python benchmarks/spine.py --quick                       rough figures, about ten minutes
    python benchmarks/spine.py --json benchmarks/results/spine.json
    python benchmarks/spine.py --only throughput,goodput --neighbour
    python benchmarks/spine.py --only chain,rotation --baseline ../before

Starts the default, the same without a profiler, the bare chain and other servers, on free ports. Each system gets mixed
traffic before it is measured, two minutes or 20 s with --quick.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench import report
from bench.horologe_server import remove_profiles
from bench.parts.bench_run import BenchRun, Effort
from bench.parts.learned import measure_goodput, measure_throughput
from bench.parts.scale import measure_emulated, measure_rotation, measure_start
from bench.parts.tensors import measure_image, measure_memory
from bench.parts.yardsticks import last_line, measure_chain, measure_cnn, measure_peers
from bench.report import Bar
from bench.systems import Conditions
from bench.warm_up import LEARN_S, QUICK_LEARN_S, describe_dynamic

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.measurements import Measurements

PARTS: dict[str, Callable[[BenchRun], list[Bar]]] = {
    "throughput": measure_throughput,
    "goodput": measure_goodput,
    "chain": measure_chain,
    "peers": measure_peers,
    "cnn": measure_cnn,
    "rotation": measure_rotation,
    "emulated": measure_emulated,
    "start": measure_start,
    "image": measure_image,
    "memory": measure_memory,
}
"""Parts by name. The first four share their systems."""


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line, and set the defaults that depend on --quick."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to run, of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="short measurements, for rough figures only")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every part; default 5, with --quick 2")
    parser.add_argument("--seconds", type=float, default=0, help="length of a closed loop; default 2, with --quick 0.5")
    parser.add_argument("--trials", type=int, default=0, help="limit of a capacity search; default 16, with --quick 8")
    parser.add_argument(
        "--learn", type=float, default=0, help="seconds of mixed traffic; default 120, with --quick 20", metavar="S"
    )
    parser.add_argument("--neighbour", action="store_true", help="run a program that uses a core in bursts beside it")
    parser.add_argument("--split", action="store_true", help="start a process for each service")
    parser.add_argument("--baseline", type=Path, help="another checkout with an environment .venv, as one more side")
    parser.add_argument("--set", action="append", default=[], help="a setting of every system", metavar="S.F=VALUE")
    parser.add_argument("--yardstick", type=Path, default=None, help="script to run instead of chain.py")
    parser.add_argument("--mosec", default="4,16", help="batch limits of mosec on the CNN; empty: no mosec")
    parser.add_argument("--peers", default="mosec,triton", help="servers beside HTTP")
    parser.add_argument("--json", type=Path, default=None)
    return parser.parse_args(argv)


def make_run(options: argparse.Namespace) -> BenchRun:
    """Return the run that the options describe."""
    learn_s = options.learn or (QUICK_LEARN_S if options.quick else LEARN_S)
    baseline = options.baseline.resolve() if options.baseline else None
    conditions = Conditions(learn_s, options.neighbour, options.split, baseline, tuple(options.set))
    effort = Effort(
        options.rounds or (2 if options.quick else 5),
        options.rounds or (1 if options.quick else 5),
        options.seconds or (0.5 if options.quick else 2.0),
        options.trials or (8 if options.quick else 16),
        options.quick,
        options.yardstick,
        tuple(int(limit) for limit in options.mosec.split(",") if limit),
        tuple(peer for peer in options.peers.split(",") if peer),
    )
    return BenchRun(conditions, effort)


def measure_parts(bench: BenchRun, parts: list[str]) -> list[Bar]:
    """Run the parts. A part that fails becomes a bar that does not hold, and does not hide the others."""
    bars: list[Bar] = []
    for part in parts:
        start_s = time.monotonic()
        print(f"{part}: {PARTS[part].__doc__}", file=sys.stderr)
        try:
            new = PARTS[part](bench)
            bars = [bar for bar in bars if bar.name not in {later.name for later in new}] + new
        except Exception as error:
            traceback.print_exc()
            bars.append(Bar(part, float("nan"), "<=", 0, "", last_line(error)))
        print(f"{part}: took {time.monotonic() - start_s:.0f} s", file=sys.stderr)
    return bars


def side_rows(log: Measurements) -> list[list[str]]:
    """Return a row for each load and side: the median round by throughput."""
    rows = []
    for (load, side), runs in log.runs.items():
        middle = sorted(runs, key=lambda run: run.throughput)[(len(runs) - 1) // 2]
        rows.append([*load, side, *report.run_row(middle)])
    return rows


def main() -> int:
    options = parse_arguments()
    machine = report.describe_machine()
    parts = [part for part in options.only.split(",") if part]
    if unknown := set(parts) - set(PARTS):
        sys.exit(f"--only: got {', '.join(sorted(unknown))}, wanted some of {', '.join(PARTS)}")
    remove_profiles()
    report.print_machine(machine)
    with make_run(options) as bench:
        bars = measure_parts(bench, parts)
    columns = ("part", "model", "interface", "load", "side", *report.RUN_COLUMNS)
    print(report.markdown(columns, side_rows(bench.log)))
    print()
    for name, dynamic in bench.dynamic.items():
        print(f"{name}: dynamic: {describe_dynamic(dynamic)}")
    print()
    print(report.markdown(report.BAR_COLUMNS, map(report.bar_row, bars)))
    if options.json:
        document = {
            "machine": machine,
            "conditions": {**bench.conditions._asdict(), **bench.effort._asdict()},
            "dynamic": bench.dynamic,
            "bars": [{**msgspec.to_builtins(bar), "holds": bar.holds} for bar in bars],
            "runs": [
                (*load, side, [report.run_document(run) for run in runs])
                for (load, side), runs in bench.log.runs.items()
            ],
        }
        report.save_json(options.json, document)
    return 0 if all(bar.holds for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
