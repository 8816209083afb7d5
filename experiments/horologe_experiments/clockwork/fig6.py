"""Clockwork's Fig. 6 (section 6.2): thousands of models on one device. The bottleneck moves from EXEC to the LOAD lane.

The Major workload sends 1,000 r/s to a set of n models that grows to 3,600. Minor sends 200 r/s to one model.

Claim. If the device holds h models of Major, a scheduler that does not know future arrivals serves at most

    1,000 h / n + 1 / LOAD + 1,000 (1 - exp(-1,000 W / n)),    W = SLO - LOAD - EXEC

requests of Major per second on average. LOAD is the mean time of a LOAD, in W the least; EXEC is the least time of a
batch of one. Proof. A request that is served either finds its model loaded or being loaded
when it arrives, or waits for a LOAD that starts later. Which models are loaded is independent of the next arrival, and
arrivals are Poisson and equal by model, so at most h / n of them find theirs (the first term). Of the requests that
wait for one LOAD and are served, one is the first; there is one LOAD at a time (the second term). The LOAD must begin
at most W after the first has arrived, else that is late. So each other one has arrived within W after another one for
the same model: this is so for at most the third term's part of all requests. []
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_experiments.clockwork.catalogue_models import catalogue_models
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.harness.interval_ledger import IntervalCounts, IntervalLedger
from horologe_experiments.harness.request_streams import PoissonStream, poisson
from horologe_experiments.harness.runner import SimulationRuns
from horologe_sim.controller_only.controller_world import ClusterSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from horologe_experiments.clockwork.catalogue_models import CatalogueModel
    from horologe_experiments.harness.experiment import Progress

PAPER_SHIFT_MINUTE, PAPER_FULL_MINUTE = 20, 50
"""Section 6.2: PCIe is the bottleneck from about t = 20. The bar on Major's goodput counts from t = 50."""
EMPTY = "starts empty"
MOST_LATE = 1e-4
"""One EXEC in 100,000 takes 20 ms longer (`engine/noise.py`), with up to 16 requests, and delays those behind it."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of fig6."""

    description: str
    model: str
    models: int
    """Models of the Major workload."""
    major_rate: float
    minor_rate: float
    slo_ns: int
    minutes_before: int
    """Minutes with the Minor workload alone."""
    minutes: int
    """Minutes until all models are active."""
    minute_ns: int
    """Length of a minute of the figure. In a quick run minutes are shorter, so models are activated faster."""
    schedulers: tuple[str, ...]
    """The bars are for the first one."""
    starts_empty: tuple[str, ...]
    """Schedulers that also run without `controller.preload`: the page cache is empty at the start, as in the paper."""
    cluster: ClusterSettings

    def active(self, step: int) -> int:
        """Return how many models of Major are active in a second of the figure; 0 before its first minute."""
        seconds = step - 60 * self.minutes_before
        return min(self.models, max(1, seconds * self.models // (60 * self.minutes))) if seconds >= 0 else 0


class Fig6:
    """Goodput, latency and utilisation by minute."""

    name = "fig6"
    title = "Does it scale up? 3,601 ResNet-50 on one device"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        (variety,) = catalogue_models([scene.model])
        cost = Cost()
        sides = [(scheduler, True) for scheduler in scene.schedulers] + [(name, False) for name in scene.starts_empty]
        runs = SimulationRuns(len(sides), cost, progress)
        rows = [row for side in sides for row in _simulate(scene, *side, variety, runs, seed)]
        facts = {
            "bound": "for schedulers that do not know future arrivals: one request for each LOAD, those that arrive "
            "after another one for the same model while that can still be loaded and run in time, and those whose "
            "model can be loaded already",
            EMPTY: "without controller.preload; the rows above it have the shipped defaults",
            "paper": "Minor back to 200 r/s and 20 ms from t = 20 on; longest latency 100 ms; 201 models at t = 3.5",
        }
        ours = [row for row in rows if row["scheduler"] == scene.schedulers[0]]
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(ours), cost=cost)

    def draw(self, findings: Findings) -> Figure:
        """Draw goodput, latency, cold starts and utilisation against time, as in the paper."""
        from horologe_experiments.harness.plots import make_figure

        figure, (goodput, latency, cold, busy) = make_figure(2, 2, sharex=True)
        rows = [row for row in findings.rows if row["scheduler"] == findings.rows[0]["scheduler"]]
        minutes = [row["minute"] for row in rows]
        for group in ("major", "minor"):
            goodput.plot(minutes, [row[f"{group}_goodput"] for row in rows], label=group)
            latency.plot(minutes, [row[f"{group}_p50_ms"] for row in rows], label=f"{group}, median")
        latency.plot(minutes, [row["max_ms"] for row in rows], "k:", label="longest")
        cold.plot(minutes, [row["major_cold"] for row in rows], label="major")
        busy.plot(minutes, [row["exec_busy"] for row in rows], label="EXEC")
        busy.plot(minutes, [row["load_busy"] for row in rows], label="LOAD (PCIe)")
        goodput.plot(minutes, [row["major_bound"] for row in rows], "k--", lw=0.8, label="major, bound")
        goodput.axvline(PAPER_SHIFT_MINUTE, color="grey", lw=0.8)
        labels = ("goodput (r/s)", "latency (ms)", "cold share", "busy")
        for axes, label in zip((goodput, latency, cold, busy), labels, strict=True):
            axes.set(xlabel="minute", ylabel=label, ylim=(0, None))
            axes.legend()
        return figure


def _simulate(
    scene: Scene, scheduler: str, preload: bool, variety: CatalogueModel, runs: SimulationRuns, seed: int
) -> list[dict[str, Any]]:
    """Simulate the scene with one scheduler. Return a row per minute."""
    controller = msgspec.structs.replace(scene.cluster.controller.with_scheduler(scheduler), preload=preload)
    cluster = msgspec.structs.replace(scene.cluster, controller=controller)
    step_ns = scene.minute_ns // 60
    total_ns = (scene.minutes_before + scene.minutes) * scene.minute_ns

    def rates(step: int) -> NDArray[np.float64]:
        major = np.zeros(scene.models + 1)
        if active := scene.active(step):
            major[:active] = scene.major_rate / active
        return major

    minor = np.zeros(scene.models + 1)
    minor[-1] = scene.minor_rate
    slo = [lambda step: scene.slo_ns] * 2
    streams = [PoissonStream(rates, step_ns, slo[0], 0), PoissonStream(lambda step: minor, step_ns, slo[1], 1)]
    ledger = IntervalLedger(["major", "minor"], scene.models + 1, scene.minute_ns)
    chunks = poisson(streams, total_ns, [seed, 3], step_ns)
    models = variety.copies(scene.models + 1)
    name = scheduler if preload else f"{scheduler}, {EMPTY}"
    runs.simulate(name, cluster, models, ledger, seed, total_ns, chunks)
    held = int(cluster.pages // models[0].report.spec.pages) - 1  # one is Minor's
    minutes = range(scene.minutes_before + scene.minutes)
    return [{"scheduler": name} | _row(scene, ledger, minute, held, variety) for minute in minutes]


def bound_rate(rate: float, active: int, held: int, load_s: float, wait_s: float) -> float:
    """Return the bound of this module in requests per second, at most `rate`. `active`: models, n; `wait_s`: W."""
    following = rate * -math.expm1(-rate * wait_s / active)
    return min(rate, rate * held / active + 1 / load_s + following)


def _bounds(scene: Scene, actives: list[int], held: int, variety: CatalogueModel) -> list[float]:
    """Return the bound for each number of active models."""
    noise, load_s = scene.cluster.noise, variety.load_ms / 1e3
    least_s = noise.least_factor("load") * load_s + noise.least_factor() * min(variety.exec_ms.values()) / 1e3
    return [bound_rate(scene.major_rate, active, held, load_s, scene.slo_ns / 1e9 - least_s) for active in actives]


def _row(scene: Scene, ledger: IntervalLedger, number: int, held: int, variety: CatalogueModel) -> dict[str, Any]:
    panel: IntervalCounts = ledger.panels[number]
    major, minor = panel.lines
    seconds = scene.minute_ns / 1e9
    active = [count for count in map(scene.active, range(60 * number, 60 * number + 60)) if count]
    bounds = _bounds(scene, active, held, variety)
    return {
        "minute": number - scene.minutes_before,
        "major_offered": round(major.sent / seconds, 1),
        "major_goodput": round(major.ok / seconds, 1),
        "major_bound": round(sum(bounds) / len(bounds), 1) if bounds else 0.0,
        "minor_offered": round(minor.sent / seconds, 1),
        "minor_goodput": round(minor.ok / seconds, 1),
        "major_cold": round(major.cold / max(1, major.sent), 4),
        "minor_cold": round(minor.cold / max(1, minor.sent), 4),
        "late": major.late + minor.late,
        "timed_out": major.lost + minor.lost,
        "answered": sum(line.answered for line in panel.lines),
        "major_p50_ms": major.times.quantile_ms(0.5),
        "minor_p50_ms": minor.times.quantile_ms(0.5),
        "max_ms": round(max(major.times.max_ns, minor.times.max_ns) / 1e6, 3),
        "exec_busy": round(panel.exec_ns / scene.minute_ns, 4),
        "load_busy": round(panel.load_ns / scene.minute_ns, 4),
    }


def _bars(rows: list[dict[str, Any]]) -> list[Bar]:
    full = [row for row in rows if row["minute"] >= PAPER_FULL_MINUTE]
    shifted = [row for row in rows if row["minute"] >= PAPER_SHIFT_MINUTE]
    minor = sum(row["minor_goodput"] for row in shifted) / max(1.0, sum(row["minor_offered"] for row in shifted))
    major = sum(row["major_goodput"] for row in full) / max(1.0, sum(row["major_bound"] for row in full))
    late = sum(row["late"] + row["timed_out"] for row in rows)
    answered = sum(row["answered"] for row in rows)
    return [
        Bar("answers after their SLO or never / answers", round(late / max(1, answered), 7), MOST_LATE, "at most"),
        Bar("Minor's goodput / offered from t = 20 on", round(minor, 4), 0.99),
        Bar("Major's goodput / bound from t = 50 on", round(major, 4), 0.95),
    ]
