"""`horologe estimate` and `horologe plan`: latency and cost of a pipeline before anything is started."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from horologe_cli import output

if TYPE_CHECKING:
    from collections.abc import Iterator

Pipeline = Annotated[
    str, typer.Argument(help="JSON file of `horologe pipeline show`, or the name of an example.", metavar="PIPELINE")
]
Slo = Annotated[str, typer.Option(help="Deadline of a query. Default: the pipeline's.")]
Trace = Annotated[Path | None, typer.Option(help="File of arrivals: seconds, one per line.")]
Rate = Annotated[float, typer.Option(min=0.0, help="Instead of a trace: queries per second.")]
Cv = Annotated[float, typer.Option(min=0.01, help="With --rate: variance of the gaps over their squared mean.")]
Duration = Annotated[str, typer.Option(help="With --rate: length of the sample.")]
MaxGap = Annotated[float, typer.Option(min=0.0, help="With --trace: longest time without an arrival, in seconds.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed of arrivals and visits.")]
ProfileFile = Annotated[
    Path | None, typer.Option("--profiles", help="JSON file of profiles, beside those of the catalogue.")
]
Live = Annotated[
    bool, typer.Option("--live", help="Read the pipeline and missing profiles from --endpoint. Store the profiles.")
]
Config = Annotated[str, typer.Option(help="Settings file with the table [hardware].", metavar="FILE")]
Prices = Annotated[
    list[str] | None, typer.Option("--price", help="Dollars per hour. Repeat for several.", metavar="HARDWARE=PRICE")
]
Plot = Annotated[Path | None, typer.Option(help="Write a figure of latencies and costs.")]


def estimate(
    pipeline: Pipeline,
    stage: Annotated[
        list[str] | None,
        typer.Option(help="Configuration of a stage. Repeat for all.", metavar="STAGE=HARDWARE:BATCH:REPLICAS"),
    ] = None,
    plan: Annotated[Path | None, typer.Option(help="File of `horologe plan --json`; --stage changes it.")] = None,
    slo: Slo = "",
    trace: Trace = None,
    rate: Rate = 0.0,
    cv: Cv = 1.0,
    duration: Duration = "10min",
    max_gap: MaxGap = 60.0,
    seed: Seed = 0,
    profiles: ProfileFile = None,
    live: Live = False,
    config: Config = "",
    price: Prices = None,
    plot: Plot = None,
    endpoint: output.Endpoint = output.DEFAULT_ENDPOINT,
    keys: output.Keys = "",
    json: output.Json = False,
) -> None:
    """Estimate the latencies and the cost of a configuration of a pipeline.

    \b
    Examples:
      horologe estimate cascade --rate 150 --cv 4 --stage fast=v100:4:1 --stage slow=v100:8:2
      horologe estimate cascade --trace arrivals.csv --plan plan.json --stage slow=k80:4:6
    """
    with _command_errors(endpoint):
        from horologe_cli.planning.planning_inputs import Traffic, option_errors, read_configuration
        from horologe_cli.planning.planning_problem import ProblemSource, read_problem
        from horologe_cli.planning.planning_report import draw_plan, estimate_document, estimate_text
        from horologe_tuner.core.planning.objective import Objective

        traffic = Traffic(trace, rate, cv, duration, seed, max_gap)
        server = (endpoint, keys) if live else None
        problem = read_problem(ProblemSource(pipeline, slo, traffic, profiles, config, price or (), server))
        configuration = read_configuration(problem.structure, plan, stage or ())
        with option_errors("--stage, --plan"):
            evaluator = problem.evaluator(Objective(problem.structure.slo_ns), problem.structure)
            forecast = evaluator.forecast(configuration)
        if plot:
            draw_plan(plot, evaluator, configuration, forecast)
    document = estimate_document(evaluator, configuration, forecast)
    output.print_result(document, estimate_text(document), json)


def plan(
    pipeline: Pipeline,
    slo: Slo = "",
    trace: Trace = None,
    rate: Rate = 0.0,
    cv: Cv = 1.0,
    duration: Duration = "10min",
    max_gap: MaxGap = 60.0,
    recent: Annotated[
        bool, typer.Option("--recent", help="Instead of a trace: the arrivals that the tuner has observed.")
    ] = False,
    seed: Seed = 0,
    attainment: Annotated[float, typer.Option(min=0.0, max=0.99999, help="Part of the queries within the SLO.")] = 0.99,
    confidence: Annotated[
        float, typer.Option(min=0.0, max=0.99999, help="Probability of it on unseen traffic. 0: on the sample only.")
    ] = 0.999,
    search: Annotated[str, typer.Option(help="paper, any-order or restarts; see docs/planning.md.")] = "restarts",
    accuracy: Annotated[
        list[str] | None, typer.Option(help="Accuracy of a variant. Repeat for all.", metavar="MODEL=PART")
    ] = None,
    budget: Annotated[float, typer.Option(min=0.0, help="Most accurate plan within these dollars per hour.")] = 0.0,
    floor: Annotated[float, typer.Option(min=0.0, max=1.0, help="Cheapest plan with this accuracy.")] = 0.0,
    exact: Annotated[bool, typer.Option("--exact", help="Compare with an exact search. Small pipelines only.")] = False,
    pooled: Annotated[bool, typer.Option("--pooled", help="Also plan devices that all stages share.")] = False,
    profiles: ProfileFile = None,
    live: Live = False,
    config: Config = "",
    price: Prices = None,
    plot: Plot = None,
    apply: Annotated[bool, typer.Option("--apply", help="Send the plan to the tuner of the running system.")] = False,
    every: Annotated[str, typer.Option(help="With --recent: plan again at this interval, as 1h, until ^C.")] = "",
    endpoint: output.Endpoint = output.DEFAULT_ENDPOINT,
    keys: output.Keys = "",
    json: output.Json = False,
) -> None:
    """Find the cheapest hardware, batch sizes and replicas of a pipeline that meet its SLO.

    \b
    Examples:
      horologe plan social-media --rate 150 --cv 4 --slo 150ms
      horologe plan pipeline.json --trace arrivals.csv --price v100=2.5 --price cpu=0.05 --json > plan.json
      horologe plan cascade --live --rate 50 --apply
      horologe plan cascade --recent --every 60min --apply
      horologe plan image-processing --rate 200 --accuracy resnet50_v2=0.77 --accuracy resnet152_v2=0.79 --floor 0.78
    """
    with _command_errors(endpoint):
        from horologe_cli.planning.planning_inputs import Traffic, parse_accuracy, parse_search
        from horologe_cli.planning.planning_problem import ProblemSource
        from horologe_cli.planning.planning_run import PlanOptions, plan_repeatedly

        traffic = Traffic(trace, rate, cv, duration, seed, max_gap, recent)
        server = (endpoint, keys) if live or recent else None
        source = ProblemSource(pipeline, slo, traffic, profiles, config, price or (), server)
        found = (attainment, confidence, parse_search(search), parse_accuracy(accuracy or ()), budget, floor, exact)
        options = PlanOptions(*found, pooled, plot, json, (endpoint, keys) if apply else None, every)
        plan_repeatedly(source, options)


@contextmanager
def _command_errors(endpoint: str) -> Iterator[None]:
    """End the command with one line for infeasible problems and invalid input."""
    from horologe_common.status import HorologeError

    try:
        from horologe_tuner.core.planning.initialization import Infeasible

        try:
            yield
        except Infeasible as error:
            output.fail(str(error))
    except (HorologeError, OSError) as error:
        output.fail_with(error, endpoint)
    except ValueError as error:
        output.fail(str(error), output.ExitCode.USAGE)
