"""ORLOJ's Fig. 13 and 14: finish rates by anticipated delay b, and by the P99 of execution times."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.clock import us
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.orloj.cases import all_cases
from horologe_experiments.orloj.critical import critical_rates
from horologe_experiments.orloj.workload_replay import HISTORY, SchedulerKnowledge, finish_rate
from horologe_experiments.orloj.workloads import build_case

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.orloj.cases import Case

CASE = "three-modal"
LOAD = 0.8
SPREAD = 0.05
"""Largest allowed difference of the finish rates of one SLO over all b ("stable", section 5.6)."""
WAY_NS = us(100)
"""Time of a message and of a turn of the controller, which matters for short requests."""
HISTORY_SEED = 977


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of orloj-sensitivity."""

    description: str
    requests: int
    seeds: int
    slos: tuple[float, ...]
    b_per_ms: tuple[float, ...]
    p99_ms: tuple[float, ...]
    """P99 of solo times."""


class OrlojSensitivity:
    """Finish rates of the three-modal workload."""

    name = "orloj-sensitivity"
    title = "ORLOJ's Fig. 13 and 14: the anticipated delay, and short requests"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        (case,) = [case for case in all_cases() if case.name == CASE]
        points: list[tuple[str, float, float, str]] = [
            *(("b", slo, b, "orloj") for slo in scene.slos for b in scene.b_per_ms),
            *(
                ("p99", slo, p99, scheduler)
                for slo in scene.slos
                for p99 in scene.p99_ms
                for scheduler in ("orloj", "horologe")
            ),
        ]
        rows, begin = [], time.perf_counter()
        for number, (parameter, slo, value, scheduler) in enumerate(points):
            progress(number / len(points), f"{parameter} {value:g} at x{slo:g}")
            rows.append(_row(case, parameter, slo, value, scheduler, scene, seed))
        cost = Cost(len(points) * scene.seeds * scene.requests, time.perf_counter() - begin)
        facts = {"workload": f"{CASE}, lengths hidden, {LOAD:g} of its critical rate, {scene.requests} requests a run"}
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(scene, rows), cost=cost)

    def draw(self, findings: Findings) -> Figure:
        """Draw finish rates against b, and against the P99 of solo times, with a line for each SLO."""
        from horologe_experiments.harness.plots import make_figure

        figure, axes = make_figure(1, 2)
        for panel, parameter, label in zip(axes, ("b", "p99"), ("b (1/ms)", "P99 alone (ms)"), strict=True):
            for slo in sorted({row["slo_x_p99"] for row in findings.rows}):
                for scheduler, style in (("orloj", "-"), ("horologe", "--")):
                    line = [
                        row
                        for row in findings.rows
                        if (row["what"], row["slo_x_p99"], row["scheduler"]) == (parameter, slo, scheduler)
                    ]
                    if line:
                        x, y = [row["value"] for row in line], [row["finish_rate"] for row in line]
                        panel.plot(x, y, style, marker=".", label=f"{scheduler} x{slo:g}")
            panel.set(xscale="log", xlabel=label, ylabel="finish rate", ylim=(0, 1.05))
        axes[1].legend(fontsize=6)
        return figure


def _row(
    case: Case, parameter: str, slo: float, value: float, scheduler: str, scene: Scene, seed: int
) -> dict[str, Any]:
    scale = value / _p99_ms(case) if parameter == "p99" else 1.0
    shorter = msgspec.structs.replace(case, mean_ms=case.mean_ms * scale, p99_ms=case.p99_ms * scale)
    rate = LOAD * critical_rates()[CASE] / scale
    history = build_case(shorter, slo, rate, HISTORY, HISTORY_SEED)
    overrides = {"policy": {"b_per_ms": value}} if parameter == "b" else {}
    finished = [
        finish_rate(
            build_case(shorter, slo, rate, scene.requests, seed + offset),
            SchedulerKnowledge(history, False),
            scheduler,
            overrides,
            WAY_NS,
        )
        for offset in range(scene.seeds)
    ]
    return {
        "what": parameter,
        "slo_x_p99": slo,
        "value": value,
        "scheduler": scheduler,
        "finish_rate": round(float(np.mean(finished)), 4),
    }


def _p99_ms(case: Case) -> float:
    """Return the P99 of the solo times of a case."""
    return build_case(case, 1.0, 1.0, 1, 0).slo_ns / 1e6


def _bars(scene: Scene, rows: list[dict[str, Any]]) -> list[Bar]:
    return [
        Bar(
            f"finish rates over all b, x{slo:g}: largest - smallest",
            round(max(values) - min(values), 4),
            SPREAD,
            "at most",
        )
        for slo in scene.slos
        for values in [[row["finish_rate"] for row in rows if row["what"] == "b" and row["slo_x_p99"] == slo]]
    ]
