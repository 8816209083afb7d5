"""Options of `horologe plan make` and `horologe plan estimate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from horologe_cli import output

Pipeline = Annotated[
    str, typer.Argument(help="JSON file of `horologe pipeline show`, or the name of an example.", metavar="PIPELINE")
]
Problems = Annotated[
    list[str],
    typer.Argument(
        help="A pipeline (file of `horologe pipeline show`, or name of an example), a TOML file of workloads, or both.",
        metavar="PIPELINE|WORKLOADS...",
    ),
]
Stages = Annotated[
    list[str] | None,
    typer.Option("--stage", help="Configuration of a stage. Repeat for all.", metavar="STAGE=HARDWARE:BATCH:REPLICAS"),
]
PlanFile = Annotated[Path | None, typer.Option(help="File of `horologe plan make --json`; --stage changes it.")]
Plot = Annotated[Path | None, typer.Option(help="Write a figure of latencies and costs.")]


class ProblemOptions(NamedTuple):
    """A planning problem: SLO, sample of the traffic, profiles and prices."""

    slo: Annotated[str, typer.Option(help="Deadline of a query. Default: the pipeline's.")] = ""
    trace: Annotated[Path | None, typer.Option(help="File of arrivals: seconds, one per line.")] = None
    rate: Annotated[float, typer.Option(min=0.0, help="Instead of a trace: queries per second.")] = 0.0
    cv: Annotated[float, typer.Option(min=0.01, help="With --rate: variance of the gaps over their squared mean.")] = (
        1.0
    )
    duration: Annotated[str, typer.Option(help="With --rate: length of the sample.")] = "10min"
    max_gap: Annotated[
        float, typer.Option(min=0.0, help="With --trace: longest time without an arrival, in seconds.")
    ] = 60.0
    seed: Annotated[int, typer.Option(min=0, help="Random seed of arrivals and visits.")] = 0
    profiles: Annotated[
        Path | None, typer.Option("--profiles", help="JSON file of profiles, beside those of the catalogue.")
    ] = None
    live: Annotated[
        bool,
        typer.Option("--live", help="Read the pipeline and missing profiles from --endpoint. Store the profiles."),
    ] = False
    config: Annotated[str, typer.Option(help="Settings file with the table [hardware].", metavar="FILE")] = ""
    price: Annotated[
        list[str] | None,
        typer.Option("--price", help="Dollars per hour. Repeat for several.", metavar="HARDWARE=PRICE"),
    ] = None


class PlanOptions(NamedTuple):
    """Options of the search for a plan, and of its use."""

    recent: Annotated[
        bool, typer.Option("--recent", help="Instead of a trace: the arrivals that the tuner has observed.")
    ] = False
    attainment: Annotated[float, typer.Option(min=0.0, max=0.99999, help="Part of the queries within the SLO.")] = 0.99
    confidence: Annotated[
        float, typer.Option(min=0.0, max=0.99999, help="Probability of it on unseen traffic. 0: on the sample only.")
    ] = 0.999
    accuracy: Annotated[
        list[str] | None, typer.Option(help="Accuracy of a variant. Repeat for all.", metavar="MODEL=PART")
    ] = None
    budget: Annotated[float, typer.Option(min=0.0, help="Most accurate plan within these dollars per hour.")] = 0.0
    floor: Annotated[float, typer.Option(min=0.0, max=1.0, help="Cheapest plan with this accuracy.")] = 0.0
    coefficients: Annotated[
        list[Path] | None,
        typer.Option(help="File of `horologe measure --interference`. Repeat for several GPU types.", metavar="FILE"),
    ] = None
    margin: Annotated[
        float | None,
        typer.Option(min=0.0, help="Standard deviations of predicted interference to leave room for. Default: 1."),
    ] = None
    previous: Annotated[
        Path | None, typer.Option("--from", help="Running plans of workloads to change with few moves.", metavar="PLAN")
    ] = None
    plot: Plot = None
    apply: Annotated[bool, typer.Option("--apply", help="Send the plans to the tuner of the running system.")] = False
    every: Annotated[str, typer.Option(help="With --recent: plan again at this interval, as 1h, until ^C.")] = ""


class ServerOptions(NamedTuple):
    """The running system, and the form of the output."""

    endpoint: output.Endpoint = output.DEFAULT_ENDPOINT
    keys: output.Keys = ""
    json: output.Json = False
