"""Runs the planner for `horologe plan`, once or at an interval, and prints and applies the result."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_cli.output import is_silent, open_client, print_result, stderr_console
from horologe_cli.planning.planning_inputs import PlanDocument, parse_accuracy
from horologe_cli.planning.planning_problem import read_problem
from horologe_cli.planning.planning_report import draw_plan, plan_text
from horologe_cli.planning.planning_shares import find_shares, shares_text
from horologe_common.service.settings import DURATIONS, SettingsError, parse_quantity
from horologe_common.status import HorologeError
from horologe_planning.search.exact_search import find_cheapest
from horologe_planning.search.initialization import Infeasible
from horologe_planning.search.levels import with_levels
from horologe_planning.search.objective import Objective
from horologe_planning.search.planner import make_plan
from horologe_planning.search.variants import cheapest_accurate, most_accurate, with_models
from horologe_planning.tuning_plan import tuning_plan

if TYPE_CHECKING:
    from horologe_cli.commands.planning.planning_options import PlanOptions, ProblemOptions, ServerOptions
    from horologe_cli.planning.planning_problem import PlanningProblem
    from horologe_common.pipelines import PipelineStructure
    from horologe_planning.report import ReportedPlan
    from horologe_planning.search.evaluation import Evaluator


class PlanResult(NamedTuple):
    """A plan with the problem that it solves. `exact`: sentence about the exact search, empty without it."""

    document: PlanDocument
    evaluator: Evaluator
    exact: str


def plan_repeatedly(pipeline: str, traffic: ProblemOptions, options: PlanOptions, server: ServerOptions) -> None:
    """Plan, print and apply, once or at the interval. At an interval, a plan that fails is reported on standard error.

    Raises SettingsError, HorologeError and Infeasible.
    """
    if not options.every:
        plan_once(pipeline, traffic, options, server)
        return
    if not options.recent:
        raise SettingsError("--every: got no --recent, wanted it: other traffic would give the same plan again")
    interval_s = parse_quantity("--every", options.every, DURATIONS) / 1e9
    if interval_s <= 0:
        raise SettingsError(f"--every: got {options.every}, wanted more than 0")
    while True:
        try:
            plan_once(pipeline, traffic, options, server)
        except (HorologeError, Infeasible) as error:
            stderr_console().print(f"no new plan: {error}", markup=False)
        time.sleep(interval_s)


def plan_once(pipeline: str, traffic: ProblemOptions, options: PlanOptions, server: ServerOptions) -> None:
    """Read the problem, find a plan, print it, and draw and apply it if wanted. Raises as `plan_repeatedly`."""
    problem = read_problem(pipeline, traffic, server, options.recent)
    objective = Objective(problem.structure.slo_ns, options.attainment, options.confidence)
    document, evaluator, comparison = find_plan(problem, objective, options, is_silent(server.json))
    if options.pooled:
        document = find_pool(document, evaluator, is_silent(server.json))
    if options.shares:
        document = find_shares(document, evaluator, options, is_silent(server.json))
    if options.plot:
        configuration = document.plan.placements
        draw_plan(options.plot, evaluator, configuration, evaluator.forecast(configuration))
    if options.apply:
        with open_client(server.endpoint, server.keys) as client:
            client.tune("apply", msgspec.json.encode(document.sharing_plan or document.tuning_plan))
    text = plan_text(document, problem.hardware, comparison)
    if options.pooled and document.pooled is None:
        text += "\npooled: the devices of the plan do not suffice for all stages together"
    if options.shares:
        text += f"\n{shares_text(document)}"
    applied = "\napplied: `horologe tuner status` shows its replicas" if options.apply else ""
    print_result(msgspec.to_builtins(document) | {"exact": comparison}, text + applied, server.json)


def find_plan(problem: PlanningProblem, objective: Objective, options: PlanOptions, silent: bool) -> PlanResult:
    """Return the plan. Raises SettingsError for options that do not fit, Infeasible and ValueError as `make_plan`."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=stderr_console(), transient=True, disable=silent) as progress:
        task = progress.add_task("compiling the estimator", total=None)

        def evaluator_of(structure: PipelineStructure) -> Evaluator:
            title = ", ".join(stage.model for stage in structure.stages)

            def on_run(runs: int) -> None:
                progress.update(task, description=f"{title}: {runs} configurations")

            return problem.evaluator(objective, structure, on_run)

        evaluator, document = _choose(problem, options, evaluator_of)
        exact = _search_exactly(evaluator, document.report.cost_per_hour, progress, task) if options.exact else ""
    return PlanResult(document, evaluator, exact)


