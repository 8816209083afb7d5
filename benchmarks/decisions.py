"""Measure the cost of decisions: CPU time of the controller's core per served request.

    python benchmarks/decisions.py              default point: 4,026 models, 20 devices, 0.9 of capacity
    python benchmarks/decisions.py --before ../before --rounds 5
    python benchmarks/decisions.py --curves --json benchmarks/results/decisions.json --plot decisions.png

The default point is measured with the schedulers `clockwork` and `horologe`. `--curves` varies the number of models,
devices and pending requests with `clockwork`. The load is that of `horologe experiment fig8`: the Azure trace over
copies of 61 models, SLO 100 ms. Capacity is the highest rate of which `clockwork` serves 99%, searched for each case.
The thread's CPU clock times only `handle` and `tick` of the controller. Refusals cost time and do not count as served.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from bench import report
from bench.before import compare_with_before
from horologe_common.clock import ms, s
from horologe_controller.settings import ControllerSettings
from horologe_experiments.clockwork.trace_replay import Scene
from horologe_experiments.harness.experiment import load_scene
from horologe_experiments.harness.experiment_world import ExperimentWorld, WorldRecords
from horologe_experiments.harness.interval_ledger import IntervalLedger
from horologe_experiments.harness.request_streams import PoissonStream, poisson
from horologe_experiments.traces.azure_functions import replay
from horologe_sim.controller_only.controller_world import ClusterSettings
from horologe_sim.controller_only.request_load import Chunk

if TYPE_CHECKING:
    from collections.abc import Iterator

VARIETIES = 61
WARMUP_S, SEARCH_S = 2, 3
FIRST_RATE = 25_000.0
"""First rate of the search at the default point, in requests per second."""
SERVED = 0.99
"""Share of the requests that must be served at the capacity."""
BAR_US = 40


class Case(NamedTuple):
    """A point of the measurement; the defaults are the default point."""

    models: int = 66 * VARIETIES
    devices: int = 20
    pending: int = 0
    """Best-effort requests queued from the start, behind all others."""
    scheduler: str = "clockwork"


class DecisionRow(NamedTuple):
    """A row of the result; the field names are the columns."""

    scheduler: str
    models: int
    devices: int
    pending: int
    capacity_s: float
    rate_s: float
    served: int
    satisfaction: float
    rows_a_batch: float
    us_per_served: float


class CaseRun(NamedTuple):
    """The result of one run after its warm-up."""

    served: int
    satisfaction: float
    rows_a_batch: float
    cpu_ns: int


def run(case: Case, rate: float, seconds: int, seed: int) -> CaseRun:
    """Warm up, then measure without garbage collection. The reactor also switches it off while there is work."""
    settings = load_scene("scale", Scene, False, {})
    mapping = msgspec.structs.replace(settings.mapping, copies=max(1, round(case.models / VARIETIES)))
    trace = replay(mapping, rate, 1)
    total_ns = s(WARMUP_S + seconds)
    ledger = IntervalLedger(["all", "best effort"], len(trace.models), total_ns, s(WARMUP_S))
    stream = PoissonStream(lambda step: trace.rates[step], total_ns, lambda step: ms(100))
    setting = ClusterSettings(
        devices=case.devices,
        controller=ControllerSettings(scheduler=case.scheduler, margin_ns=ms(0.3), max_queued=10**6),
    )
    chunks = _prepend_pending(case.pending, len(trace.models), poisson([stream], total_ns, [seed]))
    return measure_run(
        ExperimentWorld(setting, trace.models, ledger, seed, chunks, records=WorldRecords(clock=time.thread_time_ns)),
        total_ns,
    )


def measure_run(world: ExperimentWorld, total_ns: int) -> CaseRun:
    """Run for `total_ns`, the first `WARMUP_S` of it unmeasured."""
    cpu_ns: list[int] = []

    def progress(part: float) -> None:
        cpu_ns.append(world.controller_ns)

    gc.collect()
    gc.disable()
    try:
        world.run(total_ns, progress)
    finally:
        gc.enable()
    ledger = world.ledger
    line = ledger.lines[0]
    rows, batches = (sum(getattr(panel, name) for panel in ledger.panels) for name in ("rows", "batches"))
    return CaseRun(line.ok, line.satisfaction, rows / max(1, batches), cpu_ns[-1] - cpu_ns[WARMUP_S - 1])


def _prepend_pending(count: int, models: int, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Yield `count` best-effort requests, then `chunks`."""
    if count:
        yield Chunk([0] * count, (np.arange(count) % models).tolist(), [0] * count, [1] * count)
    yield from chunks


