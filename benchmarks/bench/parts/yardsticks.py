"""The default beside the bare chain, and beside other servers."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
from typing import TYPE_CHECKING

from bench.chains import run_chain
from bench.measurements import Load, goodput, p50, throughput
from bench.parts.learned import FACTORS
from bench.report import Bar
from bench.runs import find_capacity, wait_until_idle
from bench.sides import start_peer
from bench.systems import BEFORE, DEFAULT, in_turn, start_systems
from bench.workload import ROOT, load_scenario

if TYPE_CHECKING:
    from bench.measurements import Measurements
    from bench.parts.bench_run import BenchRun
    from bench.runs import ScenarioRuns

CHAIN_RATE, CHAIN_P50 = 0.6, 2.0
PEER_RATE = 0.8
CNN_GOODPUT, CNN_CAPACITY = 1.2, 1.1
CNN_WORKERS = 2
GROWTH = 1.2
"""Factor of the rate in each step of the search for a capacity, which starts near it."""


def measure_chain(bench: BenchRun) -> list[Bar]:
    """Compare the SDK with the chain, alone and with 64 requests in flight. Both use Unix sockets."""
    systems, scenario = bench.shared(), load_scenario("noop")
    rates, p50s, alone_ms, full_rates = [], [], [], []
    for turn in range(bench.effort.rounds):
        chain = run_chain(bench.effort.yardstick, (1, 64))
        for interface in ("ipc", "sdk"):
            for clients in (1, 64):
                for system in in_turn(systems, turn):
                    run = system.runs(scenario, interface).closed(clients, bench.effort.seconds)
                    bench.log.add(Load("chain", "noop", interface, str(clients)), system.name, run)
        one, many = (bench.log.runs[Load("chain", "noop", "ipc", amount), DEFAULT][-1] for amount in ("1", "64"))
        rates.append(many.throughput / chain[64].requests_s)
        p50s.append(one.p50_ms / chain[1].p50_ms)
        alone_ms.append(chain[1].p50_ms)
        full_rates.append(chain[64].requests_s)
    beside = f"chain {statistics.median(alone_ms):.2f} ms at 1, {statistics.median(full_rates):.0f}/s at 64"
    rate, alone = (
        bench.log.median(Load("chain", "noop", "sdk", amount), DEFAULT, figure)
        for amount, figure in (("64", throughput), ("1", p50))
    )
    beside += f"; over TCP {alone:.2f} ms and {rate:.0f}/s"
    return [
        Bar("no-op SDK throughput at 64, of the chain's", statistics.median(rates), ">=", CHAIN_RATE, "x", beside),
        Bar("no-op SDK p50 alone, of the chain's", statistics.median(p50s), "<=", CHAIN_P50, "x", beside),
        *bench.dynamic_bars(),
    ]


def measure_peers(bench: BenchRun) -> list[Bar]:
    """Compare HTTP with binary tensors and with JSON at 64 clients with other servers that do the same work."""
    systems, scenario = bench.shared(), load_scenario("noop")
    failures: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        peers: dict[str, dict[str, ScenarioRuns]] = {"binary": {}, "json": {}}
        for interface, started in peers.items():
            for peer in bench.effort.peers:
                try:
                    started[peer] = stack.enter_context(start_peer(peer, [interface], scenario))
                except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                    failures[peer] = f"did not start: {last_line(error)}"
                    print(f"  {peer} {failures[peer]}", file=sys.stderr)
        for turn in range(bench.effort.rounds):
            for interface, started in peers.items():
                load = Load("peers", "noop", interface, "64")
                for system in in_turn(systems, turn):
                    run = system.runs(scenario, interface).closed(64, bench.effort.seconds)
                    bench.log.add(load, system.name, run)
                for peer, runs in started.items():
                    runs.closed(64, 0.3)
                    bench.log.add(load, peer, runs.closed(64, bench.effort.seconds))
    return [*peer_bars(bench.log, bench.effort.peers, failures), *bench.dynamic_bars()]


def peer_bars(log: Measurements, peers: tuple[str, ...], failures: dict[str, str]) -> list[Bar]:
    """Return a bar for each interface and peer. Only mosec sets a limit: Triton's client protocol differs."""
    bars = []
    for interface in ("binary", "json"):
        load = Load("peers", "noop", interface, "64")
        ours = log.median(load, DEFAULT, throughput)
        for peer in peers:
            detail = failures.get(peer, f"{ours:.0f}/s beside {log.median(load, peer, throughput):.0f}/s")
            name = f"no-op HTTP {interface} at 64, of {peer}'s"
            ratio = log.ratio(load, DEFAULT, peer, throughput)
            bars.append(Bar(name, ratio, ">=" if peer == "mosec" else "", PEER_RATE, "x", detail))
    return bars


