"""`horologe experiment batching`: Clipper's batch limits and delayed batches on models of this machine (section 4.3).

Execution times of batches are measured in the worker's runtimes. The controller's scheduler `clipper` then runs in the
simulator, on a device with these times, and on the services of this machine.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import s
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.harness.runner import SimulationRuns
from horologe_experiments.live.batch_times import BEYOND, BatchTimes, Effort, measure_batches, write_models
from horologe_experiments.live.batching_live import LiveRuns, run_live
from horologe_experiments.live.batching_runs import BatchingCase, simulate_case
from horologe_experiments.live.local_services import describe_machine
from horologe_sim.controller_only.controller_world import ClusterSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress

STRATEGIES = {"none": {}, "aimd": {}, "quantile": {"policy": {"quantile_regression": True}}}
"""Strategy -> settings of the controller. `none` runs batches of one row."""
PAPER_QPS = {"linear-svm": 30_000, "kernel-svm": 200}
"""Rows per second in section 4.3, two values of Fig. 4, for 28x28 images on another machine."""
PAPER_GAIN = 26.0
"""Gain of batching for the linear SVM, section 4.3.1."""
PAPER_DELAY_MS, PAPER_DELAY_GAIN = 2.0, 3.3
"""Delay and gain of scikit-learn's SVM, section 4.3.2. The Spark SVM gains nothing."""
OF_FIXED = 0.85
"""Least throughput of AIMD, as a part of the best fixed batch size's."""
LEAST_REQUESTS = 24
"""Least number of requests in the largest batch, because the limit changes in steps of one request."""
MOST_RATE = 20_000.0
"""Largest offered rate of one-row requests per second: messages and turns allow no more."""
ALONE_WARMUP_NS, ALONE_NS = s(0.5), s(2)
"""Shorter times for runs without batching, which have nothing to adapt."""
MEASURING, SIMULATING = 0.2, 0.5
"""Parts of the progress bar for the measurements and the simulations."""
LIVE_GAIN = 0.95
"""Least rate in time with AIMD on the services, of that without batches."""


