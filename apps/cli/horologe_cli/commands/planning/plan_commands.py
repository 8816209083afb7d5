"""`horologe plan ...`: make plans of pipelines and workloads, estimate them, and have the tuner carry them out."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from horologe_cli import output
from horologe_cli.commands.planning.plan_status import print_status
from horologe_cli.commands.planning.planning_options import (
    Pipeline,
    PlanFile,
    PlanOptions,
    Plot,
    ProblemOptions,
    Problems,
    ServerOptions,
    Stages,
)
from horologe_cli.option_groups import expand_groups

if TYPE_CHECKING:
    from collections.abc import Iterator

app = typer.Typer(
    help="""Plans: which models run on which devices, for which traffic and SLO.

    \b
    Example:
      horologe plan make cascade --rate 50 --json > plan.json && horologe plan apply plan.json
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command()
@expand_groups
def make(problems: Problems, traffic: ProblemOptions, options: PlanOptions, server: ServerOptions) -> None:
    """Find the cheapest devices, shares and batch sizes that meet the SLO of a pipeline, and of single models.

    A pipeline is planned on whole devices, on devices that its stages pool, and on shares of devices where interference
    coefficients are known. The cheapest is the plan. A file of workloads (TOML) is planned on shares.

    \b
    Examples:
      horologe plan make social-media --rate 150 --cv 4 --slo 150ms
      horologe plan make pipeline.json --trace arrivals.csv --price v100=2.5 --price cpu=0.05 --json > plan.json
      horologe plan make cascade --live --rate 50 --apply
      horologe plan make cascade --recent --every 60min --apply
      horologe plan make image-processing --rate 200 --accuracy resnet50_v2=0.77 --accuracy resnet152_v2=0.79 \
--floor 0.78
      horologe plan make workloads.toml --plot shares.png
      horologe plan make workloads.toml --from plan.json --apply
    """
    with _command_errors(server.endpoint):
        from horologe_cli.planning.plan_making import make_repeatedly

        make_repeatedly(problems, traffic, options, server)


@app.command()
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
      horologe plan estimate cascade --rate 150 --cv 4 --stage fast=v100:4:1 --stage slow=v100:8:2
      horologe plan estimate cascade --trace arrivals.csv --plan plan.json --stage slow=k80:4:6
    """
    with _command_errors(server.endpoint):
        from horologe_cli.planning.figures import draw_plan
        from horologe_cli.planning.pipeline_report import estimate_document, estimate_text
        from horologe_cli.planning.planning_problem import option_errors, read_configuration, read_problem
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


@app.command()
def apply(
    file: Annotated[Path, typer.Argument(help="Plans written by `horologe plan make --json`.", metavar="FILE")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what the tuner would do.")] = False,
    endpoint: output.Endpoint = output.DEFAULT_ENDPOINT,
    keys: output.Keys = "",
    json: output.Json = False,
) -> None:
    """Apply plans: start their workers, assign their models to them, and scale both from now on.

    A plan replaces an earlier plan of the same name.

    \b
    Examples:
      horologe plan apply plan.json
      horologe plan apply plan.json --dry-run
    """
    with _command_errors(endpoint):
        from horologe_cli.planning.planning_problem import read_plans
        from horologe_planning.plan import encode_plans

        document = encode_plans(read_plans(file).plans)
    print_status(
        output.call_server(endpoint, keys, lambda client: client.tune("apply", document, dry_run=dry_run)), json
    )


@app.command()
def status(
    endpoint: output.Endpoint = output.DEFAULT_ENDPOINT, keys: output.Keys = "", json: output.Json = False
) -> None:
    """Show the applied plans, their replicas, shares and traffic, the workers and the last decisions.

    \b
    Examples:
      horologe plan status
      horologe plan status --json | jq '.plans[].replicas'
    """
    print_status(output.call_server(endpoint, keys, lambda client: client.tune("status")), json)


@app.command()
def withdraw(
    name: Annotated[str, typer.Argument(help="Name of the plan: of its pipeline or workload.", metavar="NAME")],
    endpoint: output.Endpoint = output.DEFAULT_ENDPOINT,
    keys: output.Keys = "",
    json: output.Json = False,
) -> None:
    """Withdraw a plan. The workers that serve keep running, for any model.

    \b
    Example:
      horologe plan withdraw video-monitoring
    """
    print_status(output.call_server(endpoint, keys, lambda client: client.tune("withdraw", name.encode())), json)


@contextmanager
def _command_errors(endpoint: str) -> Iterator[None]:
    """End the command with one line for infeasible problems and invalid input."""
    from horologe_common.status import HorologeError

    try:
        yield
    except (HorologeError, OSError) as error:
        output.fail_with(error, endpoint)
    except ValueError as error:
        from horologe_planning.report import Infeasible

        output.fail(str(error), output.ExitCode.FAILED if isinstance(error, Infeasible) else output.ExitCode.USAGE)
