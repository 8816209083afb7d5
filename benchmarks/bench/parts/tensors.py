"""Large tensors, and memory over time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.horologe_server import LOGS, make_repository
from bench.measurements import Load, throughput
from bench.report import Bar
from bench.server_metrics import MemoryWatch
from bench.systems import DEFAULT, NO_PROFILER, in_turn, start_systems
from bench.workload import ROOT, load_scenario

if TYPE_CHECKING:
    from bench.parts.bench_run import BenchRun


def measure_image(bench: BenchRun) -> list[Bar]:
    """Send 600 kB inputs through the SDK, 16 in flight."""
    bench.stop_shared()
    scenario = load_scenario("image")
    load = Load("image", scenario.model, "sdk", "16")
    repository = make_repository(LOGS / "image", [ROOT / "benchmarks/models" / scenario.model])
    with start_systems(bench.conditions, repository, 1, (DEFAULT, NO_PROFILER)) as systems:
        for turn in range(bench.effort.rounds):
            for system in in_turn(systems, turn):
                run = system.runs(scenario, "sdk").closed(16, bench.effort.seconds)
                bench.log.add(load, system.name, run)
    rate, ratio = bench.log.median(load, DEFAULT, throughput), bench.log.ratio(load, DEFAULT, NO_PROFILER, throughput)
    return [
        Bar("600 kB inputs through the SDK", rate, ">=", 300, "/s"),
        Bar("600 kB inputs through the SDK, of no-profiler's", ratio, ">=", 0.95, "x"),
    ]


def measure_memory(bench: BenchRun) -> list[Bar]:
    """Measure the slope of resident memory per process, at 1,000 requests per second with a full prediction cache."""
    bench.stop_shared()
    scenario, quick = load_scenario("noop"), bench.effort.quick
    warm_s, seconds = (10, 30) if quick else (60, 300)
    repository = make_repository(LOGS / "caching", [ROOT / "models/noop"])
    manifest = repository / "noop/1/model.toml"
    manifest.write_text(f'cache = true\ncache_ttl = "10min"\n{manifest.read_text()}')
    with start_systems(bench.conditions, repository, 1, (DEFAULT,)) as systems:
        runs = systems[DEFAULT].runs(scenario, "sdk")
        bench.log.add(Load("memory", "noop", "sdk", "64"), DEFAULT, runs.closed(64, warm_s))
        with MemoryWatch(systems[DEFAULT].server.server) as watch:
            bench.log.add(Load("memory", "noop", "sdk", "1000/s"), DEFAULT, runs.open(1000, seconds))
    slopes = watch.slopes()
    detail = "; ".join(f"{name}: {value:.2f}" for name, value in slopes.items())
    return [Bar("memory slope, the worst process", max(slopes.values()), "<=", 1, "MB/min", detail)]