def find_pool(document: PlanDocument, evaluator: Evaluator, silent: bool) -> PlanDocument:
    """Return the document with the pooled plan: None if the dedicated devices do not suffice as a pool.

    If the pool is cheaper, the tuner gets it in place of the dedicated plan.
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from horologe_sim.scenario.pooled_plan import plan_pooled, pool_simulation
    from horologe_sim.scenario.pooled_tuning import pooled_tuning_plan

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=stderr_console(), transient=True, disable=silent) as progress:
        task = progress.add_task("simulating pools", total=None)
        simulation, chosen = pool_simulation(evaluator), document.tuning_plan
        pooled = plan_pooled(
            simulation,
            evaluator.hardware,
            document.plan.placements,
            lambda devices: progress.update(task, description=f"simulating a pool of {devices}"),
        )
        if pooled is not None and pooled.cost_per_hour < document.report.cost_per_hour:
            progress.update(task, description="simulating parts of the pool")
            chosen = tuning_plan(pooled_tuning_plan(simulation, pooled, document.plan))
    return msgspec.structs.replace(document, pooled=pooled, tuning_plan=chosen)


def _choose(problem: PlanningProblem, options: PlanOptions, evaluator_of: Any) -> tuple[Evaluator, PlanDocument]:
    structure, accuracy = problem.structure, parse_accuracy(options.accuracy or ())
    if options.budget and options.floor:
        raise SettingsError("--budget, --floor: got both, wanted at most one of them")
    if (options.budget or options.floor) and not accuracy:
        raise SettingsError("--accuracy: got none, wanted that of each variant, for --budget and --floor")
    if not (options.budget or options.floor):
        evaluator = evaluator_of(structure)
        plan = make_plan(evaluator)
        return evaluator, _document(evaluator, plan)
    if options.budget:
        chosen = most_accurate(structure, accuracy, evaluator_of, options.budget)
    else:
        chosen = cheapest_accurate(structure, accuracy, evaluator_of, options.floor)
    evaluator = evaluator_of(with_models(structure, chosen.models))
    return evaluator, _document(evaluator, chosen.planned, chosen.accuracy)


def _document(evaluator: Evaluator, planned: ReportedPlan, accuracy: float | None = None) -> PlanDocument:
    plan = with_levels(planned.plan, evaluator)
    return PlanDocument(plan, planned.report, tuning_plan(plan), accuracy)


def _search_exactly(evaluator: Evaluator, cost: float, progress: Any, task: Any) -> str:
    def on_cost(tried: float) -> None:
        progress.update(task, description=f"exact search: {tried:.3f} of {cost:.3f} dollars per hour")

    exact = find_cheapest(evaluator, cost, progress=on_cost)
    if not exact.complete:
        return f"exact search: not finished; the optimum is between {exact.cost:.3f} and {cost:.3f} dollars per hour"
    if exact.configuration is None:
        return "exact search: no configuration is cheaper"
    stages = "; ".join(f"{stage.stage}: {stage.describe()}" for stage in exact.configuration)
    return f"exact search: {exact.cost:.3f} dollars per hour, {1 - exact.cost / cost:.1%} less: {stages}"
