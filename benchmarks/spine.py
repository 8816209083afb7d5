"""Measure every promise about speed in one run, each beside its yardstick.

    python benchmarks/spine.py --quick                       rough figures, about five minutes
    python benchmarks/spine.py --json benchmarks/results/spine.json
    python benchmarks/spine.py --only noop,cnn --placements fused --yardstick ../shared/chain.py

Starts Horologe, the bare chain and mosec one after the other, on free ports.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from bench import report
from bench.chains import run_chain
from bench.horologe_server import LOGS, RunningHorologe, start_errors, start_horologe
from bench.report import Bar
from bench.runs import ScenarioRuns, find_capacity, overload
from bench.server_metrics import MemoryWatch
from bench.sides import start_side
from bench.targets import make_target
from bench.workload import ROOT, Scenario, load_scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_load.samples import LoadSummary


class RunLog:
    """All runs behind the bars, for the JSON file. A call adds a run and prints it to standard error."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, LoadSummary]] = []

    def __call__(self, name: str, run: LoadSummary) -> LoadSummary:
        self.rows.append((name, run))
        times = f"p50 {run.p50_ms:.2f} p99 {run.p99_ms:.2f} ms"
        print(f"  {name}: {run.throughput:.0f}/s {times}", file=sys.stderr)
        for reason, count in run.reasons.items():
            print(f"    {count} x {reason}", file=sys.stderr)
        return run


def sdk(server: RunningHorologe, scenario: Scenario) -> ScenarioRuns:
    """Return runs through the SDK."""
    return ScenarioRuns(scenario, lambda inputs: make_target(server.sdk, "", scenario, inputs))


def http(server: RunningHorologe, scenario: Scenario) -> ScenarioRuns:
    """Return runs over HTTP with binary tensors."""
    return ScenarioRuns(scenario, lambda inputs: make_target(server.http, "oip-binary-slo", scenario, inputs))


def noop(options: argparse.Namespace, log: RunLog, split: bool) -> list[Bar]:
    """Compare SDK and HTTP with the bare chain, at 1 and 64 requests in flight, in turn within every round."""
    scenario, seconds, where = load_scenario("noop"), options.seconds, placement(split)
    rounds: list[dict[str, float]] = []
    for _ in range(options.rounds):
        chain = run_chain(options.yardstick, (1, 64))
        with start_horologe(scenario.repository, 1, split, model=scenario.model, ipc=options.ipc) as server:
            sdk(server, scenario).closed(16, 1.0)
            single = log(f"{where} sdk 1 client", sdk(server, scenario).closed(1, seconds))
            many = log(f"{where} sdk 64 clients", sdk(server, scenario).closed(64, seconds))
            http(server, scenario).closed(16, 1.0)
            web_one = log(f"{where} http 1 client", http(server, scenario).closed(1, seconds))
            web_many = log(f"{where} http 64 clients", http(server, scenario).closed(64, seconds))
        rounds.append(
            {
                "p50": single.p50_ms / chain[1].p50_ms,
                "rate": many.throughput / chain[64].requests_s,
                "web_p50": web_one.p50_ms,
                "web_rate": web_many.throughput / chain[64].requests_s,
                "chain_p50": chain[1].p50_ms,
                "chain_rate": chain[64].requests_s,
                "hits": sum(run.cached for run in (single, many, web_one, web_many)),
                "wrong": sum(run.wrong + run.failed + run.unanswered for run in (single, many, web_one, web_many)),
            }
        )
    medians = {key: statistics.median([values[key] for values in rounds]) for key in rounds[0]}
    beside = f"chain {medians['chain_p50']:.2f} ms at 1, {medians['chain_rate']:.0f}/s at 64"
    return [
        Bar("no-op SDK p50 at 1 client, of the chain's", where, medians["p50"], "<=", 3, "x", beside),
        Bar("no-op SDK throughput at 64, of the chain's", where, medians["rate"], ">=", 0.35, "x", beside),
        Bar("no-op HTTP p50 at 1 client", where, medians["web_p50"], "<=", 1.0, "ms"),
        Bar("no-op HTTP throughput at 64, of the chain's", where, medians["web_rate"], ">=", 0.2, "x", beside),
        Bar("no-op cache hits", where, medians["hits"], "<=", 0),
        Bar("no-op wrong or failed answers", where, medians["wrong"], "<=", 0),
    ]


