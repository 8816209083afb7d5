"""Joint plans of pipelines on shares, beside InferLine's whole devices and iGniter's single workloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.igniter.stage_workloads import provision_stages
from horologe_experiments.inferline.cases import PipelineCase, PipelineScene, pipeline_case
from horologe_experiments.inferline.dedicated_devices import run_dedicated
from horologe_load.arrivals import gamma
from horologe_planning.interference.derived_coefficients import catalogue_coefficients
from horologe_planning.joint_planning.joint_planner import plan_layout
from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator, ShareTimes
from horologe_planning.joint_planning.layouts import dedicated_layout, describe_layout
from horologe_planning.search.pipeline_planner import make_plan
from horologe_sim.scenario.pooled_plan import PoolSimulation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from horologe_experiments.harness.experiment import Progress
    from horologe_planning.joint_planning.layouts import Layout
    from horologe_planning.search.evaluation import Configuration

GPU = "v100"
INTERFERENCE = "pcie-contention"
WAYS = ("inferline", "igniter", "joint")
CHEAPER = 0.85
ATTAINMENT = 0.99


class Scene(PipelineScene, frozen=True, forbid_unknown_fields=True):
    """Scene file of igniter-joint."""

    serve_traces: int
    controller_seconds: float
    """Length of the trace that joint plans serve with the real controller in the simulator."""
    margin: float
    """Standard deviations of the prediction error that plans cover."""


class IgniterJoint:
    """Cost and attainment of InferLine's plans, of iGniter's and of joint ones."""

    name = "igniter-joint"
    title = "Pipelines on shares of GPUs: InferLine, iGniter, and both together"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        points = [(name, cv, rate) for name in scene.pipelines for cv in scene.cvs for rate in scene.rates]
        rows = []
        for number, (name, cv, rate) in enumerate(points):
            progress(number / len(points), f"{name}, CV {cv:g}, {rate:g} queries/s")
            rows.append(_row(pipeline_case(name), cv, rate, scene, seed))
        facts = {
            "traces": f"gamma arrivals; plans are made for a sample of {scene.plan_seconds:g} s and serve "
            f"{scene.serve_traces} other traces of {scene.serve_seconds:g} s; attainment is that of the worst trace",
            "inferline": "each replica has a whole device",
            "igniter": "each stage is a workload of its own on shares of V100s; the cheapest of "
            "many splits of the SLO and rate factors that meets the objective",
            "joint": "stages share V100s under the pipeline's SLO",
            "objective": "P99 within the SLO on unseen traffic, in the same estimator for all three",
            "times": f"profile of the whole V100 times predicted interference, and {scene.margin:g} standard "
            "deviations of the prediction error; coefficients derived from those of the most similar measured model",
            "joint / better, total of each pipeline": ", ".join(
                f"{name} {_total_ratio([row for row in rows if row['pipeline'] == name])}" for name in scene.pipelines
            ),
            "serving": "each share is slower or faster than predicted by a random error of the prediction's size",
            "joint_with_controller": "the same with the real controller in the simulator, on "
            f"{scene.controller_seconds:g} s of other arrivals",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, _bars(scene, rows))

    def draw(self, findings: Findings) -> Figure:
        """Draw the cost of the three ways by rate, a panel for each pipeline."""
        from horologe_experiments.harness.plots import make_figure

        names = list(dict.fromkeys(row["pipeline"] for row in findings.rows))
        figure, axes = make_figure(1, len(names))
        for panel, name in zip(axes, names, strict=True):
            for cv, style in zip(dict.fromkeys(row["cv"] for row in findings.rows), ("-", "--", ":"), strict=False):
                rows = [row for row in findings.rows if (row["pipeline"], row["cv"]) == (name, cv)]
                for color, way in enumerate(WAYS):
                    costs = [row[f"{way}_cost"] for row in rows]
                    label = f"{way}, CV {cv:g}"
                    panel.plot([row["rate"] for row in rows], costs, style, color=f"C{color}", marker=".", label=label)
            panel.set(title=name, xlabel="queries per second", ylabel="dollars per hour", ylim=(0, None))
        axes[0].legend(fontsize=6)
        return figure


def _row(case: PipelineCase, cv: float, rate: float, scene: Scene, seed: int) -> dict[str, Any]:
    catalogue = catalogue_coefficients(case.profiles, INTERFERENCE)
    dedicated = case.evaluator(gamma(rate, cv, scene.plan_seconds, [seed, 1]), seed)
    start = dedicated_layout(make_plan(dedicated).plan.placements)
    evaluator = LayoutEvaluator(dedicated, ShareTimes({GPU: catalogue}, case.profiles, scene.margin))
    joint = plan_layout(evaluator, evaluator.price(start)) or start
    runs = evaluator.problem.runs
    layouts = {"inferline": start, "igniter": provision_stages(evaluator, catalogue, GPU), "joint": joint}
    row: dict[str, Any] = {"pipeline": case.structure.name, "cv": cv, "rate": rate}
    for way, layout in layouts.items():
        row[f"{way}_cost"] = round(evaluator.price(layout), 3) if layout else None
        row[f"{way}_attainment"] = round(_attainment(case, layout, cv, rate, scene, seed), 5) if layout else None
    row["better_cost"] = min(row[f"{way}_cost"] or np.inf for way in ("inferline", "igniter"))
    row["joint_over_better"] = round(row["joint_cost"] / row["better_cost"], 3)
    row["joint_with_controller"] = round(_controller_attainment(case, joint, cv, rate, scene, seed), 5)
    row["runs"] = runs
    row["p99_ms"] = round(evaluator.forecast(joint).p99_ns / 1e6, 1)
    row["igniter_layout"] = describe_layout(layouts["igniter"]) if layouts["igniter"] else ""
    row["joint_layout"] = describe_layout(joint)
    return row


def _attainment(case: PipelineCase, layout: Layout, cv: float, rate: float, scene: Scene, seed: int) -> float:
    """Return the lowest attainment on unseen traces in the estimator, each with other errors of the predicted times."""
    attained = []
    for number in range(scene.serve_traces):
        arrivals_ns = gamma(rate, cv, scene.serve_seconds, [seed, 2, number])
        evaluator, configuration = with_errors(case, layout, arrivals_ns, seed + 1 + number)
        attained.append(evaluator.problem.forecast(configuration).attainment)
    return min(attained)


def _controller_attainment(
    case: PipelineCase, layout: Layout, cv: float, rate: float, scene: Scene, seed: int
) -> float:
    """Return the attainment on an unseen trace with the real controller in the simulator."""
    arrivals_ns = gamma(rate, cv, scene.controller_seconds, [seed, 4])
    evaluator, configuration = with_errors(case, layout, arrivals_ns, seed + 1)
    problem = evaluator.problem
    world = PoolSimulation(case.structure, problem.profiles, arrivals_ns, problem.workload.calls, seed)
    return run_dedicated(world, configuration).attainment


def with_errors(
    case: PipelineCase, layout: Layout, arrivals_ns: NDArray[np.int64], seed: int
) -> tuple[LayoutEvaluator, Configuration]:
    """Return the layout on a trace, with the times of shares that an imperfect prediction meets.

    They are the predicted times, without a margin, times a lognormal error with the model's `relative_error`.
    """
    catalogue = catalogue_coefficients(case.profiles, INTERFERENCE)
    evaluator = LayoutEvaluator(case.evaluator(arrivals_ns, seed), ShareTimes({GPU: catalogue}, case.profiles, 0.0))
    configuration, profiles = evaluator.configuration(layout), evaluator.problem.profiles
    rng = np.random.default_rng([seed, 3])
    for model, hardware in dict.fromkeys((group.model, group.hardware) for group in configuration):
        if hardware not in case.hardware:
            factor = float(np.exp(catalogue.models[model].relative_error * rng.standard_normal()))
            predicted = profiles[model][hardware]
            latency_ns = {size: round(ns * factor) for size, ns in predicted.latency_ns.items()}
            profiles[model][hardware] = msgspec.structs.replace(predicted, latency_ns=latency_ns)
    return evaluator, configuration


def _bars(scene: Scene, rows: list[dict[str, Any]]) -> list[Bar]:
    by_pipeline = {name: [row for row in rows if row["pipeline"] == name] for name in scene.pipelines}
    best = sorted(min(row["joint_over_better"] for row in own) for own in by_pipeline.values())
    better, attained = "cheaper of InferLine and iGniter", min(row["joint_attainment"] for row in rows)
    return [
        Bar(f"joint / {better}, best point of the second-best pipeline", best[:2][-1], CHEAPER, "at most"),
        Bar(f"joint / {better}, largest of all points", max(row["joint_over_better"] for row in rows), 1, "at most"),
        Bar(f"joint / {better}, total over all points", _total_ratio(rows), 1, "at most"),
        Bar("lowest attainment of a joint plan on unseen arrivals", attained, ATTAINMENT),
    ]


def _total_ratio(rows: list[dict[str, Any]]) -> float:
    """Return the cost of the joint plans over that of the cheaper way at each point."""
    return float(round(sum(row["joint_cost"] for row in rows) / sum(row["better_cost"] for row in rows), 3))
