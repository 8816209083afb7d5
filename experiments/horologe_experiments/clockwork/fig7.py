"""Clockwork's Fig. 7 (sections 6.3, 6.4): the tightest SLO of six devices, and isolation from best-effort clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.clock import ms
from horologe_common.wire import Infer
from horologe_experiments.clockwork.catalogue_models import CatalogueModel, catalogue_models
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.harness.experiment_world import BEST_EFFORT, Loop
from horologe_experiments.harness.interval_ledger import IntervalCounts, IntervalLedger
from horologe_experiments.harness.request_streams import PoissonStream, poisson
from horologe_experiments.harness.runner import SimulationRuns, with_scheduler
from horologe_sim.controller_only.controller_world import START_NS, ClusterSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_common.wire import Result
    from horologe_experiments.harness.experiment import Progress

SATISFIED = 0.999
"""Share of requests within the SLO that counts as meeting a multiplier."""
ISOLATED_FROM = 11.4
"""Smallest multiplier of the bars on isolation."""
MAX_LOSS = 0.001
"""Satisfaction that latency-sensitive clients may lose to best-effort clients."""
MIN_IDLE_SHARE = 0.8
"""Part of the device time without requests of latency-sensitive clients that best-effort clients must use."""
DECIMALS = 1
"""Decimals of multipliers in the rows."""


class BestEffortClients(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Best-effort clients: `models` models with `concurrency` requests in flight each."""

    models: int
    concurrency: int


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of fig7."""

    description: str
    model: str
    base_ms: float
    """SLO of multiplier 1."""
    factor: float
    steps: int
    step_ns: int
    warmup_ns: int
    """Warm-up before the first step, with its load."""
    models: tuple[int, ...]
    rates: tuple[float, ...]
    tightest: tuple[float, ...]
    """Multiplier to be met at each rate: the one that the paper met."""
    sensitive_models: int
    sensitive_rate: float
    """Rate of each latency-sensitive model in the isolation runs."""
    batch: tuple[BestEffortClients, ...]
    schedulers: tuple[str, ...]
    """The bars are for the first one."""
    cluster: ClusterSettings

    def multiplier(self, step: int) -> float:
        """Return the SLO multiplier of a step."""
        return self.factor ** max(0, step)


class Fig7:
    """Satisfaction by SLO multiplier, with and without best-effort clients."""

    name = "fig7"
    title = "How low can it go, and can it isolate? Six devices, ResNet-50"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        (variety,) = catalogue_models([scene.model])
        cost = Cost()
        simulations = len(scene.schedulers) * (len(scene.models) * len(scene.rates) + len(scene.batch))
        runs = SimulationRuns(simulations, cost, progress)
        rows: list[dict[str, Any]] = []
        for scheduler in scene.schedulers:
            cluster = with_scheduler(scene.cluster, scheduler)
            curves = _curves(msgspec.structs.replace(scene, cluster=cluster), variety, runs, seed)
            rows += [{"scheduler": scheduler} | row for row in curves]
        facts = {
            "multiplier": f"multiple of {scene.base_ms:g} ms; each step {scene.step_ns / 1e9:g} s",
            "what is left": "device time that latency-sensitive requests do not use in the same run, in batches of as "
            "many requests as a best-effort client has in flight: best-effort clients cannot get more",
        }
        ours = [row for row in rows if row["scheduler"] == scene.schedulers[0]]
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(scene, ours), cost=cost)

    def draw(self, findings: Findings) -> Figure:
        """Draw satisfaction against the multiplier, and the isolation runs beside it."""
        from horologe_experiments.harness.plots import make_figure

        figure, (left, right, best_effort) = make_figure(1, 3)
        ours = [row for row in findings.rows if row["scheduler"] == findings.rows[0]["scheduler"]]
        for run in dict.fromkeys(row["run"] for row in ours):
            rows = [row for row in ours if row["run"] == run]
            multipliers = [row["multiplier"] for row in rows]
            isolation = "best-effort" in run
            axes = right if isolation else left
            axes.plot(multipliers, [row["satisfaction"] for row in rows], marker=".", label=run)
            if isolation:
                best_effort.plot(multipliers, [row["best_effort_rate"] for row in rows], marker=".", label=run)
        for axes in (left, right, best_effort):
            axes.set(xscale="log", xlabel="SLO multiplier")
            axes.legend(fontsize=7)
        left.set(ylabel="satisfaction")
        right.set(ylabel="satisfaction, latency-sensitive")
        best_effort.set(ylabel="best effort (r/s)")
        return figure


class SensitiveTime:
    """Device time of latency-sensitive models by step of the SLO. Pass `record_result` as `watch`."""

    def __init__(self, models: frozenset[str], begin_ns: int, step_ns: int, steps: int) -> None:
        self.by_step_ns = [0] * steps
        self._models = models
        self._begin_ns = begin_ns
        self._step_ns = step_ns

    def record_result(self, device: Any, action: Any, result: Result, promised_ns: int) -> None:
        """Record the result of an INFER."""
        step = (result.end_ns - self._begin_ns) // self._step_ns
        if isinstance(action, Infer) and action.model in self._models and 0 <= step < len(self.by_step_ns):
            self.by_step_ns[step] += result.device_ns


def _curves(scene: Scene, variety: CatalogueModel, runs: SimulationRuns, seed: int) -> list[dict[str, Any]]:
    """Simulate all curves with the scheduler of `scene.cluster`."""
    rows: list[dict[str, Any]] = []
    for count in scene.models:
        for rate in scene.rates:
            label = f"{count} models, {rate:g} r/s"
            rows += _run(scene, variety, runs, seed, count, rate, BestEffortClients(0, 0), label)
    for batch in scene.batch:
        label = f"{batch.models} best-effort clients of {batch.concurrency}"
        rate = scene.sensitive_models * scene.sensitive_rate
        rows += _run(scene, variety, runs, seed, scene.sensitive_models, rate, batch, label)
    return rows


def _run(
    scene: Scene,
    variety: CatalogueModel,
    runs: SimulationRuns,
    seed: int,
    count: int,
    rate: float,
    batch: BestEffortClients,
    label: str,
) -> list[dict[str, Any]]:
    """Simulate one curve. Return a row per step of the SLO."""
    before = -(-scene.warmup_ns // scene.step_ns)
    duration_ns = (before + scene.steps) * scene.step_ns
    rates = np.concatenate([np.full(count, rate / count), np.zeros(batch.models)])

    def slo_ns(step: int) -> int:
        return ms(scene.base_ms * scene.multiplier(step - before))

    ledger = IntervalLedger(["sensitive", "best effort"], count + batch.models, scene.step_ns, before * scene.step_ns)
    loops = [Loop(count + model, BEST_EFFORT, 1) for _ in range(batch.concurrency) for model in range(batch.models)]
    chunks = poisson(
        [PoissonStream(lambda step: rates, scene.step_ns, slo_ns)],
        duration_ns,
        [seed, 3, count, int(rate)],
        min(scene.step_ns, ms(1000)),
    )
    models = variety.copies(count + batch.models)
    names = frozenset(model.report.spec.key for model in models[:count])
    used = SensitiveTime(names, START_NS + scene.cluster.settle_ns, scene.step_ns, before + scene.steps)
    runs.simulate(label, scene.cluster, models, ledger, seed, duration_ns, chunks, loops, used.record_result)
    rows = []
    for step, panel in enumerate(ledger.panels[before : before + scene.steps]):
        left_devices = scene.cluster.devices - used.by_step_ns[before + step] / scene.step_ns
        left_rate = _largest_rate(variety, batch.concurrency) * left_devices
        rows.append({"run": label} | _step_row(scene, step, panel, left_rate))
    return rows


def _step_row(scene: Scene, step: int, panel: IntervalCounts, left_rate: float) -> dict[str, Any]:
    """Return what one step of the SLO gave. `left_rate`: the rate that best-effort clients may have; 0 without."""
    sensitive, best_effort = panel.lines
    best_effort_rate = best_effort.ok / (scene.step_ns / 1e9)
    return {
        "multiplier": round(scene.multiplier(step), DECIMALS),
        "slo_ms": round(scene.base_ms * scene.multiplier(step), 2),
        "sent": sensitive.sent,
        "satisfaction": round(sensitive.satisfaction, 5),
        "late": sensitive.late,
        "timed_out": sensitive.lost,
        "p50_ms": sensitive.times.quantile_ms(0.5),
        "max_ms": round(sensitive.times.max_ns / 1e6, 3),
        "best_effort_rate": round(best_effort_rate, 1),
        "exec_devices": round(panel.exec_ns / scene.step_ns, 3),
        "left_rate": round(left_rate, 1),
        "of_left": round(best_effort_rate / left_rate, 4) if left_rate else None,
    }


def _largest_rate(variety: CatalogueModel, most: int) -> float:
    """Return the requests per second of a device in batches of at most `most`; 0 if `most` is 0."""
    return max((1e3 * size / took_ms for size, took_ms in variety.exec_ms.items() if size <= most), default=0.0)


def _bars(scene: Scene, rows: list[dict[str, Any]]) -> list[Bar]:
    bars = []
    curves: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        curves.setdefault(row["run"], []).append(row)
    for count in scene.models:
        for rate, wanted in zip(scene.rates, scene.tightest, strict=True):
            run = f"{count} models, {rate:g} r/s"
            bars.append(Bar(f"{run}: tightest multiplier met", _tightest(curves[run]), wanted, "at most"))
    alone, *others = [curve for run, curve in curves.items() if "best-effort" in run]
    for curve in others:
        wide = [(row, base) for row, base in zip(curve, alone, strict=True) if row["multiplier"] >= ISOLATED_FROM]
        loss = max((base["satisfaction"] - row["satisfaction"] for row, base in wide), default=1.0)
        used = min((row["of_left"] or 0.0 for row, _ in wide), default=0.0)
        run = curve[0]["run"]
        bars.append(Bar(f"{run}: satisfaction lost from {ISOLATED_FROM} up", round(loss, 5), MAX_LOSS, "at most"))
        bars.append(Bar(f"{run}: share of what is left, from {ISOLATED_FROM} up", used, MIN_IDLE_SHARE))
    return bars


def _tightest(curve: list[dict[str, Any]]) -> float:
    """Return the smallest multiplier from which every step is satisfied."""
    tightest = float("inf")
    for row in reversed(curve):
        if row["satisfaction"] < SATISFIED:
            break
        tightest = row["multiplier"]
    return tightest
