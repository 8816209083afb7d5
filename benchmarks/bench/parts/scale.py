"""Many models on too few pages, and many workers on few cores."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import numpy as np
import uvloop

from bench.horologe_server import LOGS
from bench.measurements import Load, throughput
from bench.report import Bar
from bench.server_metrics import sum_by_label
from bench.systems import BEFORE, DEFAULT, in_turn, start_systems
from bench.workload import ROOT, load_scenario
from horologe import AsyncClient
from horologe_load.load_loops import closed_loop
from horologe_load.samples import Samples, no_garbage_collection, summarize
from horologe_load.targets import ModelInput, SdkTarget

if TYPE_CHECKING:
    from pathlib import Path

    from bench.horologe_server import ProcessTimes, RunningHorologe
    from bench.parts.bench_run import BenchRun
    from horologe_load.samples import LoadSummary

COUNTS = (10, 100, 1000)
IN_FLIGHT = 64
PAGES = "1GiB"
"""64 pages of 16 MiB: of 100 models, each with a page, 36 are not resident."""
ROTATION_GAIN = 4.0
LOAD_CPU_US = 300.0
WORKERS, RATE = 8, 400.0


def measure_rotation(bench: BenchRun) -> list[Bar]:
    """Send 64 requests in flight to 10, 100 and 1,000 models in rotation; their weights fit on 64 pages at a time."""
    bench.stop_shared()
    repository = _copy_models(LOGS / "rotation", max(COUNTS))
    first = [f"m{number:04d}" for number in range(COUNTS[0])]
    names, pages = (DEFAULT, BEFORE), (f"worker.pages_bytes={PAGES}",)
    costs: dict[tuple[str, int], list[dict[str, float]]] = {}
    with start_systems(bench.conditions, repository, 1, names, first, pages) as systems:
        for turn in range(bench.effort.rounds):
            for count in COUNTS:
                for system in in_turn(systems, turn):
                    rotate(system.server, count, 0.5)
                    run, cost = rotate(system.server, count, 2 * bench.effort.seconds)
                    bench.log.add(Load("rotation", "noop", "sdk", f"{count} models"), system.name, run)
                    costs.setdefault((system.name, count), []).append(cost)
        sides = list(systems)
    return [bar for name in sides for bar in _rotation_bars(bench, name, costs)]


def rotate(server: RunningHorologe, count: int, seconds: float) -> tuple[LoadSummary, dict[str, float]]:
    """Keep 64 requests in flight to `count` models in turn.

    Return the summary, and per request: `loads`, and microseconds of CPU time by process.
    """
    samples, rows = Samples(), np.ones((1, 16), np.float32)

    async def run() -> float:
        async with AsyncClient(server.sdk) as client:
            target = SdkTarget(client, lambda index: ModelInput(f"m{index % count:04d}", rows), 0)
            return await closed_loop(target, samples, IN_FLIGHT, seconds)

    loads, before = _loads(server), server.cpu_times()
    with no_garbage_collection():
        summary = summarize(samples, uvloop.run(run()))
    after = server.cpu_times()
    cost = {name: 1e6 * (times.total_s - before[name].total_s) for name, times in after.items() if name in before}
    cost["loads"] = _loads(server) - loads
    return summary, {name: value / max(1, summary.ok) for name, value in cost.items()}


def _loads(server: RunningHorologe) -> float:
    return sum_by_label(server.metric_pages(), "horologe_actions_total", "action").get("load", 0.0)


def _rotation_bars(bench: BenchRun, name: str, costs: dict[tuple[str, int], list[dict[str, float]]]) -> list[Bar]:
    """Return rates and CPU time by number of models. Only the default has limits."""
    bars, ours = [], name == DEFAULT
    resident = _medians(costs[name, COUNTS[0]])
    for count in COUNTS:
        load = Load("rotation", "noop", "sdk", f"{count} models")
        rate, cost = bench.log.median(load, name, throughput), _medians(costs[name, count])
        detail = ", ".join(
            f"{part} {value:.2f}" if part == "loads" else f"{part} {value:.0f} us" for part, value in cost.items()
        )
        bars.append(Bar(f"{name}: {count} models in rotation", rate, unit="/s", detail=f"per request: {detail}"))
        if count == max(COUNTS):
            for process in ("edge", "worker-0"):
                extra = cost.get(process, 0.0) - resident.get(process, 0.0)
                per_load = extra / cost["loads"] if cost["loads"] else float("nan")
                text = f"{name}: CPU of {process} per LOAD"
                bars.append(
                    Bar(text, per_load, "<=" if ours else "", LOAD_CPU_US, "us", "above that of a resident model")
                )
            ratio = bench.log.ratio(load, DEFAULT, BEFORE, throughput)
            if ours and bench.conditions.baseline:
                bars.append(Bar(f"{count} models in rotation, of before", ratio, ">=", ROTATION_GAIN, "x"))
    return bars


def _medians(costs: list[dict[str, float]]) -> dict[str, float]:
    return {name: float(np.median([cost[name] for cost in costs])) for name in costs[0]}


def _copy_models(folder: Path, count: int) -> Path:
    """Copy the no-op model `count` times. Return the repository."""
    shutil.rmtree(folder, ignore_errors=True)
    for number in range(count):
        shutil.copytree(ROOT / "models/noop", folder / f"m{number:04d}")
    return folder


def measure_emulated(bench: BenchRun) -> list[Bar]:
    """Send 400 requests per second to eight workers with emulated devices, whose execution is a wait."""
    bench.stop_shared()
    scenario = load_scenario("emulated")
    repository, bars = ROOT / "benchmarks/models", []
    with start_systems(bench.conditions, repository, WORKERS, (DEFAULT, BEFORE), (scenario.model,)) as systems:
        for turn in range(bench.effort.rounds):
            for system in in_turn(systems, turn):
                failed, before = _failures(system.server), system.server.cpu_times()
                run = system.runs(scenario, "sdk").open(RATE, 5 * bench.effort.seconds, seed=turn + 1)
                bench.log.add(Load("emulated", scenario.model, "sdk", f"{RATE:g}/s"), system.name, run)
                after = system.server.cpu_times()
                lost = _failures(system.server).get("LOST", 0) - failed.get("LOST", 0)
                bars += _emulated_bars(
                    system.name, run, max(lost, run.failed + run.unanswered), _kernel_s(before, after)
                )
    return bars


def _emulated_bars(name: str, run: LoadSummary, lost: float, kernel_s: float) -> list[Bar]:
    ours, sent = name == DEFAULT, max(1, run.sent)
    counts = {"OK in time": run.in_time, "REFUSED": run.refused, "LATE": run.late, "LOST": lost}
    shares = ", ".join(f"{status} {count / sent:.2%}" for status, count in counts.items())
    return [
        Bar(f"{name}: 8 emulated workers at 400/s, OK", run.attained, ">=" if ours else "", 0.99, "", shares),
        Bar(f"{name}: 8 emulated workers at 400/s, LOST", lost, "<=" if ours else "", 0, ""),
        Bar(f"{name}: kernel time of all processes per request", 1e6 * kernel_s / sent, unit="us"),
    ]


def _kernel_s(before: dict[str, ProcessTimes], after: dict[str, ProcessTimes]) -> float:
    return sum(times.kernel_s - before[name].kernel_s for name, times in after.items() if name in before)


def _failures(server: RunningHorologe) -> dict[str, float]:
    return sum_by_label(server.metric_pages(), "nv_inference_request_failure", "reason")


def measure_start(bench: BenchRun) -> list[Bar]:
    """Measure start errors of EXEC on an emulated device at 500 requests per second."""
    bench.stop_shared()
    scenario = load_scenario("emulated")
    with start_systems(bench.conditions, ROOT / "benchmarks/models", 1, (DEFAULT,), (scenario.model,)) as systems:
        system = systems[DEFAULT]
        before = system.server.start_errors()
        run = system.runs(scenario, "sdk").open(500, 10 * bench.effort.seconds)
        bench.log.add(Load("start", scenario.model, "sdk", "500/s"), DEFAULT, run)
        errors = system.server.start_errors().since(before)
    p50, p99, p999 = (errors.quantile(q) * 1e6 for q in (0.5, 0.99, 0.999))
    detail = f"p50 <= {p50:.0f}, p99.9 <= {p999:.0f} us of {errors.total:.0f}; {run.attained:.2%} in time"
    return [Bar("start error p99 at 500 requests/s", p99, "<=", 500, "us", detail)]
