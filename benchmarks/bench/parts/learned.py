"""The default, after it has learned, beside the same system without a profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.measurements import Load, Measurements, goodput, throughput
from bench.parts.bench_run import SCENARIOS, STATIC, BenchRun
from bench.report import Bar
from bench.runs import find_capacity, wait_until_idle
from bench.systems import DEFAULT, NO_PROFILER, in_turn
from bench.workload import load_scenario

if TYPE_CHECKING:
    from bench.systems import System
    from bench.workload import Scenario

INTERFACES = ("sdk", "json", "binary")
CLIENTS = (1, 16, 64)
SLOW = {"cnn-10ms": 3.0, "digits-cnn": 1.5}
"""Factor of the duration of closed loops, so that slow models give enough answers."""
FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0)
"""Multiples of the capacity."""
LEAST_SHARE = 0.95
"""Least throughput of the default, of that without a profiler; least goodput at any load, of the greatest."""
HOLDS_GOODPUT = ("noop", "digits-cnn", "cnn-10ms")
"""Models whose goodput at every multiple must reach `LEAST_SHARE` of the greatest."""
FIRST_PART = 0.7
"""First rate of a search for a capacity, of the throughput of a closed loop."""


def measure_throughput(bench: BenchRun) -> list[Bar]:
    """Measure closed loops of 1, 16 and 64 clients over three interfaces."""
    systems = bench.shared()
    for turn in range(bench.effort.rounds):
        for model in STATIC:
            scenario = load_scenario(SCENARIOS.get(model, model))
            seconds = SLOW.get(model, 1.0) * bench.effort.seconds
            for interface in INTERFACES:
                for clients in CLIENTS:
                    load = Load("throughput", model, interface, str(clients))
                    for system in in_turn(systems, turn):
                        run = system.runs(scenario, interface).closed(clients, seconds)
                        bench.log.add(load, system.name, run)
    return [*bench.dynamic_bars(), *throughput_bars(bench.log)]


def throughput_bars(log: Measurements) -> list[Bar]:
    """Return a bar for each model and interface: the least ratio of the default over the numbers of clients."""
    bars = []
    for model in STATIC:
        for interface in INTERFACES:
            loads = [Load("throughput", model, interface, str(clients)) for clients in CLIENTS]
            ratios = [log.ratio(load, DEFAULT, NO_PROFILER, throughput) for load in loads]
            rates = [log.median(load, DEFAULT, throughput) for load in loads]
            detail = ", ".join(
                f"{clients}: {ratio:.2f} ({rate:.0f}/s)"
                for clients, ratio, rate in zip(CLIENTS, ratios, rates, strict=True)
            )
            name = f"{model}, {interface}: throughput, of no-profiler's"
            bars.append(Bar(name, least(ratios), ">=", LEAST_SHARE, "x", detail))
    return bars


def measure_goodput(bench: BenchRun) -> list[Bar]:
    """Offer one to four times the capacity, which is searched on the system without a profiler."""
    systems = bench.shared()
    for model in STATIC:
        scenario = load_scenario(SCENARIOS.get(model, model))
        capacity = capacity_of(systems[NO_PROFILER], scenario, bench)
        for turn in range(bench.effort.slow_rounds):
            for factor in FACTORS:
                load = Load("goodput", model, "sdk", f"{factor:g}x")
                for system in in_turn(systems, turn):
                    runs = system.runs(scenario, "sdk")
                    wait_until_idle(runs)
                    run = runs.open(factor * capacity, 2 * SLOW.get(model, 1.0) * bench.effort.seconds, seed=turn + 1)
                    bench.log.add(load, system.name, run)
    return [*bench.dynamic_bars(), *goodput_bars(bench.log)]


def capacity_of(system: System, scenario: Scenario, bench: BenchRun) -> float:
    """Return the highest rate with 99% in time, or a low rate if no rate is carried."""
    runs = system.runs(scenario, "sdk")
    seconds = 2 * SLOW.get(scenario.model, 1.0) * bench.effort.seconds
    first = FIRST_PART * runs.closed(scenario.max_batch * scenario.workers, bench.effort.seconds).throughput
    return find_capacity(runs, seconds, bench.effort.trials, first_rate=first) or 0.5 * first


def goodput_bars(log: Measurements) -> list[Bar]:
    """Return two bars for each model: the default beside no-profiler, and over all loads beside its greatest."""
    bars = []
    for model in STATIC:
        loads = [Load("goodput", model, "sdk", f"{factor:g}x") for factor in FACTORS]
        ratios = [log.ratio(load, DEFAULT, NO_PROFILER, goodput) for load in loads]
        rates = [log.median(load, DEFAULT, goodput) for load in loads]
        texts = (f"{f:g}x: {ratio:.2f} ({rate:.0f}/s)" for f, ratio, rate in zip(FACTORS, ratios, rates, strict=True))
        name = f"{model}: goodput at 1x to 4x, of no-profiler's"
        bars.append(Bar(name, least(ratios), ">=", LEAST_SHARE, "x", ", ".join(texts)))
        if model in HOLDS_GOODPUT:
            name = f"{model}: least goodput at 1x to 4x, of the greatest"
            bars.append(Bar(name, least(rates) / max(rates, default=1.0), ">=", LEAST_SHARE, "x"))
    return bars


def least(values: list[float]) -> float:
    """Return the least value; NaN if any is NaN."""
    return float(sum(values)) if any(value != value for value in values) else min(values)
