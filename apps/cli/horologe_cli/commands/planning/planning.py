"""`horologe estimate` and `horologe plan`: latency and cost of a pipeline before anything is started."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from horologe_cli import output
from horologe_cli.commands.planning.planning_options import (
    Pipeline,
    PlanFile,
    PlanOptions,
    Plot,
    ProblemOptions,
    ServerOptions,
    Stages,
)
from horologe_cli.option_groups import expand_groups

if TYPE_CHECKING:
    from collections.abc import Iterator


@expand_groups
def estimate(
    pipeline: Pipeline,
    traffic: ProblemOptions,
    server: ServerOptions,
    stage: Stages = None,
    plan: PlanFile = None,
    plot: Plot = None,
) -> None:
    """Estimate the latencies and the cost of a configuration of a pipeline.

    \b
    Examples:
      horologe estimate cascade --rate 150 --cv 4 --stage fast=v100:4:1 --stage slow=v100:8:2
      horologe estimate cascade --trace arrivals.csv --plan plan.json --stage slow=k80:4:6
    """
    with _command_errors(server.endpoint):
        from horologe_cli.planning.planning_inputs import option_errors, read_configuration
        from horologe_cli.planning.planning_problem import read_problem
        from horologe_cli.planning.planning_report import draw_plan, estimate_document, estimate_text
        from horologe_planning.search.objective import Objective

        problem = read_problem(pipeline, traffic, server)
        configuration = read_configuration(problem.structure, plan, stage or ())
        with option_errors("--stage, --plan"):
            evaluator = problem.evaluator(Objective(problem.structure.slo_ns), problem.structure)
            forecast = evaluator.forecast(configuration)
        if plot:
            draw_plan(plot, evaluator, configuration, forecast)
    document = estimate_document(evaluator, configuration, forecast)
    output.print_result(document, estimate_text(document), server.json)


@expand_groups
def plan(pipeline: Pipeline, traffic: ProblemOptions, options: PlanOptions, server: ServerOptions) -> None:
    """Find the cheapest hardware, batch sizes and replicas of a pipeline that meet its SLO.

    \b
    Examples:
      horologe plan social-media --rate 150 --cv 4 --slo 150ms
      horologe plan pipeline.json --trace arrivals.csv --price v100=2.5 --price cpu=0.05 --json > plan.json
      horologe plan cascade --live --rate 50 --apply
      horologe plan cascade --recent --every 60min --apply
      horologe plan image-processing --rate 200 --accuracy resnet50_v2=0.77 --accuracy resnet152_v2=0.79 --floor 0.78
    """
    with _command_errors(server.endpoint):
        from horologe_cli.planning.planning_run import plan_repeatedly

        plan_repeatedly(pipeline, traffic, options, server)


@contextmanager
def _command_errors(endpoint: str) -> Iterator[None]:
    """End the command with one line for infeasible problems and invalid input."""
    from horologe_common.status import HorologeError

    try:
        from horologe_planning.search.initialization import Infeasible

        try:
            yield
        except Infeasible as error:
            output.fail(str(error))
    except (HorologeError, OSError) as error:
        output.fail_with(error, endpoint)
    except ValueError as error:
        output.fail(str(error), output.ExitCode.USAGE)
