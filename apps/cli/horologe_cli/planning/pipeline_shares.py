"""Plans of a pipeline's stages on shares of devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.interference.prediction import DEFAULT_INTERFERENCE_MODEL
from horologe_common.service.settings import SettingsError
from horologe_planning.interference.coefficients_file import CoefficientsError, read_coefficients
from horologe_planning.interference.derived_coefficients import catalogue_coefficients
from horologe_planning.joint_planning.joint_planner import joint_plan, plan_layout
from horologe_planning.joint_planning.layout_evaluation import LayoutEvaluator
from horologe_planning.joint_planning.share_times import ShareTimes
from horologe_planning.provisioning.provisioning_options import DEFAULT_OPTIONS
from horologe_planning.search.pipeline_planner import runs_limit

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_cli.commands.planning.planning_options import PlanOptions
    from horologe_cli.planning.planning_problem import PlanningProblem
    from horologe_planning.report import ReportedPlan
    from horologe_planning.search.evaluation import Evaluator

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
