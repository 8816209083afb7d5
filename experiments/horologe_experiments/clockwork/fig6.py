"""Clockwork's Fig. 6 (section 6.2): thousands of models on one device. The bottleneck moves from EXEC to the LOAD lane.

The Major workload sends 1,000 r/s to a set of models that grows to 3,600. Minor sends 200 r/s to one model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_experiments.clockwork.catalogue_models import catalogue_models
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.harness.runner import SimulationRuns
from horologe_sim.fast.fast_worker import FastClusterSettings
from horologe_sim.fast.ledger import IntervalCounts, Ledger
from horologe_sim.fast.traffic import Stream, poisson

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from horologe_experiments.harness.experiment import Progress

PAPER_SHIFT_MINUTE, PAPER_FULL_MINUTE = 20, 50
"""Section 6.2: PCIe is the bottleneck from about t = 20. The bar on Major's goodput counts from t = 50."""


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
    cluster: FastClusterSettings


class Fig6:
    """Goodput, latency and utilisation by minute."""

    name = "fig6"
    title = "Does it scale up? 3,601 ResNet-50 on one device"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        (variety,) = catalogue_models([scene.model])
        cost = Cost()
        step_ns = scene.minute_ns // 60
        total_ns = (scene.minutes_before + scene.minutes) * scene.minute_ns

        def rates(step: int) -> NDArray[np.float64]:
            active = min(scene.models, (step - 60 * scene.minutes_before) * scene.models // (60 * scene.minutes))
            major = np.zeros(scene.models + 1)
            if step >= 60 * scene.minutes_before:
                major[: max(1, active)] = scene.major_rate / max(1, active)
            return major

        minor = np.zeros(scene.models + 1)
        minor[-1] = scene.minor_rate
        slo = [lambda step: scene.slo_ns] * 2
        streams = [Stream(rates, step_ns, slo[0], 0), Stream(lambda step: minor, step_ns, slo[1], 1)]
        ledger = Ledger(["major", "minor"], scene.models + 1, scene.minute_ns)
        chunks = poisson(streams, total_ns, [seed, 3], step_ns)
        models = variety.copies(scene.models + 1)
        SimulationRuns(1, cost, progress).simulate(self.name, scene.cluster, models, ledger, seed, total_ns, chunks)
        rows = [_row(scene, ledger, minute) for minute in range(scene.minutes_before + scene.minutes)]
        facts = {
            "PCIe bound": f"{1e3 / variety.load_ms:.0f} LOADs a second, one for each cold request, and the requests "
            "whose model was loaded when they arrived",
            "paper": "Minor back to 200 r/s and 20 ms from t = 20 on; longest latency 100 ms; 201 models at t = 3.5",
        }
        bars = _bars(rows, scene, 1e3 / variety.load_ms)
        return Findings(self.name, self.title, seed, quick, facts, rows, bars, cost=cost)

    def draw(self, findings: Findings) -> Figure:
        """Draw goodput, latency, cold starts and utilisation against time, as in the paper."""
        from horologe_experiments.harness.plots import make_figure

        figure, (goodput, latency, cold, busy) = make_figure(2, 2, sharex=True)
        rows = findings.rows
        minutes = [row["minute"] for row in rows]
        for group in ("major", "minor"):
            goodput.plot(minutes, [row[f"{group}_goodput"] for row in rows], label=group)
            latency.plot(minutes, [row[f"{group}_p50_ms"] for row in rows], label=f"{group}, median")
        latency.plot(minutes, [row["max_ms"] for row in rows], "k:", label="longest")
        cold.plot(minutes, [row["major_cold"] for row in rows], label="major")
        busy.plot(minutes, [row["exec_busy"] for row in rows], label="EXEC")
        busy.plot(minutes, [row["load_busy"] for row in rows], label="LOAD (PCIe)")
        goodput.axvline(PAPER_SHIFT_MINUTE, color="grey", lw=0.8)
        labels = ("goodput (r/s)", "latency (ms)", "cold share", "busy")
        for axes, label in zip((goodput, latency, cold, busy), labels, strict=True):
            axes.set(xlabel="minute", ylabel=label, ylim=(0, None))
            axes.legend()
        return figure


def _row(scene: Scene, ledger: Ledger, number: int) -> dict[str, Any]:
    panel: IntervalCounts = ledger.panels[number]
    major, minor = panel.lines
    seconds = scene.minute_ns / 1e9
    return {
        "minute": number - scene.minutes_before,
        "major_offered": round(major.sent / seconds, 1),
        "major_goodput": round(major.ok / seconds, 1),
        "minor_offered": round(minor.sent / seconds, 1),
        "minor_goodput": round(minor.ok / seconds, 1),
        "major_cold": round(major.cold / max(1, major.sent), 4),
        "minor_cold": round(minor.cold / max(1, minor.sent), 4),
        "major_p50_ms": major.times.quantile_ms(0.5),
        "minor_p50_ms": minor.times.quantile_ms(0.5),
        "max_ms": round(max(major.times.max_ns, minor.times.max_ns) / 1e6, 3),
        "late": major.late + minor.late,
        "timed_out": major.timed_out + minor.timed_out,
        "exec_busy": round(panel.exec_ns / scene.minute_ns, 4),
        "load_busy": round(panel.load_ns / scene.minute_ns, 4),
    }


def _bars(rows: list[dict[str, Any]], scene: Scene, loads: float) -> list[Bar]:
    full = [row for row in rows if row["minute"] >= PAPER_FULL_MINUTE]
    shifted = [row for row in rows if row["minute"] >= PAPER_SHIFT_MINUTE]
    minor = sum(row["minor_goodput"] for row in shifted) / max(1.0, sum(row["minor_offered"] for row in shifted))
    late = sum(row["late"] + row["timed_out"] for row in rows)
    sent = sum(row["major_offered"] + row["minor_offered"] for row in rows) * scene.minute_ns / 1e9
    bound = sum(loads + row["major_offered"] * (1 - row["major_cold"]) for row in full)
    major = sum(row["major_goodput"] for row in full) / max(1.0, bound)
    return [
        Bar("share answered after the SLO or never", round(late / max(1.0, sent), 7), MOST_LATE, "at most"),
        Bar("Minor's goodput / offered from t = 20 on", round(minor, 4), 0.99),
        Bar("Major's goodput / PCIe bound from t = 50 on", round(major, 4), 0.95),
    ]
