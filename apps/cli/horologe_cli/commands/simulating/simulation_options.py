"""Options of `horologe sim`, and those that exclude each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horologe_cli.output import ExitCode, fail

if TYPE_CHECKING:
    from collections.abc import Mapping

ScenarioFile = Annotated[
    str, typer.Argument(help="Scenario file (TOML), or the name of an example. Default: list them.", metavar="[FILE]")
]
CatalogueModels = Annotated[
    list[str] | None,
    typer.Option(help="A catalogue model, instead of a file. Repeat for several.", metavar="NAME[*COPIES]"),
]
Repository = Annotated[
    Path | None, typer.Option(help="Your model repository, with the times measured on this machine.", metavar="DIR")
]
Slo = Annotated[
    str,
    typer.Option(
        help="With --model, --models or --requests: deadline of every request. Default: that of the model, or 100ms."
    ),
]
Rate = Annotated[float, typer.Option(min=0.0, help="With --model: requests per second (Poisson), in total.")]
ArrivalsFile = Annotated[Path | None, typer.Option(help="CSV file of arrivals, seconds[,model].")]
CountsFile = Annotated[Path | None, typer.Option(help="CSV file of rates, second,count[,model] or minute,...")]
RequestsFile = Annotated[
    Path | None,
    typer.Option(
        help="CSV file of requests, with columns seconds, model, application, length, exec_ms, slo_ms, rows. Compares "
        "schedulers."
    ),
]
Schedulers = Annotated[
    str, typer.Option(help="Compare these schedulers, separated by commas. With --requests: default all.")
]
Devices = Annotated[int | None, typer.Option(min=1, help="Number of devices. Default: as in the scenario.")]
Duration = Annotated[str, typer.Option(help="With --model: duration of the load. Default: 10s, or that of the file.")]
Pages = Annotated[
    int | None, typer.Option(min=1, help="With --model: 16 MiB pages for weights, per device. Default: 1407.")
]
Noise = Annotated[str, typer.Option(help="With --model: noise of execution times, none or clockwork (default).")]
Percentage = Annotated[
    float | None,
    typer.Option(min=0.0, max=100.0, help="Find the fewest devices that answer this percentage in time."),
]
TimelineFile = Annotated[Path | None, typer.Option(help="Write a Chrome/Perfetto timeline of all actions.")]
ListModels = Annotated[bool, typer.Option("--list-models", help="List the names of the catalogue models.")]
Seed = Annotated[int | None, typer.Option(min=0, help="Random seed. Default: as in the scenario.")]

WITH_MODELS = ("--slo", "--rate", "--pages", "--noise", "--duration")
"""Options that a scenario file states itself."""


def check_options(file: str, values: Mapping[str, Any]) -> bool:
    """End the command if options exclude each other. Return False if there is nothing to simulate.

    `values`: value by option; None, empty or 0 if it is not given.
    """
    given = [name for name, value in values.items() if value]
    models = [name for name in given if name in ("--model", "--models")]
    if not (file or models or "--requests" in given):
        if given:
            wanted = "wanted one of FILE, --model, --models, --requests"
            fail(f"{', '.join(given)}: got nothing to simulate, {wanted}", ExitCode.USAGE)
        return False
    if file and models:
        fail("FILE, --model, --models: got a file and models, wanted one of them", ExitCode.USAGE)
    if file and (unused := [name for name in given if name in WITH_MODELS]):
        fail(f"FILE, {', '.join(unused)}: got both, wanted the value in the file {file}", ExitCode.USAGE)
    if "--find-devices" in given and "--devices" in given:
        fail("--find-devices, --devices: got both, wanted one of them", ExitCode.USAGE)
    return True
