"""Options of `horologe measure`: the execution times of a running system, and the interference on a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from horologe_cli.output import DEFAULT_ENDPOINT, Endpoint, Keys


class TimesOptions(NamedTuple):
    """Measurement of execution times on a running system."""

    lengths: Annotated[
        str, typer.Option(help="Lengths of variable dimensions. Default: 16,64,256.", metavar="N,N,...")
    ] = ""
    runs: Annotated[int, typer.Option(min=0, help="Runs of each batch. 0: print expected times only.")] = 5
    endpoint: Endpoint = DEFAULT_ENDPOINT
    keys: Keys = ""


class MeasureOptions(NamedTuple):
    """What to measure with `--interference`, how long, and the files."""

    models: Annotated[
        list[str] | None,
        typer.Argument(help="Models. Default: all of the running system.", metavar="[MODEL]", show_default=False),
    ] = None
    output: Annotated[Path, typer.Option("--output", "-o", help="Coefficients file to write.")] = Path(
        "coefficients.json"
    )
    repository: Annotated[Path, typer.Option(help="Model repository.")] = Path("models")
    device: Annotated[str, typer.Option(help="cuda, cuda:1, cpu, or emulated.")] = "cuda"
    mechanism: Annotated[str, typer.Option(help="worker.share_mechanism. Default: mps, cpu or emulated.")] = ""
    name: Annotated[str, typer.Option(help="Name of the GPU type. Default: the device's.")] = ""
    price: Annotated[float, typer.Option(min=0.0, help="Dollars per hour.")] = 1.0
    shares: Annotated[str, typer.Option(help="Shares of the runs alone, percent.", metavar="N,N,...")] = "10,50,100"
    copies: Annotated[int, typer.Option(min=2, help="Most copies of one model at the same time.")] = 5
    splits: Annotated[
        str, typer.Option(help="Shares of the first model of a pair. Empty: no pairs.", metavar="N,N,...")
    ] = "20,50,80"
    seconds: Annotated[float, typer.Option(min=0.05, help="Length of each run.")] = 2.0
    assume: Annotated[
        list[str] | None,
        typer.Option(help="Value of a coefficient that is not fitted. Repeat for several.", metavar="NAME=VALUE"),
    ] = None
    no_power: Annotated[
        bool, typer.Option("--no-power", help="Measure without NVML: plans then ignore the power cap.")
    ] = False
    revision: Annotated[str, typer.Option(help="Revision to record. Default: Horologe's version.")] = ""

    @property
    def runs_file(self) -> Path:
        """File of the finished runs."""
        return self.output.with_suffix(".runs.json")
