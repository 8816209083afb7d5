"""Clockwork's Fig. 7 (sections 6.3, 6.4): the tightest SLO of six devices, and isolation from best-effort clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.clock import ms
from horologe_experiments.clockwork.catalogue_models import CatalogueModel, catalogue_models
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.harness.runner import SimulationRuns
from horologe_sim.fast.fast_worker import FastClusterSettings
from horologe_sim.fast.ledger import IntervalCounts, Ledger
from horologe_sim.fast.traffic import BEST_EFFORT, Loop, Stream, poisson

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress

SATISFIED = 0.999
"""Share of requests within the SLO that counts as meeting a multiplier."""
ISOLATED_FROM = 11.4
"""Smallest multiplier of the bars on isolation."""
MAX_LOSS = 0.001
"""Satisfaction that latency-sensitive clients may lose to best-effort clients."""
MIN_IDLE_SHARE = 0.8
"""Part of the idle device time that best-effort clients must use."""
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
    cluster: FastClusterSettings

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
        runs = SimulationRuns(len(scene.models) * len(scene.rates) + len(scene.batch), cost, progress)
        rows: list[dict[str, Any]] = []
        for count in scene.models:
            for rate in scene.rates:
                rows += _run(
                    scene, variety, runs, seed, count, rate, BestEffortClients(0, 0), f"{count} models, {rate:g} r/s"
                )
        idle: dict[float, float] = {}
        for batch in scene.batch:
            label = f"{batch.models} best-effort clients of {batch.concurrency}"
            rate = scene.sensitive_models * scene.sensitive_rate
            curve = _run(scene, variety, runs, seed, scene.sensitive_models, rate, batch, label)
            idle = idle or {row["multiplier"]: scene.cluster.devices - row["exec_devices"] for row in curve}
            rows += [_add_idle_share(row, idle[row["multiplier"]], batch, variety) for row in curve]
        facts = {
            "multiplier": f"multiple of {scene.base_ms:g} ms; each step {scene.step_ns / 1e9:g} s",
            "what is left": "device time that is idle without best-effort clients, in batches of as many requests as "
            "a best-effort client has in flight",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(scene, rows), cost=cost)

    def draw(self, findings: Findings) -> Figure:
        """Draw satisfaction against the multiplier, and the isolation runs beside it."""
        from horologe_experiments.harness.plots import make_figure

        figure, (left, right, best_effort) = make_figure(1, 3)
        for run in dict.fromkeys(row["run"] for row in findings.rows):
            rows = [row for row in findings.rows if row["run"] == run]
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

    ledger = Ledger(["sensitive", "best effort"], count + batch.models, scene.step_ns, before * scene.step_ns)
    loops = [Loop(count + model, BEST_EFFORT, 1) for _ in range(batch.concurrency) for model in range(batch.models)]
    chunks = poisson(
        [Stream(lambda step: rates, scene.step_ns, slo_ns)],
        duration_ns,
        [seed, 3, count, int(rate)],
        min(scene.step_ns, ms(1000)),
    )
    models = variety.copies(count + batch.models)
    runs.simulate(label, scene.cluster, models, ledger, seed, duration_ns, chunks, loops)
    panels = ledger.panels[before : before + scene.steps]
    return [{"run": label, **_step_row(scene, step, panel)} for step, panel in enumerate(panels)]


def _step_row(scene: Scene, step: int, panel: IntervalCounts) -> dict[str, Any]:
    """Return what one step of the SLO gave."""
    sensitive, best_effort = panel.lines
    return {
        "multiplier": round(scene.multiplier(step), DECIMALS),
        "slo_ms": round(scene.base_ms * scene.multiplier(step), 2),
        "sent": sensitive.sent,
        "satisfaction": round(sensitive.satisfaction, 5),
        "late": sensitive.late,
        "timed_out": sensitive.timed_out,
        "p50_ms": sensitive.times.quantile_ms(0.5),
        "max_ms": round(sensitive.times.max_ns / 1e6, 3),
        "best_effort_rate": round(best_effort.ok / (scene.step_ns / 1e9), 1),
        "exec_devices": round(panel.exec_ns / scene.step_ns, 3),
    }


def _add_idle_share(
    row: dict[str, Any], idle: float, batch: BestEffortClients, variety: CatalogueModel
) -> dict[str, Any]:
    """Return a row of an isolation run with the rate that `idle` devices would allow, and the share of it used."""
    sizes = [size for size in variety.exec_ms if size <= batch.concurrency]
    best = max((1e3 * size / variety.exec_ms[size] for size in sizes), default=0.0) * idle
    return row | {"left_rate": round(best, 1), "of_left": round(row["best_effort_rate"] / best, 4) if best else None}


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
