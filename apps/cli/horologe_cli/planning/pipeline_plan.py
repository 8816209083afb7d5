"""The cheapest plan of a pipeline: on whole devices, on pooled devices, or on shares of devices."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from horologe_cli.output import stderr_console
from horologe_cli.planning.figures import draw_plan
from horologe_cli.planning.pipeline_report import plan_text
from horologe_cli.planning.planning_problem import parse_accuracy, read_problem
from horologe_common.interference.prediction import DEFAULT_INTERFERENCE_MODEL
from horologe_common.service.settings import SettingsError
from horologe_planning.interference.coefficients_file import CoefficientsError, read_coefficients
from horologe_planning.interference.derived_coefficients import catalogue_coefficients
from horologe_planning.joint_planning.joint_planner import joint_plan, plan_layout
from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator, ShareTimes
from horologe_planning.provisioning.workloads import DEFAULT_OPTIONS
from horologe_planning.report import ReportedPlan
from horologe_planning.search.higher_rates import with_levels
from horologe_planning.search.objective import Objective
from horologe_planning.search.pipeline_planner import make_plan, runs_limit
from horologe_planning.search.variants import cheapest_accurate, most_accurate, with_models
from horologe_sim.scenario.pooled_plan import PooledPlan, plan_pooled, pool_simulation
from horologe_sim.scenario.pooled_tuning import pooled_tuning_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from horologe_cli.commands.planning.planning_options import PlanOptions, ProblemOptions, ServerOptions
    from horologe_cli.planning.planning_problem import PlanningProblem
    from horologe_common.pipelines import PipelineStructure
    from horologe_planning.plan import Plan
    from horologe_planning.report import PlanReport
    from horologe_planning.search.evaluation import Evaluator


WHOLE, POOLED, SHARES = "whole devices", "pooled devices", "shares of devices"


class PipelineReport(msgspec.Struct, frozen=True):
    """Report of a pipeline in the document of `horologe plan make --json`."""

    made: str
    """Kind of the plan: the cheapest of the three below."""
    whole_devices: PlanReport
    pooled_devices: PooledPlan | None
    """None if the devices of the plan on whole devices do not suffice as a pool."""
    shares: PlanReport | None
    """None if no model has interference coefficients, or one of the others costs no more."""
    accuracy: float | None
    """Of the chosen variants. None without variants."""


def plan_pipeline(
    pipeline: str, traffic: ProblemOptions, options: PlanOptions, server: ServerOptions, silent: bool
) -> tuple[Plan, PipelineReport, str]:
    """Return the cheapest plan of a pipeline, with report and text. Raises SettingsError, HorologeError, Infeasible."""
    problem = read_problem(pipeline, traffic, server, options.recent)
    times = read_share_times(options, problem, live=traffic.live or options.recent)
    objective = Objective(problem.structure.slo_ns, options.attainment, options.confidence)
    with _progress(silent) as show:
        evaluator, planned, accuracy = _choose(problem, options, objective, show)
        pooled, pooled_plan = _plan_pool(evaluator, planned, show)
        costs = {WHOLE: planned.report.cost_per_hour}
        if pooled is not None:
            costs[POOLED] = pooled.cost_per_hour
        shared = plan_shares(evaluator, planned, times, min(costs.values()), show) if times else None
        plans = {WHOLE: planned.plan, POOLED: pooled_plan, SHARES: shared.plan if shared else None}
        if shared is not None:
            costs[SHARES] = shared.report.cost_per_hour
        made = min(costs, key=lambda kind: round(costs[kind], 6))  # of equal ones the first
        show(f"provisioning levels on {made}")
        plan = plans[made]
        assert plan is not None
        if made == WHOLE:
            plan = with_levels(plan, evaluator)
    if options.plot:
        draw_plan(options.plot, evaluator, planned.plan.placements, evaluator.forecast(planned.plan.placements))
    report = PipelineReport(made, planned.report, pooled, shared.report if shared else None, accuracy)
    return plan, report, plan_text(plan, planned, report, problem.hardware)


@contextmanager
def _progress(silent: bool) -> Iterator[Callable[[str], None]]:
    """Show what is computed, on standard error."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=stderr_console(), transient=True, disable=silent) as progress:
        task = progress.add_task("compiling the estimator", total=None)
        yield lambda text: progress.update(task, description=text)


