"""Options of `horologe sim`, and those that exclude each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from horologe_cli.output import ExitCode, fail

WITH_MODELS = ("--slo", "--rate", "--pages", "--noise", "--duration")
"""Options that a scenario file states itself."""


class SimulationOptions(NamedTuple):
    """What to simulate, and on which devices. An option that is not given is None, empty or 0."""

    file: Annotated[
        str,
        typer.Argument(help="Scenario file (TOML), or the name of an example. Default: list them.", metavar="[FILE]"),
    ] = ""
    model: Annotated[
        list[str] | None,
        typer.Option(help="A catalogue model, instead of a file. Repeat for several.", metavar="NAME[*COPIES]"),
    ] = None
    models: Annotated[
        Path | None, typer.Option(help="Your model repository, with the times measured on this machine.", metavar="DIR")
    ] = None
    slo: Annotated[
        str,
        typer.Option(
            help="With --model, --models or --requests: deadline of every request. Default: that of the model, or "
            "100ms."
        ),
    ] = ""
    rate: Annotated[float, typer.Option(min=0.0, help="With --model: requests per second (Poisson), in total.")] = 0.0
    trace: Annotated[Path | None, typer.Option(help="CSV file of arrivals, seconds[,model].")] = None
    counts: Annotated[Path | None, typer.Option(help="CSV file of rates, second,count[,model] or minute,...")] = None
    requests: Annotated[
        Path | None,
        typer.Option(
            help="CSV file of requests, with columns seconds, model, application, length, exec_ms, slo_ms, rows. "
            "Compares schedulers."
        ),
    ] = None
    scheduler: Annotated[
        str, typer.Option(help="Compare these schedulers, separated by commas. With --requests: default all.")
    ] = ""
    devices: Annotated[int | None, typer.Option(min=1, help="Number of devices. Default: as in the scenario.")] = None
    duration: Annotated[
        str, typer.Option(help="With --model: duration of the load. Default: 10s, or that of the file.")
    ] = ""
    pages: Annotated[
        int | None, typer.Option(min=1, help="With --model: 16 MiB pages for weights, per device. Default: 1407.")
    ] = None
    noise: Annotated[str, typer.Option(help="With --model: noise of execution times, none or clockwork (default).")] = (
        ""
    )
    find_devices: Annotated[
        float | None,
        typer.Option(min=0.0, max=100.0, help="Find the fewest devices that answer this percentage in time."),
    ] = None
    trace_out: Annotated[Path | None, typer.Option(help="Write a Chrome/Perfetto timeline of all actions.")] = None
    seed: Annotated[int | None, typer.Option(min=0, help="Random seed. Default: as in the scenario.")] = None
    list_models: Annotated[bool, typer.Option("--list-models", help="List the names of the catalogue models.")] = False

    def given_options(self) -> list[str]:
        """Return the options that are given, as `--find-devices`. The file and --list-models are no such options."""
        fields = self._replace(file="", list_models=False)._asdict()
        return [f"--{field.replace('_', '-')}" for field, value in fields.items() if value]


def check_options(options: SimulationOptions) -> bool:
    """End the command if options exclude each other. Return False if there is nothing to simulate."""
    file, given = options.file, options.given_options()
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
