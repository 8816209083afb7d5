"""InferLine's Fig. 7, 10, 11, 12 and 14: changes of rate and burstiness that the plan does not know."""

from __future__ import annotations

import math
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import s
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.inferline.baselines.coarse_grained import mean_rate
from horologe_experiments.inferline.baselines.ds2 import Ds2, plan_for_mean
from horologe_experiments.inferline.cases import coarse_grained, pipeline_case, scaling_policies
from horologe_experiments.inferline.scaling_policy import FixedReplicas
from horologe_experiments.inferline.serving import serve
from horologe_experiments.inferline.tuner_policy import InferLineTuner
from horologe_load.arrivals import RateStep, gamma, gamma_steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.inferline.scaling_policy import ScalingPolicy
    from horologe_experiments.inferline.serving import ServedRun
    from horologe_planning.search.evaluation import Configuration

WINDOW_NS = s(20)
STRETCH_NS = s(300)
"""Stretch in which reversals are counted."""
TRANSITION_STEP_S = 1.0
COARSE = ("cg-mean", "cg-peak")
DRAWN = ("inferline", "inferline-paper", "none", "cg-mean")


class Phase(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arrivals of constant rate and CV, after a linear transition of `transition` seconds from the phase before."""

    seconds: float
    rate: float
    cv: float = 1.0
    transition: float = 0.0


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A trace. The planner's sample has rate and CV of the first phase."""

    name: str
    pipeline: str
    phases: tuple[Phase, ...]
    wanted: tuple[str, ...] = ()
    """Bars: step, detection, burst, steady."""
    hardware: tuple[str, ...] = ()
    """Hardware types to plan with. Empty: all of the catalogue."""
    figure: bool = True
    """Draw the scenario."""


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of inferline-tuner."""

    description: str
    sample_seconds: float
    processes: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    """Scenarios that are served at the same time."""
    scenarios: tuple[Scenario, ...]


class Task(NamedTuple):
    """A scenario to be served by all systems."""

    scenario: Scenario
    sample_seconds: float
    seed: int


class Outcome(NamedTuple):
    """Rows, bars and windows of a scenario."""

    rows: list[dict[str, Any]]
    bars: list[Bar]
    windows: dict[str, list[dict[str, Any]]]


class InferLineTuning:
    """Miss rate and cost of each scaling policy, by scenario."""

    name = "inferline-tuner"
    title = "InferLine's Fig. 7, 10, 11, 12 and 14: changes that the plan does not know"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        rows: list[dict[str, Any]] = []
        bars: list[Bar] = []
        windows: dict[str, Any] = {}
        tasks = [Task(scenario, scene.sample_seconds, seed) for scenario in scene.scenarios]
        with ProcessPoolExecutor(scene.processes, multiprocessing.get_context("spawn")) as pool:
            for number, outcome in enumerate(pool.map(_compare, tasks)):
                scenario = scene.scenarios[number]
                progress((number + 1) / len(tasks), scenario.name)
                rows += outcome.rows
                bars += outcome.bars
                if scenario.figure:
                    windows[scenario.name] = outcome.windows
        facts = {
            "sample": f"gamma arrivals of {scene.sample_seconds:g} s with rate and CV of the first phase",
            "activation": "a replica works 5 s after it was ordered",
            "oracle": f"fixed plan for the busiest {scene.sample_seconds:g} s of the served trace",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, bars, windows)

    def draw(self, findings: Findings) -> Figure:
        """Draw miss rate and cost by time, a row of panels for each scenario."""
        from horologe_experiments.harness.plots import make_figure

        figure, axes = make_figure(len(findings.series), 2)
        for at, (name, systems) in enumerate(findings.series.items()):
            missed, cost = axes[2 * at : 2 * at + 2]
            for system, windows in systems.items():
                seconds = [row["second"] for row in windows]
                missed.plot(seconds, [row["missed"] for row in windows], label=system)
                cost.plot(seconds, [row["dollars_per_hour"] for row in windows], label=system)
            missed.set(title=name, ylabel="miss rate")
            cost.set(title=name, ylabel="dollars per hour", ylim=(0, None))
        axes[1].legend(fontsize=6)
        return figure


def arrivals_of(phases: tuple[Phase, ...], seed: list[int]) -> NDArray[np.int64]:
    """Return the arrivals of the phases. A transition changes rate and CV linearly, in steps of a second."""
    steps: list[RateStep] = []
    before = phases[0]
    for phase in phases:
        count = round(phase.transition / TRANSITION_STEP_S)
        for part in (np.arange(count) + 0.5) / max(1, count):
            rate = before.rate + part * (phase.rate - before.rate)
            steps.append(RateStep(TRANSITION_STEP_S, rate, before.cv + part * (phase.cv - before.cv)))
        steps.append(RateStep(phase.seconds, phase.rate, phase.cv))
        before = phase
    return gamma_steps(steps, seed)


def busiest_part(arrivals_ns: NDArray[np.int64], seconds: float) -> NDArray[np.int64]:
    """Return the stretch of this length with the most arrivals, from time 0 on."""
    ends = arrivals_ns.searchsorted(arrivals_ns + round(seconds * 1e9))
    first = int((ends - np.arange(len(arrivals_ns))).argmax())
    part: NDArray[np.int64] = arrivals_ns[first : ends[first]] - arrivals_ns[first]
    return part


def _compare(task: Task) -> Outcome:
    comparison = Comparison(task.scenario, task.sample_seconds, task.seed)
    return Outcome(comparison.rows(), comparison.bars(), comparison.windows())


class Comparison:
    """All systems on one scenario."""

    def __init__(self, scenario: Scenario, sample_seconds: float, seed: int) -> None:
        first = scenario.phases[0]
        self.scenario = scenario
        self._case = pipeline_case(scenario.pipeline, hardware=scenario.hardware)
        self._seed = seed
        sample_ns = gamma(first.rate, first.cv, sample_seconds, [seed, 1])
        self._live_ns = arrivals_of(scenario.phases, [seed, 2])
        plan = self._case.plan(sample_ns, seed).plan
        policies = scaling_policies(self._case, plan, sample_ns, seed)
        tuner = policies["inferline"]
        assert isinstance(tuner, InferLineTuner)
        self._detections = tuner.detections
        self._configurations: dict[str, Configuration] = {}
        self.runs: dict[str, ServedRun] = {}
        for name, policy in policies.items():
            self._serve(name, plan.placements, policy)
        hardest_ns = busiest_part(self._live_ns, sample_seconds)
        self._serve("oracle", self._case.plan(hardest_ns, seed).plan.placements, FixedReplicas())
        for name in COARSE:
            units, autoscale = coarse_grained(self._case, sample_ns, name == "cg-peak", seed)
            self._serve(name, units, autoscale)
            if name == "cg-mean":
                self._serve("inferline-plan-autoscale", plan.placements, autoscale.fresh())
        scale_factors = {placed.stage: placed.scale_factor for placed in plan.placements}
        unbatched = plan_for_mean(self._case.profiles, plan.placements, scale_factors, mean_rate(sample_ns))
        self._serve("ds2-unbatched", unbatched, Ds2(scale_factors))

    def _serve(self, name: str, configuration: Configuration, policy: ScalingPolicy) -> None:
        self._configurations[name] = configuration
        self.runs[name] = serve(self._case, configuration, self._live_ns, policy, self._seed + 1)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each system."""
        return [
            {
                "scenario": self.scenario.name,
                "system": name,
                "queries": len(run.arrivals_ns),
                "miss_rate": round(run.miss_rate, 5),
                "dollars_per_hour": round(run.dollars_per_hour, 3),
                "changes": len(run.changes) - 1,
                "reversals_in_300_s": max_reversals(run),
            }
            for name, run in self.runs.items()
        ]

    def windows(self) -> dict[str, list[dict[str, Any]]]:
        """Return the windows of the systems in the figure."""
        return {name: self.runs[name].windows(WINDOW_NS, self._case, self._configurations[name]) for name in DRAWN}

    def bars(self) -> list[Bar]:
        """Return the bars that the scenario asks for."""
        name, tuned = self.scenario.name, self.runs["inferline"].miss_rate
        bars = []
        if "step" in self.scenario.wanted:
            coarse = self.runs["cg-mean"].miss_rate
            bars.append(Bar(f"{name}: miss rate of the tuner", round(tuned, 5), 0.01, "at most"))
            bars.append(Bar(f"{name}: miss rate, cg-mean / tuner", round(coarse / max(tuned, 1e-6), 1), 10))
        if "detection" in self.scenario.wanted:
            first, shortest = self._detection_windows()
            bars.append(Bar(f"{name}: delay of the detection in windows that show it", round(first, 1), 1, "at most"))
            bars.append(Bar(f"{name}: delay of a window's detection in its lengths", round(shortest, 1), 1, "at most"))
        if "burst" in self.scenario.wanted:
            bars.append(Bar(f"{name}: miss rate of the tuner", round(tuned, 5), 0.01, "at most"))
        if "steady" in self.scenario.wanted:
            most = max_reversals(self.runs["inferline"])
            bars.append(Bar(f"{name}: most reversals of a stage in five minutes", most, 1, "at most"))
        return bars

    def _detection_windows(self) -> tuple[float, float]:
        """Return the time from the change to the first demand above all before it, in windows of that demand.

        Also return the least such time of all windows: a chance burst may exceed a short window before a longer one
        shows the new rate within its own length.
        """
        changed_ns = round(self.scenario.phases[0].seconds * 1e9)
        before = max((rate for at_ns, rate, _ in self._detections if at_ns <= changed_ns), default=0.0)
        after = [
            (at_ns - changed_ns) / window_ns
            for at_ns, rate, window_ns in self._detections
            if at_ns > changed_ns and rate > before
        ]
        return (after[0], min(after)) if after else (math.inf, math.inf)


def max_reversals(run: ServedRun) -> int:
    """Return the most reversals of a stage in any stretch of five minutes."""
    return max((run.reversals(at_ns, at_ns + STRETCH_NS) for at_ns, _ in run.changes), default=0)