def cnn(options: argparse.Namespace, log: RunLog, split: bool) -> list[Bar]:
    """Compare the capacity within 100 ms with the best of mosec, in turn; then offer two to four times as much."""
    scenario, where, seconds = load_scenario("cnn"), placement(split), options.seconds * 2
    ours, goodputs, theirs = [], [], {limit: [0.0] for limit in options.mosec}
    for _ in range(options.rounds):
        for limit in options.mosec:
            with start_side(f"mosec:binary:{limit}", scenario) as runs:
                runs.closed(8, 1.0)
                theirs[limit].append(find_capacity(runs, seconds, options.trials))
        with start_horologe(
            scenario.repository, scenario.workers, split, model=scenario.model, ipc=options.ipc
        ) as server:
            runs = sdk(server, scenario)
            runs.closed(8, 1.0)
            ours.append(find_capacity(runs, seconds, options.trials))
            if not ours[-1]:
                continue
            for factor, run in overload(runs, ours[-1], seconds).items():
                log(f"{where} cnn {factor}x capacity", run)
                goodputs.append(run.goodput / ours[-1])
    best = max((statistics.median(rates[1:]) for rates in theirs.values() if rates[1:]), default=0.0)
    ratio = statistics.median(ours) / best if best else float("nan")
    beside = ", ".join(f"mosec batch {limit}: {max(rates):.0f}/s" for limit, rates in theirs.items())
    return [
        Bar(
            "CNN capacity, of the best mosec's",
            where,
            ratio,
            ">=",
            1,
            "x",
            f"ours {statistics.median(ours):.0f}/s; {beside}",
        ),
        Bar("CNN goodput at 2x-4x of it, the least", where, min(goodputs, default=float("nan")), ">=", 0.9, "x"),
    ]


def start(options: argparse.Namespace, log: RunLog, split: bool) -> list[Bar]:
    """Measure start errors of EXEC on the emulated device at 500 requests per second."""
    scenario, where = load_scenario("emulated"), placement(split)
    with start_horologe(scenario.repository, 1, split, model=scenario.model, ipc=options.ipc) as server:
        sdk(server, scenario).open(500, 2.0)
        before = start_errors(server.server)
        run = log(f"{where} emulated 500/s", sdk(server, scenario).open(500, options.seconds * 3))
        errors = start_errors(server.server).since(before)
    p50, p99, p999 = (errors.quantile(q) * 1e6 for q in (0.5, 0.99, 0.999))
    detail = f"p50 <= {p50:.0f}, p99.9 <= {p999:.0f} us of {errors.total:.0f}; {run.attained:.2%} in time"
    return [Bar("start error p99 at 500 requests/s", where, p99, "<=", 500, "us", detail)]


def image(options: argparse.Namespace, log: RunLog, split: bool) -> list[Bar]:
    """Send 600 kB inputs through the SDK, 16 in flight."""
    scenario, where = load_scenario("image"), placement(split)
    with start_horologe(scenario.repository, 1, split, model=scenario.model, ipc=options.ipc) as server:
        sdk(server, scenario).closed(4, 1.0)
        run = log(f"{where} 600 kB, 16 clients", sdk(server, scenario).closed(16, options.seconds))
    detail = f"p50 {run.p50_ms:.1f} ms, wrong {run.wrong}, failed {run.failed}"
    return [Bar("600 kB inputs through the SDK", where, run.throughput, ">=", 300, "/s", detail)]


