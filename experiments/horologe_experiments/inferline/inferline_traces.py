"""InferLine's Fig. 6 on real series: the rates of NASA's web server and of Azure Functions, against every baseline."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np

from horologe_common.clock import ms, s
from horologe_experiments.harness.experiment import Bar, Findings, load_scene
from horologe_experiments.inferline.cases import coarse_grained, pipeline_case, plan_greedily, scaling_policies
from horologe_experiments.inferline.serving import serve
from horologe_experiments.traces.request_rates import busiest, read_azure_hour, read_nasa_day, rescale
from horologe_load.arrivals import RateStep, gamma_steps
from horologe_planning.estimator.pipeline_workload import PipelineTrace
from horologe_planning.search.evaluation import Evaluator
from horologe_planning.search.objective import Objective

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from horologe_experiments.harness.experiment import Progress
    from horologe_experiments.inferline.cases import PipelineCase
    from horologe_experiments.inferline.serving import ServedRun

MINUTE_NS = s(60)
WINDOW_NS = s(30)
"""Width of the windows of the figure."""
ORACLE_SLOS = 200
"""Least length of the oracle's samples, in SLOs. The arrivals of a shorter minute are repeated: a plan can leave work
of one SLO undone at the end of its sample, for which no plan pays."""
OVER_ORACLE = 1.3
DRAWN = ("inferline", "inferline-paper", "none", "cg-mean")


class Series(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A series of rates. `source`: "nasa" or "azure"."""

    name: str
    source: str
    start: int
    """nasa: day of July 1995. azure: first minute of the trace."""
    minutes: int
    """Length of the part that is used, the busiest of the day (nasa)."""
    points: int
    """Rates of the series. Each is the mean of equally many minutes."""
    hardware: tuple[str, ...] = ()
    """Hardware types of plan, baselines and oracle. Empty: all of the catalogue."""
    pipeline: str = ""
    """Empty: that of the scene."""
    slo_ms: int = 0
    """0: that of the pipeline."""
    max_rate: float = 0.0
    """0: that of the scene."""
    bar: bool = True