def find_capacity(case: Case, seed: int, first_rate: float = 0.0) -> float:
    """Return the highest rate of which `SERVED` is served, to 5%. The search starts at `first_rate` if it is given."""

    def is_served(rate: float) -> bool:
        return run(case, rate, SEARCH_S, seed).satisfaction >= SERVED

    low = high = first_rate or 150.0 * case.devices
    if is_served(low):
        while is_served(high := 1.2 * low):
            low = high
    else:
        while not is_served(low := high / 1.2):
            high = low
    while high > 1.05 * low:
        middle = (low + high) / 2
        low, high = (middle, high) if is_served(middle) else (low, middle)
    return low


def measure(case: Case, rate: float, options: argparse.Namespace) -> DecisionRow:
    """Measure a case at 0.9 of its capacity `rate`."""
    result = run(case, 0.9 * rate, options.seconds, options.seed)
    cost_us = result.cpu_ns / 1000 / max(1, result.served)
    print(f"  {case}: {cost_us:.1f} us", file=sys.stderr)
    return DecisionRow(
        case.scheduler,
        case.models,
        case.devices,
        case.pending,
        round(rate, 1),
        round(0.9 * rate, 1),
        result.served,
        round(result.satisfaction, 5),
        round(result.rows_a_batch, 2),
        round(cost_us, 1),
    )


def curves(options: argparse.Namespace, rate: float) -> Iterator[DecisionRow]:
    """Vary models, devices and pending requests, one at a time, from the default point."""
    for models in (100, 300, 1000, 3000, 10_000):
        case = Case(models=models)
        yield measure(case, find_capacity(case, options.seed, rate), options)
    for devices in (1, 3, 10, 50, 100):
        case = Case(devices=devices)
        yield measure(case, find_capacity(case, options.seed, rate * devices / Case().devices), options)
    for pending in (10, 100, 1000, 10_000, 100_000):
        yield measure(Case(pending=pending), rate, options)


def draw(rows: list[DecisionRow], path: Path) -> None:
    """Draw the cost against models, devices and pending requests, on logarithmic scales."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    default, figure = Case(), plt.figure(figsize=(11, 3.4), layout="constrained")
    for number, name in enumerate(("models", "devices", "pending")):
        axes = figure.add_subplot(1, 3, number + 1)
        others = [field for field in Case._fields if field != name]
        points = sorted(
            (getattr(row, name) or 1, row.us_per_served)
            for row in rows
            if all(getattr(row, field) == getattr(default, field) for field in others)
        )
        axes.plot(*zip(*points, strict=True), marker="o")
        axes.axhline(BAR_US, color="k", linestyle="--", linewidth=0.8)
        axes.set(xscale="log", xlabel=name, ylabel="us per served request", ylim=(0, None))
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=5, help="virtual time after a warm-up of 2 s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--curves", action="store_true", help="models 100..10,000, devices 1..100, pending 10..100,000")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="draw the curves into this file; needs matplotlib")
    parser.add_argument("--before", type=Path, help="another checkout, with an environment .venv, to measure in turn")
    parser.add_argument("--rounds", type=int, default=5, help="with --before")
    parser.add_argument("--rate", type=float, default=0, help="capacity in requests per second; default: searched")
    options = parser.parse_args()
    machine = report.describe_machine()
    report.print_machine(machine)
    if options.before:
        rate = options.rate or find_capacity(Case(), options.seed, FIRST_RATE)
        arguments = ("--seconds", str(options.seconds), "--seed", str(options.seed), "--rate", str(rate))
        bars = compare_with_before(__file__, options.before, options.rounds, arguments)
        print(report.markdown(report.BAR_COLUMNS, map(report.bar_row, bars)))
        return 0 if all(bar.holds for bar in bars) else 1
    rate = options.rate or find_capacity(Case(), options.seed, FIRST_RATE)
    rows = [measure(Case(scheduler=scheduler), rate, options) for scheduler in ("clockwork", "horologe")]
    if options.curves:
        rows += curves(options, rate)
    print(report.markdown(DecisionRow._fields, rows))
    cost_us = rows[0].us_per_served
    holds = cost_us <= BAR_US
    print(f"\n4,026 models, 20 devices, 0.9: {cost_us} us, wanted <= {BAR_US}: {'yes' if holds else 'NO'}")
    if options.json:
        report.save_json(options.json, {"machine": machine, "rows": [row._asdict() for row in rows]})
    if options.plot:
        draw(rows, options.plot)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
