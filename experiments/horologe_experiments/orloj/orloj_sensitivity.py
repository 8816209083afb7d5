"""ORLOJ's Fig. 13 and 14: what b, its anticipated delay, changes; and how short requests may become."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.clock import us
from horologe_experiments.harness.experiment import Bar, Cost, Findings, load_scene
from horologe_experiments.orloj.cases import cases
from horologe_experiments.orloj.critical import rates
from horologe_experiments.orloj.workload_replay import HISTORY, Told, finish_rate
from horologe_experiments.orloj.workloads import build_case

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.orloj.cases import Case

CASE = "three-modal"
LOAD = 0.8
SPREAD = 0.05
"""By so much the finish rates of one SLO may differ over all b ("stable", section 5.6)."""
WAY_NS = us(100)
"""A message, and a turn of the controller: what makes short requests hard."""
HISTORY_SEED = 977


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    description: str
    requests: int
    seeds: int
    slos: tuple[float, ...]
    b_per_ms: tuple[float, ...]
    p99_ms: tuple[float, ...]
    """Of what requests take alone."""


class OrlojSensitivity:
    name = "orloj-sensitivity"
    title = "ORLOJ's Fig. 13 and 14: the anticipated delay, and short requests"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        (case,) = [one for one in cases() if one.name == CASE]
        todo: list[tuple[str, float, float, str]] = [
            *(("b", slo, b, "orloj") for slo in scene.slos for b in scene.b_per_ms),
            *(("p99", slo, p99, one) for slo in scene.slos for p99 in scene.p99_ms for one in ("orloj", "horologe")),
        ]
        found, begin = [], time.perf_counter()
        for number, (what, slo, value, scheduler) in enumerate(todo):
            progress(number / len(todo), f"{what} {value:g} at x{slo:g}")
            found.append(_row(case, what, slo, value, scheduler, scene, seed))
        cost = Cost(len(todo) * scene.seeds * scene.requests, time.perf_counter() - begin)
        facts = {"workload": f"{CASE}, lengths hidden, {LOAD:g} of its critical rate, {scene.requests} requests a run"}
        return Findings(self.name, self.title, seed, quick, facts, found, _bars(scene, found), cost=cost)

    def draw(self, findings: Findings) -> Figure:
        """Finish rates against b, and against the P99 of what requests take alone; a line for each SLO."""
        from horologe_experiments.harness.plots import make_figure

        figure, axes = make_figure(1, 2)
        for one, what, label in zip(axes, ("b", "p99"), ("b (1/ms)", "P99 alone (ms)"), strict=True):
            for slo in sorted({row["slo_x_p99"] for row in findings.rows}):
                for scheduler, style in (("orloj", "-"), ("horologe", "--")):
                    line = [
                        row
                        for row in findings.rows
                        if (row["what"], row["slo_x_p99"], row["scheduler"]) == (what, slo, scheduler)
                    ]
                    if line:
                        x, y = [row["value"] for row in line], [row["finish_rate"] for row in line]
                        one.plot(x, y, style, marker=".", label=f"{scheduler} x{slo:g}")
            one.set(xscale="log", xlabel=label, ylabel="finish rate", ylim=(0, 1.05))
        axes[1].legend(fontsize=6)
        return figure


def _row(case: Case, what: str, slo: float, value: float, scheduler: str, scene: Scene, seed: int) -> dict[str, Any]:
    scale = value / _p99_ms(case) if what == "p99" else 1.0
    shorter = msgspec.structs.replace(case, mean_ms=case.mean_ms * scale, p99_ms=case.p99_ms * scale)
    rate = LOAD * rates()[CASE] / scale
    history = build_case(shorter, slo, rate, HISTORY, HISTORY_SEED)
    knobs = {"orloj_b_per_ms": value} if what == "b" else {}
    finished = [
        finish_rate(
            build_case(shorter, slo, rate, scene.requests, seed + more), Told(history, False), scheduler, knobs, WAY_NS
        )
        for more in range(scene.seeds)
    ]
    return {
        "what": what,
        "slo_x_p99": slo,
        "value": value,
        "scheduler": scheduler,
        "finish_rate": round(float(np.mean(finished)), 4),
    }


def _p99_ms(case: Case) -> float:
    """Of what a request takes alone."""
    return build_case(case, 1.0, 1.0, 1, 0).slo_ns / 1e6


def _bars(scene: Scene, found: list[dict[str, Any]]) -> list[Bar]:
    return [
        Bar(f"finish rates over all b, x{slo:g}: largest less least", round(max(at) - min(at), 4), SPREAD, "at most")
        for slo in scene.slos
        for at in [[row["finish_rate"] for row in found if row["what"] == "b" and row["slo_x_p99"] == slo]]
    ]
