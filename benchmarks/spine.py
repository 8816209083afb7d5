"""Every promise about speed in one run, each beside what it is measured against.

    python benchmarks/spine.py --quick                       sanity, about five minutes
    python benchmarks/spine.py --json benchmarks/results/spine.json
    python benchmarks/spine.py --only noop,cnn --placements fused --yardstick ../shared/chain.py

Starts Horologe, the bare chain and mosec itself, one after the other, on free ports.
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

from bench import chains, table
from bench.bars import HEAD, Bar, row
from bench.capacity import find, overload
from bench.horologe import LOGS, House, start_errors, start_horologe
from bench.loops import Run
from bench.memory import Watch
from bench.sides import side
from bench.target import target
from bench.workload import ROOT, Scenario, named

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.samples import Figures


class Log:
    """Everything that was measured on the way to the bars, for the JSON and for whoever doubts them."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, Figures]] = []

    def __call__(self, what: str, figures: Figures) -> Figures:
        self.rows.append((what, figures))
        times = f"p50 {figures.p50_ms:.2f} p99 {figures.p99_ms:.2f} ms"
        print(f"  {what}: {figures.requests_s:.0f}/s {times}", file=sys.stderr)
        for reason, count in figures.reasons.items():
            print(f"    failed {count} x {reason}", file=sys.stderr)
        return figures


def sdk(house: House, scenario: Scenario) -> Run:
    return Run(scenario, lambda inputs: target(house.sdk, "", scenario, inputs))


def http(house: House, scenario: Scenario) -> Run:
    return Run(scenario, lambda inputs: target(house.http, "oip-binary-slo", scenario, inputs))


def noop(options: argparse.Namespace, log: Log, split: bool) -> list[Bar]:
    """SDK and HTTP at one and at 64 in flight, against the bare chain, in turn within every round."""
    scenario, seconds, where = named("noop"), options.seconds, placement(split)
    rounds: list[dict[str, float]] = []
    for _ in range(options.rounds):
        chain = chains.run(options.yardstick, (1, 64))
        with start_horologe(scenario.repository, 1, split, model=scenario.model, ipc=options.ipc) as house:
            sdk(house, scenario).closed(16, 1.0)
            one = log(f"{where} sdk 1 client", sdk(house, scenario).closed(1, seconds))
            many = log(f"{where} sdk 64 clients", sdk(house, scenario).closed(64, seconds))
            http(house, scenario).closed(16, 1.0)
            web_one = log(f"{where} http 1 client", http(house, scenario).closed(1, seconds))
            web_many = log(f"{where} http 64 clients", http(house, scenario).closed(64, seconds))
        rounds.append(
            {
                "p50": one.p50_ms / chain[1].p50_ms,
                "rate": many.requests_s / chain[64].requests_s,
                "web_p50": web_one.p50_ms,
                "web_rate": web_many.requests_s / chain[64].requests_s,
                "chain_p50": chain[1].p50_ms,
                "chain_rate": chain[64].requests_s,
                "hits": sum(run.cache_hits for run in (one, many, web_one, web_many)),
                "wrong": sum(run.wrong + run.failed + run.silent for run in (one, many, web_one, web_many)),
            }
        )
    mid = {key: statistics.median([turn[key] for turn in rounds]) for key in rounds[0]}
    beside = f"chain {mid['chain_p50']:.2f} ms at 1, {mid['chain_rate']:.0f}/s at 64"
    return [
        Bar("no-op SDK p50 at 1 client, of the chain's", where, mid["p50"], "<=", 3, "x", beside),
        Bar("no-op SDK throughput at 64, of the chain's", where, mid["rate"], ">=", 0.35, "x", beside),
        Bar("no-op HTTP p50 at 1 client", where, mid["web_p50"], "<=", 1.0, "ms"),
        Bar("no-op HTTP throughput at 64, of the chain's", where, mid["web_rate"], ">=", 0.2, "x", beside),
        Bar("no-op cache hits", where, mid["hits"], "<=", 0),
        Bar("no-op wrong or failed answers", where, mid["wrong"], "<=", 0),
    ]


def cnn(options: argparse.Namespace, log: Log, split: bool) -> list[Bar]:
    """Capacity with 99% inside 100 ms beside the best mosec, in turn; then two, three and four times as much."""
    scenario, where, seconds = named("cnn"), placement(split), options.seconds * 2
    ours, kept, theirs = [], [], {limit: [0.0] for limit in options.mosec}
    for _ in range(options.rounds):
        for limit in options.mosec:
            with side(f"mosec:binary:{limit}", scenario) as run:
                run.closed(8, 1.0)
                theirs[limit].append(find(run, seconds, options.trials).rate)
        with start_horologe(
            scenario.repository, scenario.workers, split, model=scenario.model, ipc=options.ipc
        ) as house:
            run = sdk(house, scenario)
            run.closed(8, 1.0)
            ours.append(find(run, seconds, options.trials).rate)
            if not ours[-1]:
                continue
            for factor, figures in overload(run, ours[-1], seconds).items():
                log(f"{where} cnn {factor}x capacity", figures)
                kept.append(figures.goodput_s / ours[-1])
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
        Bar("CNN goodput at 2x-4x of it, the least", where, min(kept, default=float("nan")), ">=", 0.9, "x"),
    ]


