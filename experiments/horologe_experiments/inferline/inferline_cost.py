"""InferLine's Fig. 5: cost and miss rate of plans on unseen arrivals, beside coarse-grained plans."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.inferline.cases import (
    BURSTY,
    PipelineScene,
    coarse_grained,
    configuration_text,
    pipeline_case,
    rows_by_point,
)
from horologe_experiments.inferline.scaling_policy import FixedReplicas
from horologe_experiments.inferline.serving import serve
from horologe_load.arrivals import gamma

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.inferline.cases import PipelineCase
    from horologe_planning.search.evaluation import Configuration

SYSTEMS = ("inferline", "cg_mean", "cg_peak")


class Scene(PipelineScene, frozen=True, forbid_unknown_fields=True):
    """Scene file of inferline-cost."""

    serve_traces: int
    slo_ms: float = 0.0
    """0: the SLO of the pipeline."""


class InferLineCost:
    """Cost and attainment of InferLine's planner, CG-mean and CG-peak."""

    name = "inferline-cost"
    title = "InferLine's Fig. 5: cost and attainment of plans on unseen arrivals"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)

        def row(name: str, cv: float, rate: float) -> dict[str, Any]:
            return _row(pipeline_case(name, round(scene.slo_ms * 1e6)), cv, rate, scene, seed)

        rows = rows_by_point(product(scene.pipelines, scene.cvs, scene.rates), progress, row)
        facts = {
            "traces": f"gamma arrivals; plans are made for a sample of {scene.plan_seconds:g} s and serve "
            f"{scene.serve_traces} other traces of {scene.serve_seconds:g} s; attainment is that of the worst trace",
            "coarse-grained": "units of the whole pipeline with one batch size, on the cheapest GPU type",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(scene, rows))

    def draw(self, findings: Findings) -> Figure:
        """Draw cost and miss rate by rate, with a pair of panels for each pipeline."""
        from horologe_experiments.harness.plots import make_figure

        names = list(dict.fromkeys(row["pipeline"] for row in findings.rows))
        figure, axes = make_figure(len(names), 2)
        for at, name in enumerate(names):
            cost, missed = axes[2 * at : 2 * at + 2]
            for cv, style in zip(dict.fromkeys(row["cv"] for row in findings.rows), ("-", "--", ":"), strict=False):
                rows = [row for row in findings.rows if (row["pipeline"], row["cv"]) == (name, cv)]
                rates = [row["rate"] for row in rows]
                for color, system in enumerate(SYSTEMS):
                    line = {"linestyle": style, "color": f"C{color}", "marker": ".", "label": f"{system}, CV {cv:g}"}
                    cost.plot(rates, [row[f"{system}_cost"] for row in rows], **line)
                    missed.plot(rates, [1 - row[f"{system}_attainment"] for row in rows], **line)
            cost.set(title=name, ylabel="dollars per hour", ylim=(0, None))
            missed.set(title=name, ylabel="miss rate", ylim=(0, None))
            missed.axhline(0.01, color="k", ls="--", lw=0.8)
        axes[0].legend(fontsize=7)
        return figure


def _row(case: PipelineCase, cv: float, rate: float, scene: Scene, seed: int) -> dict[str, Any]:
    sample_ns = gamma(rate, cv, scene.plan_seconds, [seed, 1])
    plan, report = case.plan(sample_ns, seed)
    row: dict[str, Any] = {
        "inferline_cost": round(report.cost_per_hour, 3),
        "inferline_attainment": _worst_attainment(case, plan.placements, cv, rate, scene, seed),
        "estimated_p99_ms": round(report.p99_ns / 1e6, 1),
    }
    for system, peak in (("cg_mean", False), ("cg_peak", True)):
        configuration, _ = coarse_grained(case, sample_ns, peak, seed)
        row[f"{system}_cost"] = round(case.price(configuration), 3)
        row[f"{system}_attainment"] = _worst_attainment(case, configuration, cv, rate, scene, seed)
    row["peak_over_inferline"] = round(row["cg_peak_cost"] / row["inferline_cost"], 2)
    row["plan"] = configuration_text(plan.placements)
    return row


def _worst_attainment(
    case: PipelineCase, configuration: Configuration, cv: float, rate: float, scene: Scene, seed: int
) -> float:
    """Return the lowest attainment over the serving traces."""
    attainments = []
    for trace in range(scene.serve_traces):
        live_ns = gamma(rate, cv, scene.serve_seconds, [seed, 2, trace])
        attainments.append(serve(case, configuration, live_ns, FixedReplicas(), seed + 1 + trace).attainment)
    return round(min(attainments), 5)


def _bars(scene: Scene, rows: list[dict[str, Any]]) -> list[Bar]:
    bars = []
    ratios: list[float] = []
    for name in scene.pipelines:
        own = [row for row in rows if row["pipeline"] == name]
        for cv in scene.cvs:
            worst = min(row["inferline_attainment"] for row in own if row["cv"] == cv)
            bars.append(Bar(f"{name}, CV {cv:g}: lowest attainment on unseen arrivals", worst, 0.99))
        bursty = [row for row in own if row["cv"] == BURSTY] or own
        ratios.append(sum(row["cg_peak_cost"] for row in bursty) / sum(row["inferline_cost"] for row in bursty))
    name = f"CG-peak / dedicated plan at CV {BURSTY:g}, total over all rates, of the best pipeline"
    bars.append(Bar(name, round(max(ratios), 2), 3))
    bars.append(Bar("CG-peak / InferLine, smallest of all points", min(row["peak_over_inferline"] for row in rows), 1))
    return bars