def _choose(
    problem: PlanningProblem, options: PlanOptions, objective: Objective, show: Callable[[str], None]
) -> tuple[Evaluator, ReportedPlan, float | None]:
    """Return the problem, its plan on whole devices, and the accuracy of the variants if the options ask for some."""
    structure, accuracy = problem.structure, parse_accuracy(options.accuracy or ())
    if options.budget and options.floor:
        raise SettingsError("--budget, --floor: got both, wanted at most one of them")
    if (options.budget or options.floor) and not accuracy:
        raise SettingsError("--accuracy: got none, wanted that of each variant, for --budget and --floor")

    def evaluator_of(structure: PipelineStructure) -> Evaluator:
        title = ", ".join(stage.model for stage in structure.stages)
        return problem.evaluator(objective, structure, lambda runs: show(f"{title}: {runs} configurations"))

    if options.budget:
        chosen = most_accurate(structure, accuracy, evaluator_of, options.budget)
    elif options.floor:
        chosen = cheapest_accurate(structure, accuracy, evaluator_of, options.floor)
    else:
        evaluator = evaluator_of(structure)
        return evaluator, make_plan(evaluator), None
    return evaluator_of(with_models(structure, chosen.models)), chosen.planned, chosen.accuracy


def _plan_pool(
    evaluator: Evaluator, planned: ReportedPlan, show: Callable[[str], None]
) -> tuple[PooledPlan | None, Plan | None]:
    """Return the pooled devices, and the tuner's plan for them if they cost less than whole devices."""
    simulation = pool_simulation(evaluator)
    pooled = plan_pooled(
        simulation, evaluator.hardware, planned.plan.placements, lambda devices: show(f"simulating a pool of {devices}")
    )
    if pooled is None or pooled.cost_per_hour >= planned.report.cost_per_hour:
        return pooled, None
    show("simulating parts of the pool")
    return pooled, pooled_tuning_plan(simulation, pooled, planned.plan)


CATALOGUE_GPU = "v100"
"""Hardware type of the catalogue's coefficients."""


def read_share_times(options: PlanOptions, problem: PlanningProblem, *, live: bool) -> ShareTimes | None:
    """Return the times on shares by the coefficients files, without files by those of the catalogue.

    Those of the catalogue are derived from similar models, so a running system is not planned by them. None if no
    model of the pipeline has coefficients on a hardware type with a price. Raises SettingsError for a file that cannot
    be read.
    """
    margin = DEFAULT_OPTIONS.margin if options.margin is None else options.margin
    try:
        files = [read_coefficients(path) for path in options.coefficients or ()]
    except CoefficientsError as error:
        raise SettingsError(f"--coefficients: {error}") from error
    models = {file.interference_model for file in files}
    if len(models) > 1:
        raise SettingsError(f"--coefficients: got interference models {', '.join(sorted(models))}, wanted one for all")
    if files:
        times = ShareTimes({file.gpu.name: file.catalogue for file in files}, problem.profiles, margin, models.pop())
    elif live:
        return None
    else:
        known = catalogue_coefficients(problem.profiles, DEFAULT_INTERFERENCE_MODEL, CATALOGUE_GPU)
        times = ShareTimes({CATALOGUE_GPU: known}, problem.profiles, margin)
    stages = {model for stage in problem.structure.stages for model in (stage.model, *stage.variants)}
    shareable = any(times.is_shareable(kind, model) for kind in problem.hardware for model in stages)
    return times if shareable else None


def plan_shares(
    evaluator: Evaluator, whole: ReportedPlan, times: ShareTimes, cost_limit: float, show: Callable[[str], None]
) -> ReportedPlan | None:
    """Return the plan on shares, None if none was found that costs less than `cost_limit`."""
    layouts = LayoutEvaluator(evaluator, times, lambda runs: show(f"shares: {runs} layouts"))
    layout = plan_layout(layouts, cost_limit, runs_limit(evaluator))
    return joint_plan(layouts, layout, whole) if layout is not None else None