def measure_cnn(bench: BenchRun) -> list[Bar]:
    """Compare capacity and goodput of the CNN on two workers with mosec's at the better of its batch limits."""
    bench.stop_shared()
    scenario, seconds = load_scenario("cnn"), 4 * bench.effort.seconds
    repository, names = ROOT / "benchmarks/models", (DEFAULT, BEFORE)
    capacities: dict[str, list[float]] = {}
    with contextlib.ExitStack() as stack:
        models = (scenario.model,)
        started = start_systems(bench.conditions, repository, CNN_WORKERS, names, models)
        systems = stack.enter_context(started)
        peers = {
            f"mosec:{limit}": stack.enter_context(start_peer("mosec", ["binary", str(limit)], scenario))
            for limit in bench.effort.mosec
        }
        for turn in range(bench.effort.slow_rounds):
            sides = {system.name: system.runs(scenario, "sdk") for system in in_turn(systems, turn)} | peers
            for name, runs in sides.items():
                capacities.setdefault(name, []).append(_capacity(runs, seconds, bench.effort.trials))
            for name in systems:
                rate = statistics.median(capacities[name]) or 1.0
                for factor in FACTORS:
                    wait_until_idle(sides[name])
                    run = sides[name].open(factor * rate, seconds, seed=turn + 1)
                    bench.log.add(Load("cnn", "cnn-10ms", "sdk", f"{factor:g}x"), name, run)
    return cnn_bars(bench.log, {name: statistics.median(rates) for name, rates in capacities.items()})


def _capacity(runs: ScenarioRuns, seconds: float, trials: int) -> float:
    first = 0.8 * runs.closed(8, 0.5 * seconds).throughput
    return find_capacity(runs, seconds, trials, first_rate=first, growth=GROWTH)


def cnn_bars(log: Measurements, capacities: dict[str, float]) -> list[Bar]:
    """Return the bars on capacity, and on the least goodput above the capacity, beside the best of mosec."""
    theirs = max((rate for name, rate in capacities.items() if name.startswith("mosec")), default=0.0)
    ours = capacities[DEFAULT]
    rates = {f: log.median(Load("cnn", "cnn-10ms", "sdk", f"{f:g}x"), DEFAULT, goodput) for f in FACTORS}
    above = min(rate for factor, rate in rates.items() if factor > 1)
    beside = ", ".join(f"{name} {rate:.0f}/s" for name, rate in capacities.items())
    levels = ", ".join(f"{factor:g}x: {rate:.0f}/s" for factor, rate in rates.items())
    over = 1 / theirs if theirs else float("nan")
    return [
        Bar("CNN capacity, of the best mosec's", ours * over, ">=", CNN_CAPACITY, "x", beside),
        Bar(
            "CNN least goodput at 1.5x to 4x, of the best mosec's capacity",
            above * over,
            ">=",
            CNN_GOODPUT,
            "x",
            levels,
        ),
        Bar(
            "CNN least goodput at 1x to 4x, of the greatest", min(rates.values()) / max(rates.values()), ">=", 0.95, "x"
        ),
    ]


def last_line(error: Exception) -> str:
    """Return the last line of an error, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
