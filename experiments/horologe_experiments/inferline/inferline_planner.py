"""InferLine's Fig. 9: cost by SLO, rate and CV; and the distance of the planner from exact search."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.inferline.cases import pipeline_case
from horologe_experiments.inferline.exact_search import find_cheapest
from horologe_load.arrivals import gamma
from horologe_planning.report import Infeasible
from horologe_planning.search.pipeline_planner import make_plan

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress

MOST_OVER_EXACT = 1.05


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of inferline-planner."""

    description: str
    pipelines: tuple[str, ...]
    slos_ms: tuple[float, ...]
    rates: tuple[float, ...]
    cvs: tuple[float, ...]
    plan_seconds: float
    exact_runs: int
    """Limit of estimator runs of an exact search. A search that needs more is reported as not computed."""


class InferLinePlanner:
    """Cost of plans by SLO, rate and CV, beside the cheapest configuration."""

    name = "inferline-planner"
    title = "InferLine's Fig. 9: cost by SLO, rate and CV; the planner against exact search"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        points = [
            (name, slo_ms, cv, rate)
            for name in scene.pipelines
            for cv in scene.cvs
            for slo_ms in scene.slos_ms
            for rate in scene.rates
        ]
        rows = []
        for number, (name, slo_ms, cv, rate) in enumerate(points):
            progress(number / len(points), f"{name}, {slo_ms:g} ms, CV {cv:g}, {rate:g} queries/s")
            rows.append(_row(name, slo_ms, cv, rate, scene, seed))
        facts = {
            "sample": f"gamma arrivals of {scene.plan_seconds:g} s",
            "exact search": f"all configurations by cost, at most {scene.exact_runs:,} estimator runs; empty cells: "
            "the search needed more",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(rows))

    def draw(self, findings: Findings) -> Figure:
        """Draw cost by SLO, a panel for each pipeline and a line for each rate and CV."""
        from horologe_experiments.harness.plots import make_figure

        names = list(dict.fromkeys(row["pipeline"] for row in findings.rows))
        figure, axes = make_figure(1, len(names))
        for panel, name in zip(axes, names, strict=True):
            for cv, rate in dict.fromkeys((row["cv"], row["rate"]) for row in findings.rows):
                line = [row for row in findings.rows if (row["pipeline"], row["cv"], row["rate"]) == (name, cv, rate)]
                costs = [row.get("cost") for row in line]
                style = "--" if cv > 1 else "-"
                panel.plot([row["slo_ms"] for row in line], costs, style, marker=".", label=f"{rate:g}/s, CV {cv:g}")
            panel.set(title=name, xlabel="SLO (ms)", ylabel="dollars per hour", ylim=(0, None))
        axes[0].legend(fontsize=6)
        return figure


def _row(name: str, slo_ms: float, cv: float, rate: float, scene: Scene, seed: int) -> dict[str, Any]:
    case = pipeline_case(name, round(slo_ms * 1e6))
    row: dict[str, Any] = {"pipeline": name, "slo_ms": slo_ms, "cv": cv, "rate": rate}
    evaluator = case.evaluator(gamma(rate, cv, scene.plan_seconds, [seed, 1]), seed)
    try:
        plan, report = make_plan(evaluator)
    except Infeasible as error:
        return row | {"nearest_slo_ms": round(error.nearest_slo_ns / 1e6, 1)}
    row |= {
        "cost": round(report.cost_per_hour, 3),
        "p99_ms": round(report.p99_ns / 1e6, 1),
        "runs": report.evaluations,
        "plan": "; ".join(f"{stage.stage}: {stage.describe()}" for stage in plan.placements),
    }
    exact = find_cheapest(evaluator, report.cost_per_hour, scene.exact_runs)
    if exact.complete:
        least = exact.cost if exact.configuration else report.cost_per_hour
        row |= {"exact_cost": round(least, 3), "planner_over_exact": round(report.cost_per_hour / least, 4)}
    return row


def _bars(rows: list[dict[str, Any]]) -> list[Bar]:
    ratios = [row["planner_over_exact"] for row in rows if "planner_over_exact" in row]
    bars = [Bar("planner / exact, largest", max(ratios), MOST_OVER_EXACT, "at most")] if ratios else []
    planned = [row for row in rows if "cost" in row]
    return [*bars, Bar("points with an exact search / planned points", round(len(ratios) / len(planned), 3), 0.25)]