class DelayedBatches(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Runs with delayed batches."""

    models: tuple[str, ...]
    delays_ms: tuple[float, ...]
    load: float
    """Part of the rate that one row at a time allows."""
    warmup_ns: int
    duration_ns: int


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of batching."""

    description: str
    onnx: tuple[str, ...]
    estimators: tuple[str, ...]
    slo_ns: int
    requests: int
    overload: float
    warmup_ns: int
    duration_ns: int
    effort: Effort
    delayed: DelayedBatches
    live: LiveRuns
    cluster: ClusterSettings

    @property
    def slo_ms(self) -> float:
        """Return the SLO in milliseconds."""
        return self.slo_ns / 1e6


class Batching:
    """Throughput and latency of batching strategies, and of delayed batches."""

    name = "batching"
    title = "Adaptive batch limits, and delayed batches"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`. Rows differ from run to run, because times are measured."""
        scene = load_scene(self.name, Scene, quick, changes)
        models = _measure(scene, lambda part, label: progress(MEASURING * part, label))
        cost = Cost()
        total = len(STRATEGIES) * len(models) + len(scene.delayed.models) * len(scene.delayed.delays_ms)
        runs = SimulationRuns(total, cost, lambda part, label: progress(MEASURING + SIMULATING * part, label))
        rows = [row for model in models.values() for row in _strategies(scene, model, seed, runs)]
        delays = [row for name in scene.delayed.models for row in _delays(scene, models[name], seed, runs)]
        begin = MEASURING + SIMULATING
        live = run_live(
            scene.live, models, scene.slo_ms, seed,
            lambda part, label: progress(begin + (1 - begin) * part, label),
        )  # fmt: skip
        series = {
            "Live, requests of one row": live,
            "Median time of a batch, ms (Fig. 3)": _profiles(list(models.values())),
            "Delayed batches (Fig. 5)": delays,
            "profiles": {model.name: list(model.p50_ms.items()) for model in models.values()},
        }
        bars = [*_bars(scene, rows, delays), *_live_bars(live)]
        return Findings(self.name, self.title, seed, quick, _facts(scene, models), rows, bars, series, cost)

    def draw(self, findings: Findings) -> Figure:
        """Draw Fig. 3, 4 and 5."""
        from horologe_experiments.live.batching_figure import draw_batching

        return draw_batching(findings)


def _measure(scene: Scene, progress: Progress) -> dict[str, BatchTimes]:
    models: dict[str, BatchTimes] = {}
    with tempfile.TemporaryDirectory() as folder:
        folders = write_models(Path(folder), scene.onnx, scene.estimators)
        for number, (name, (kind, version)) in enumerate(folders.items()):
            progress(number / len(folders), f"measuring {name}")
            models[name] = measure_batches(name, kind, version, scene.slo_ms, scene.effort)
    return models


def _strategies(scene: Scene, model: BatchTimes, seed: int, runs: SimulationRuns) -> list[dict[str, Any]]:
    """Simulate no batching, AIMD and quantile regression at a load that saturates the device. Return their rows."""
    most = model.most_rows(scene.slo_ms)
    fixed = model.rate(most)
    best = max(model.rate(size) for size in (*model.p50_ms, most) if size <= most)
    unit = max(1, math.ceil(min(best * scene.slo_ns / 1e9 / scene.requests, most / LEAST_REQUESTS)))
    largest = min(round(BEYOND * most / unit), max(model.p50_ms) // unit)
    alone = min(scene.overload * model.rate(1), MOST_RATE)
    runs_by_strategy = {}
    for name, settings in STRATEGIES.items():
        case = BatchingCase(
            f"{model.name}, {name}",
            model,
            unit,
            largest,
            scene.overload * best / unit,
            scene.warmup_ns,
            scene.duration_ns,
            settings,
        )
        if name == "none":
            case = case._replace(unit=1, largest=1, rate=alone, warmup_ns=ALONE_WARMUP_NS, duration_ns=ALONE_NS)
        runs_by_strategy[name] = simulate_case(case, scene.cluster, scene.slo_ns, seed, runs)
    shared = {"model": model.name, "runtime": model.runtime, "largest": most}
    return [
        {
            **shared,
            "batching": name,
            "rows": round(run.batch_rows, 1),
            "throughput": round(run.rows_per_s),
            "gain": round(run.rows_per_s / runs_by_strategy["none"].rows_per_s, 2),
            "of_fixed": round(run.rows_per_s / fixed, 4),
            "of_best": round(run.rows_per_s / best, 4),
            "batch_p99_ms": round(run.batch_p99_ms, 2),
            "step_ms": round(model.batch_ms(most + unit), 2),
            "request_p99_ms": run.request_p99_ms,
            "paper": PAPER_QPS.get(model.name) if name == "aimd" else None,
        }
        for name, run in runs_by_strategy.items()
    ]


def _delays(scene: Scene, model: BatchTimes, seed: int, runs: SimulationRuns) -> list[dict[str, Any]]:
    """Simulate delayed batches at a load near the limit of one row at a time. Return a row for each delay."""
    delayed = scene.delayed
    rate = min(delayed.load * model.rate(1), MOST_RATE)
    largest = max(2, min(scene.requests, model.most_rows(scene.slo_ms)))
    rows, first = [], 0.0
    for delay_ms in delayed.delays_ms:
        case = BatchingCase(
            f"{model.name}, delay {delay_ms:g} ms",
            model,
            1,
            largest,
            rate,
            delayed.warmup_ns,
            delayed.duration_ns,
            {"policy": {"delay_ns": round(delay_ms * 1e6)}},
        )
        run = simulate_case(case, scene.cluster, scene.slo_ns, seed, runs)
        efficiency = run.rows_per_s / run.busy
        first = first or efficiency
        rows.append(
            {
                "model": model.name,
                "delay_ms": delay_ms,
                "offered": round(rate),
                "throughput": round(run.rows_per_s),
                "rows": round(run.batch_rows, 2),
                "busy": round(run.busy, 4),
                "per_busy_second": round(efficiency),
                "gain": round(efficiency / first, 2),
                "p50_ms": run.request_p50_ms,
                "p99_ms": run.request_p99_ms,
            }
        )
    return rows


def _profiles(models: Sequence[BatchTimes]) -> list[dict[str, Any]]:
    """Return a row for each power of two."""
    sizes = sorted({size for model in models for size in model.p50_ms if size & (size - 1) == 0})
    return [
        {"batch": size}
        | {model.name: round(model.p50_ms[size], 3) if size in model.p50_ms else None for model in models}
        for size in sizes
    ]


def _facts(scene: Scene, models: Mapping[str, BatchTimes]) -> dict[str, str]:
    most = {name: model.most_rows(scene.slo_ms) for name, model in models.items()}
    svms = [most[name] for name in PAPER_QPS if name in most]
    ratio = f"; the linear SVM has {svms[0] / svms[-1]:.0f} times as many as the kernel SVM (paper: 241)"
    return {
        "machine": f"{describe_machine()}; each python model runs scikit-learn in its own process, with one thread",
        "largest": f"rows of a batch that takes {scene.slo_ms:g} ms, as measured{ratio if len(svms) > 1 else ''}",
        "load": f"{scene.overload:g} times what the best fixed batch serves, SLO {scene.slo_ms:g} ms, of which the "
        f"scheduler reserves {scene.cluster.controller.margin_ns / 1e6:g} ms for the return latency",
        "of_fixed": "throughput / that of a device that runs only batches of `largest` rows; of_best: of the best "
        "fixed size up to `largest`",
        "requests": f"the device serves at most {scene.requests} of them in {scene.slo_ms:g} ms: requests to a faster "
        "model have several rows (but one row with batching `none` and in Fig. 5)",
        "times": "processor time of the worker's and the model's process together, in the fastest of "
        f"{scene.effort.rounds} rounds; no-op shows the cost of a process without a model",
        "batch_p99_ms": "execution of a batch, which Clipper compares with the SLO; a request (request_p99_ms) "
        "also waits for the batch before it",
        "step_ms": "time of a batch with one request more than `largest`: additive increase finds the limit by "
        "exceeding it",
        "noise": "the measured noise of Clockwork's repository, as in the other experiments",
    }


def _live_bars(rows: list[dict[str, Any]]) -> list[Bar]:
    """Return a bar for each model and load: the rate in time with AIMD, of that without batches (at least 1/s)."""
    in_time = {(row["model"], row["load"], row["batching"]): row["in_time"] for row in rows}
    return [
        Bar(
            f"live, {name} at {load:g}: in time with aimd / without batches",
            round(rate / max(1.0, in_time[name, load, "none"]), 3),
            LIVE_GAIN,
        )
        for (name, load, batching), rate in in_time.items()
        if batching == "aimd"
    ]


def _bars(scene: Scene, rows: list[dict[str, Any]], delays: list[dict[str, Any]]) -> list[Bar]:
    bars = []
    for name in ("aimd", "quantile"):
        least = min(row["of_fixed"] for row in rows if row["batching"] == name)
        bars.append(Bar(f"{name}: throughput / largest fixed batch, minimum", least, OF_FIXED))
    beyond = max(row["batch_p99_ms"] / max(scene.slo_ms, row["step_ms"]) for row in rows if row["batching"] == "aimd")
    bars.append(Bar("aimd: p99 of a batch / one request beyond the SLO, maximum", round(beyond, 4), 1.0, "at most"))
    p99_ms = max(row["batch_p99_ms"] for row in rows if row["batching"] == "quantile")
    bars.append(Bar("quantile: p99 of a batch in ms, maximum", p99_ms, scene.slo_ms, "at most"))
    gains = [row["gain"] for row in rows if (row["model"], row["batching"]) == ("linear-svm", "aimd")]
    bars += [Bar("linear-svm: gain of aimd", gain, PAPER_GAIN) for gain in gains]
    for row in delays:
        if (row["model"], row["delay_ms"]) == ("linear-svm", PAPER_DELAY_MS):
            bars.append(Bar("linear-svm: gain of a delay of 2 ms", row["gain"], PAPER_DELAY_GAIN))
            bars.append(Bar("linear-svm: p99 at this delay in ms", row["p99_ms"], scene.slo_ms, "at most"))
    return bars
