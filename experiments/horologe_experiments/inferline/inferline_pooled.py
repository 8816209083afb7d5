"""Pooled plans beside dedicated ones, and InferLine's Fig. 13: one plan on two schedulers."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.inferline.cases import (
    BURSTY,
    PipelineScene,
    coarse_grained,
    configuration_text,
    pipeline_case,
    rows_by_point,
)
from horologe_experiments.inferline.dedicated_devices import run_dedicated
from horologe_load.arrivals import gamma
from horologe_planning.estimator.pipeline_workload import draw_calls
from horologe_planning.search.higher_rates import busiest_stretch
from horologe_sim.scenario.pooled_plan import PoolSimulation, plan_pooled

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure

    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.inferline.cases import PipelineCase
    from horologe_sim.controller_only.pipeline_world import PipelineWorld

CHEAPER = 0.75
"""Cost of a pool over that of the dedicated plan."""
ATTAINMENT = 0.99


class Scene(PipelineScene, frozen=True, forbid_unknown_fields=True):
    """Scene file of inferline-pooled."""

    pool_queries: int
    """Queries of the sample, the busiest ones in a row, that pools are simulated on."""
    schedulers: tuple[str, ...]


class InferLinePooled:
    """Cost of dedicated and pooled plans, and their attainment on unseen arrivals with the real controller."""

    name = "inferline-pooled"
    title = "Pooled plans, and InferLine's Fig. 13: one plan on two schedulers"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)

        def row(name: str, cv: float, rate: float) -> dict[str, Any]:
            return _row(pipeline_case(name), cv, rate, scene, seed)

        rows = rows_by_point(product(scene.pipelines, scene.cvs, scene.rates), progress, row)
        facts = {
            "dedicated": f"InferLine's plan for a sample of {scene.plan_seconds:g} s",
            "pooled": "every device has all models that are fast enough on its type; fewest devices that meet the "
            f"planner's objective on the busiest {scene.pool_queries:,} queries of the sample, found with the "
            f"scheduler {scene.schedulers[0]}",
            "attainment": f"on {scene.serve_seconds:g} s of unseen arrivals, with the real controller in the simulator",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(scene, rows))

    def draw(self, findings: Findings) -> Figure:
        """Draw the cost of both forms, and the attainment of the dedicated plan on each scheduler."""
        from horologe_experiments.harness.plots import make_figure

        figure, (left, right) = make_figure(2, 1)
        rows = findings.rows
        labels = [f"{row['pipeline']}\nCV {row['cv']:g}, {row['rate']:g}/s" for row in rows]
        places = np.arange(len(rows))
        left.bar(places - 0.2, [row["dedicated_cost"] for row in rows], 0.4, label="dedicated")
        left.bar(places + 0.2, [row["pooled_cost"] for row in rows], 0.4, label="pooled")
        left.set(ylabel="dollars per hour")
        schedulers = [key for key in rows[0] if key.startswith("on_")]
        for at, key in enumerate(schedulers):
            width = 0.8 / len(schedulers)
            right.bar(places - 0.4 + (at + 0.5) * width, [row[key] for row in rows], width, label=key[3:])
        right.axhline(ATTAINMENT, color="k", ls="--", lw=0.8)
        right.set(ylabel="attainment of the dedicated plan", ylim=(0.9, 1))
        for panel in (left, right):
            panel.set_xticks(places, labels, fontsize=5, rotation=60)
            panel.legend(fontsize=7)
        return figure


def _row(case: PipelineCase, cv: float, rate: float, scene: Scene, seed: int) -> dict[str, Any]:
    sample_ns = gamma(rate, cv, scene.plan_seconds, [seed, 1])
    plan, report = case.plan(sample_ns, seed)
    busiest_ns = sample_ns[busiest_stretch(sample_ns, scene.pool_queries)]
    part_ns = busiest_ns - busiest_ns[0]
    live_ns = gamma(rate, cv, scene.serve_seconds, [seed, 2])

    def simulation(arrivals_ns: np.ndarray, draw: int, scheduler: str) -> PoolSimulation:
        calls = draw_calls(case.structure, len(arrivals_ns), draw)
        return PoolSimulation(case.structure, case.profiles, arrivals_ns, calls, seed, scheduler)

    pooled = plan_pooled(simulation(part_ns, seed, scene.schedulers[0]), case.hardware, plan.placements)
    row: dict[str, Any] = {
        "dedicated_cost": round(report.cost_per_hour, 3),
        "pooled_cost": round(min(pooled.cost_per_hour, report.cost_per_hour) if pooled else report.cost_per_hour, 3),
    }
    row["cg_peak_cost"] = round(case.price(coarse_grained(case, sample_ns, True, seed)[0]), 3)
    row["peak_over_planner"] = round(row["cg_peak_cost"] / row["pooled_cost"], 2)
    row["pooled_over_dedicated"] = round(row["pooled_cost"] / row["dedicated_cost"], 3)
    for scheduler in scene.schedulers:
        world = run_dedicated(simulation(live_ns, seed + 1, scheduler), plan.placements)
        row[f"on_{scheduler}"] = round(world.attainment, 5)
        row[f"p99_ms_{scheduler}"] = _p99_ms(world)
    row["estimated_p99_ms"] = round(report.p99_ns / 1e6, 1)
    if pooled:
        world = simulation(live_ns, seed + 1, scene.schedulers[0]).run_pool(pooled.devices)
        row["pooled_attainment"] = round(world.attainment, 5)
        row["pool"] = ", ".join(f"{count} {name}" for name, count in pooled.devices.items())
        row["simulations"] = pooled.evaluations
    row["plan"] = configuration_text(plan.placements)
    return row


def _p99_ms(world: PipelineWorld) -> float:
    """Return the 99th percentile of the answered queries."""
    answered = world.latency_ns[world.latency_ns >= 0]
    return round(float(np.quantile(answered, 0.99)) / 1e6, 1) if len(answered) else 0.0


def _bars(scene: Scene, rows: list[dict[str, Any]]) -> list[Bar]:
    ratios = {
        name: min(row["pooled_over_dedicated"] for row in rows if row["pipeline"] == name) for name in scene.pipelines
    }
    second = sorted(ratios.values())[:2][-1]
    bursty = [row for row in rows if row["cv"] == BURSTY] or rows
    best = sorted(
        max(row["peak_over_planner"] for row in bursty if row["pipeline"] == name) for name in scene.pipelines
    )
    largest = max(row["pooled_over_dedicated"] for row in rows)
    attained = [row["pooled_attainment"] for row in rows if "pooled_attainment" in row]
    return [
        Bar("pooled / dedicated, largest of all points", largest, 1, "at most"),
        Bar("pooled / dedicated, best point of the second-best pipeline", round(second, 3), CHEAPER, "at most"),
        Bar("lowest attainment of a pool on unseen arrivals", min(attained, default=0.0), ATTAINMENT),
        Bar(f"CG-peak / cheaper plan at CV {BURSTY:g}, best rate of the second-best pipeline", best[-2:][0], 3),
        Bar("CG-peak / cheaper plan, smallest of all points", min(row["peak_over_planner"] for row in rows), 1),
    ]