def start(options: argparse.Namespace, log: Log, split: bool) -> list[Bar]:
    """Start error of EXEC on the emulated device at 500 requests/s."""
    scenario, where = named("emulated"), placement(split)
    with start_horologe(scenario.repository, 1, split, model=scenario.model, ipc=options.ipc) as house:
        sdk(house, scenario).open(500, 2.0)
        before = start_errors(house.server)
        figures = log(f"{where} emulated 500/s", sdk(house, scenario).open(500, options.seconds * 3))
        errors = start_errors(house.server).since(before)
    p50, p99, p999 = (errors.quantile(q) * 1e6 for q in (0.5, 0.99, 0.999))
    detail = f"p50 <= {p50:.0f}, p99.9 <= {p999:.0f} us of {errors.total:.0f}; {figures.attained:.2%} in time"
    return [Bar("start error p99 at 500 requests/s", where, p99, "<=", 500, "us", detail)]


def image(options: argparse.Namespace, log: Log, split: bool) -> list[Bar]:
    """600 kB inputs through the SDK, 16 in flight."""
    scenario, where = named("image"), placement(split)
    with start_horologe(scenario.repository, 1, split, model=scenario.model, ipc=options.ipc) as house:
        sdk(house, scenario).closed(4, 1.0)
        figures = log(f"{where} 600 kB, 16 clients", sdk(house, scenario).closed(16, options.seconds))
    detail = f"p50 {figures.p50_ms:.1f} ms, wrong {figures.wrong}, failed {figures.failed}"
    return [Bar("600 kB inputs through the SDK", where, figures.requests_s, ">=", 300, "/s", detail)]


def memory(options: argparse.Namespace, log: Log, split: bool) -> list[Bar]:
    """Slope of the resident size per process, at 1,000 requests/s with the prediction cache on and full."""
    scenario, where = named("noop", {"repository": str(caching(LOGS / "caching"))}), placement(split)
    warm_s, seconds = (10, 30) if options.quick else (60, 300)
    with start_horologe(scenario.repository, 1, split, model=scenario.model, ipc=options.ipc) as house:
        log(f"{where} memory warm-up", sdk(house, scenario).closed(64, warm_s))
        with Watch(house.server) as watch:
            log(f"{where} memory", sdk(house, scenario).open(1000, seconds))
    slopes = watch.slopes()
    detail = "; ".join(f"{name}: {value:.2f}" for name, value in slopes.items())
    return [Bar("memory slope, the worst process", where, max(slopes.values()), "<=", 1, "MB/min", detail)]


def caching(folder: Path) -> Path:
    """A copy of the no-op model with the prediction cache switched on."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "models/noop", folder / "noop")
    manifest = folder / "noop/1/model.toml"
    manifest.write_text(f'cache = true\ncache_ttl = "10min"\n{manifest.read_text() if manifest.exists() else ""}')
    return folder


PARTS: dict[str, Callable[[argparse.Namespace, Log, bool], list[Bar]]] = {
    "noop": noop,
    "cnn": cnn,
    "start": start,
    "image": image,
    "memory": memory,
}


def placement(split: bool) -> str:
    return "split" if split else "fused"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--placements", default="fused,split")
    parser.add_argument("--yardstick", type=Path, default=None, help="a chain of your own instead of chain.py")
    parser.add_argument("--mosec", default="4,16", help="batch limits of mosec on the CNN; empty: leave it out")
    parser.add_argument("--rounds", type=int, default=0, help="default 3, with --quick 1")
    parser.add_argument("--seconds", type=float, default=0, help="of a measurement; default 5, with --quick 2")
    parser.add_argument("--trials", type=int, default=0, help="of a capacity search; default 16, with --quick 8")
    parser.add_argument("--ipc", action="store_true", help="the SDK over a Unix socket, as the chain; else TCP")
    parser.add_argument("--quick", action="store_true", help="short measurements: numbers for sanity only")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    options.mosec = [int(limit) for limit in options.mosec.split(",") if limit]
    options.rounds = options.rounds or (1 if options.quick else 3)
    options.seconds = options.seconds or (2.0 if options.quick else 5.0)
    options.trials = options.trials or (8 if options.quick else 16)
    return options


def main() -> int:
    options = arguments()
    machine, log = table.machine(), Log()
    bars: list[Bar] = []
    for part in options.only.split(","):
        for where in options.placements.split(","):
            print(f"{part}, {where}", file=sys.stderr)
            try:
                bars += PARTS[part](options, log, where == "split")
            except Exception as error:  # one part that breaks shall not hide the others
                traceback.print_exc()
                reason = str(error).splitlines()[-1] if str(error) else type(error).__name__
                bars.append(Bar(part, where, float("nan"), "<=", 0, "", reason))
    print(table.text(HEAD, map(row, bars)))
    print()
    print(table.text(("run", *table.COLUMNS), [[what, *table.row(figures)] for what, figures in log.rows]))
    if options.json:
        kept = [{**msgspec.to_builtins(bar), "holds": bar.holds} for bar in bars]
        table.save(options.json, {"machine": machine, "bars": kept, "runs": log.rows})
    return 0 if all(bar.holds for bar in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