class Scene(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Scene file of inferline-traces."""

    description: str
    pipeline: str
    max_rate: float
    point_seconds: float
    """Time for which a rate is served."""
    planned_part: float
    """Part of the trace that is the sample of the planner. The rest is served."""
    oracle: bool
    processes: Annotated[int, msgspec.Meta(ge=1, le=1024)]
    """Series that are served at the same time."""
    series: tuple[Series, ...]


class Task(NamedTuple):
    """A series to be served by all systems."""

    series: Series
    scene: Scene
    seed: int


class InferLineTraces:
    """Cost and attainment of the tuner and of its baselines on real series."""

    name = "inferline-traces"
    title = "InferLine's Fig. 6: real series, tuner against baselines"

    def run(self, seed: int, quick: bool, changes: Mapping[str, Any], progress: Progress) -> Findings:
        """See `Experiment`."""
        scene = load_scene(self.name, Scene, quick, changes)
        rows: list[dict[str, Any]] = []
        windows: dict[str, Any] = {}
        bars: list[Bar] = []
        tasks = [Task(series, scene, seed) for series in scene.series]
        with ProcessPoolExecutor(scene.processes, multiprocessing.get_context("spawn")) as pool:
            for number, (own, drawn) in enumerate(pool.map(_serve_series, tasks)):
                series = scene.series[number]
                progress((number + 1) / len(tasks), series.name)
                rows += own
                windows[series.name] = drawn
                if series.bar:
                    bars += _bars(own)
        facts = {
            "traces": f"each rate for {scene.point_seconds:g} s with CV 1; the first {scene.planned_part:.0%} is the "
            "planner's sample, the rest is served",
        }
        facts |= {series.name: _describe(series, scene) for series in scene.series}
        facts |= {
            "oracle": "cost of a plan for exactly the arrivals of each minute, every minute, without activation; they "
            f"are repeated to a length of {ORACLE_SLOS} SLOs",
        }
        return Findings(self.name, self.title, seed, quick, facts, rows, bars, windows)

    def draw(self, findings: Findings) -> Figure:
        """Draw rate, miss rate and cost by time, a row of panels for each series."""
        from horologe_experiments.harness.plots import make_figure

        figure, axes = make_figure(len(findings.series), 3)
        for at, (name, systems) in enumerate(findings.series.items()):
            rate, missed, cost = axes[3 * at : 3 * at + 3]
            first = next(iter(systems.values()))
            rate.plot([row["second"] for row in first], [row["rate"] for row in first])
            rate.set(title=name, ylabel="queries/s", ylim=(0, None))
            for system, windows in systems.items():
                seconds = [row["second"] for row in windows]
                missed.plot(seconds, [row["missed"] for row in windows], label=system)
                cost.plot(seconds, [row["dollars_per_hour"] for row in windows], label=system)
            missed.set(title="miss rate", xlabel="s")
            cost.set(title="dollars per hour", xlabel="s", ylim=(0, None))
        axes[2].legend(fontsize=6)
        return figure


def read_rates(series: Series, max_rate: float) -> NDArray[np.float64]:
    """Return the rates of a series. Raises ValueError for an unknown source."""
    if series.source == "nasa":
        counts = busiest(read_nasa_day(series.start), series.minutes)
    elif series.source == "azure":
        counts = read_azure_hour(series.start)[: series.minutes]
    else:
        raise ValueError(f"series.source: got {series.source!r}, wanted nasa or azure")
    return rescale(counts, series.points, max_rate)


def _case_of(series: Series, scene: Scene) -> PipelineCase:
    return pipeline_case(series.pipeline or scene.pipeline, ms(series.slo_ms), series.hardware)


def _describe(series: Series, scene: Scene) -> str:
    case, max_rate = _case_of(series, scene), series.max_rate or scene.max_rate
    slo_ms, kinds = case.structure.slo_ns / 1e6, ", ".join(case.hardware)
    return f"{case.structure.name}, SLO {slo_ms:g} ms, at most {max_rate:g} queries/s, on {kinds}"


def _serve_series(task: Task) -> tuple[list[dict[str, Any]], dict[str, list[dict[str, Any]]]]:
    """Return a row for each system, and its windows."""
    series, scene, seed = task
    case = _case_of(series, scene)
    rates = read_rates(series, series.max_rate or scene.max_rate)
    steps = [RateStep(scene.point_seconds, float(rate)) for rate in rates]
    planned = round(scene.planned_part * len(steps))
    sample_ns, live_ns = gamma_steps(steps[:planned], [seed, 1]), gamma_steps(steps[planned:], [seed, 2])
    plan = case.plan(sample_ns, seed).plan
    rows, windows = [], {}
    oracle = _oracle_dollars(case, live_ns, seed) if scene.oracle else 0.0
    runs: dict[str, tuple[ServedRun, Any]] = {}
    for name, policy in scaling_policies(case, plan, sample_ns, seed).items():
        runs[name] = serve(case, plan.placements, live_ns, policy, seed + 1), plan.placements
    for name, peak in (("cg-mean", False), ("cg-peak", True)):
        units, autoscale = coarse_grained(case, sample_ns, peak, seed)
        runs[name] = serve(case, units, live_ns, autoscale, seed + 1), units
    for name, (run, configuration) in runs.items():
        rows.append(_row(series.name, name, run, oracle))
        if name in DRAWN:
            windows[name] = run.windows(WINDOW_NS, case, configuration)
    return rows, windows


def _row(series: str, system: str, run: ServedRun, oracle: float) -> dict[str, Any]:
    row = {
        "series": series,
        "system": system,
        "queries": len(run.arrivals_ns),
        "attainment": round(run.attainment, 5),
        "dollars": round(run.dollars, 3),
        "changes": len(run.changes) - 1,
    }
    return row | ({"over_oracle": round(run.dollars / oracle, 3)} if oracle else {})


def _oracle_dollars(case: PipelineCase, arrivals_ns: NDArray[np.int64], seed: int) -> float:
    """Return the cost of plans for exactly the arrivals of each minute."""
    slo_ns, end_ns, dollars = case.structure.slo_ns, int(arrivals_ns[-1]), 0.0
    for from_ns in range(0, end_ns, MINUTE_NS):
        inside = arrivals_ns[(arrivals_ns >= from_ns) & (arrivals_ns < from_ns + MINUTE_NS)] - from_ns
        if len(inside):
            span_ns = min(MINUTE_NS, end_ns - from_ns)
            repeated = [inside + again * span_ns for again in range(-(-ORACLE_SLOS * slo_ns // MINUTE_NS))]
            workload = PipelineTrace(case.structure, np.concatenate(repeated), seed)
            objective = Objective(slo_ns, confidence=0.0)
            planned = plan_greedily(Evaluator(workload, case.profiles, dict(case.hardware), objective))
            dollars += planned.report.cost_per_hour * span_ns / 3.6e12
    return dollars


def _bars(rows: list[dict[str, Any]]) -> list[Bar]:
    (row,) = [row for row in rows if row["system"] == "inferline"]
    bars = [Bar(f"{row['series']}: attainment of the tuner", row["attainment"], 0.99)]
    if "over_oracle" in row:
        bars.append(Bar(f"{row['series']}: cost / oracle's", row["over_oracle"], OVER_ORACLE, "at most"))
    return bars