def memory(options: argparse.Namespace, log: RunLog, split: bool) -> list[Bar]:
    """Measure the slope of resident memory per process, at 1,000 requests per second with a full prediction cache."""
    scenario, where = load_scenario("noop", {"repository": str(copy_with_cache(LOGS / "caching"))}), placement(split)
    warm_s, seconds = (10, 30) if options.quick else (60, 300)
    with start_horologe(scenario.repository, 1, split, model=scenario.model, ipc=options.ipc) as server:
        log(f"{where} memory warm-up", sdk(server, scenario).closed(64, warm_s))
        with MemoryWatch(server.server) as watch:
            log(f"{where} memory", sdk(server, scenario).open(1000, seconds))
    slopes = watch.slopes()
    detail = "; ".join(f"{name}: {value:.2f}" for name, value in slopes.items())
    return [Bar("memory slope, the worst process", where, max(slopes.values()), "<=", 1, "MB/min", detail)]


def copy_with_cache(folder: Path) -> Path:
    """Copy the no-op model with the prediction cache switched on. Return `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "models/noop", folder / "noop")
    manifest = folder / "noop/1/model.toml"
    manifest.write_text(f'cache = true\ncache_ttl = "10min"\n{manifest.read_text() if manifest.exists() else ""}')
    return folder


PARTS: dict[str, Callable[[argparse.Namespace, RunLog, bool], list[Bar]]] = {
    "noop": noop,
    "cnn": cnn,
    "start": start,
    "image": image,
    "memory": memory,
}


def placement(split: bool) -> str:
    """Return the name of a placement: split runs a process per service."""
    return "split" if split else "fused"


def parse_arguments() -> argparse.Namespace:
    """Parse the command line, and set the defaults that depend on --quick."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"parts to run, of {', '.join(PARTS)}")
    parser.add_argument("--placements", default="fused,split")
    parser.add_argument("--yardstick", type=Path, default=None, help="script to run instead of chain.py")
    parser.add_argument("--mosec", default="4,16", help="batch limits of mosec on the CNN; empty: no mosec")
    parser.add_argument("--rounds", type=int, default=0, help="rounds of every part; default 3, with --quick 1")
    parser.add_argument("--seconds", type=float, default=0, help="length of a measurement; default 5, with --quick 2")
    parser.add_argument("--trials", type=int, default=0, help="limit of a capacity search; default 16, with --quick 8")
    parser.add_argument(
        "--ipc", action="store_true", help="connect the SDK over a Unix socket, as the chain does, instead of TCP"
    )
    parser.add_argument("--quick", action="store_true", help="short measurements, for rough figures only")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    options.mosec = [int(limit) for limit in options.mosec.split(",") if limit]
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.seconds = options.seconds or (2.0 if options.quick else 5.0)
    options.trials = options.trials or (8 if options.quick else 16)
    return options


def main() -> int:
    options = parse_arguments()
    machine, log = report.describe_machine(), RunLog()
    bars: list[Bar] = []
    for part in options.only.split(","):
        for where in options.placements.split(","):
            print(f"{part}, {where}", file=sys.stderr)
            try:
                bars += PARTS[part](options, log, where == "split")
            except Exception as error:  # a part that fails must not hide the others
                traceback.print_exc()
                reason = str(error).splitlines()[-1] if str(error) else type(error).__name__
                bars.append(Bar(part, where, float("nan"), "<=", 0, "", reason))
    print(report.markdown(report.BAR_COLUMNS, map(report.bar_row, bars)))
    print()
    print(report.markdown(("run", *report.RUN_COLUMNS), [[name, *report.run_row(run)] for name, run in log.rows]))
    if options.json:
        results = [{**msgspec.to_builtins(bar), "holds": bar.holds} for bar in bars]
        report.save_json(
            options.json,
            {"machine": machine, "bars": results, "runs": [(name, report.run_document(run)) for name, run in log.rows]},
        )
    return 0 if all(bar.holds for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
