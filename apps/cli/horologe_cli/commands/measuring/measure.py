"""`horologe measure`: coefficients of this machine's GPU and of models on it, for `horologe provision`."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from horologe_cli import output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def measure(
    models: Annotated[list[str], typer.Argument(help="Models of the repository.", metavar="MODEL...")],
    to: Annotated[Path, typer.Option("--output", "-o", help="Coefficients file to write.")] = Path("coefficients.json"),
    repository: Annotated[Path, typer.Option(help="Model repository.")] = Path("models"),
    device: Annotated[str, typer.Option(help="cuda, cuda:1, cpu, or emulated.")] = "cuda",
    mechanism: Annotated[str, typer.Option(help="worker.share_mechanism. Default: mps, cpu or emulated.")] = "",
    name: Annotated[str, typer.Option(help="Name of the GPU type. Default: the device's.")] = "",
    price: Annotated[float, typer.Option(min=0.0, help="Dollars per hour.")] = 1.0,
    shares: Annotated[str, typer.Option(help="Shares of the runs alone, percent.", metavar="N,N,...")] = "10,50,100",
    copies: Annotated[int, typer.Option(min=2, help="Most copies of one model at the same time.")] = 5,
    splits: Annotated[
        str, typer.Option(help="Shares of the first model of a pair. Empty: no pairs.", metavar="N,N,...")
    ] = "20,50,80",
    seconds: Annotated[float, typer.Option(min=0.05, help="Length of each run.")] = 2.0,
    assume: Annotated[
        list[str] | None,
        typer.Option(help="Value of a coefficient that is not fitted. Repeat for several.", metavar="NAME=VALUE"),
    ] = None,
    no_power: Annotated[
        bool, typer.Option("--no-power", help="Measure without NVML: plans then ignore the power cap.")
    ] = False,
    revision: Annotated[str, typer.Option(help="Revision to record. Default: Horologe's version.")] = "",
    json: output.Json = False,
) -> None:
    """Measure how models that share this machine's GPU slow each other: coefficients for `horologe provision`.

    Each model runs 11 times, alone and beside a copy, and then in pairs. Nothing else may use the device meanwhile.
    Finished runs are stored in OUTPUT.runs.json: an interrupted command continues with the next run.

    \b
    Examples:
      horologe measure resnet50 bert --price 2.5 -o h100.json
      horologe measure digits-cnn digits-mlp --device cpu --shares 50,100 --copies 2 --splits 50 --assume k4=0
    """
    from horologe_cli.measuring.measurement_report import measure_text
    from horologe_cli.measuring.measurement_run import MeasureOptions, run_measurement
    from horologe_common.interference.coefficients_file import CoefficientsError
    from horologe_common.status import HorologeError
    from horologe_tuner.core.interference.measurements import ProfileError

    options = MeasureOptions(
        models,
        to,
        repository,
        device,
        mechanism,
        name,
        price,
        shares,
        copies,
        splits,
        seconds,
        assume or (),
        no_power,
        revision,
    )
    try:
        with _progress(json) as report:
            document = run_measurement(options, report)
    except CoefficientsError as error:
        output.fail(str(error), output.ExitCode.USAGE)
    except ProfileError as error:
        output.fail(f"{error}. The runs are in {options.runs_file}; --assume NAME=VALUE fits the others")
    except (HorologeError, OSError) as error:
        if options.runs_file.exists():
            output.stderr_console().print(f"finished runs are in {options.runs_file}; the same command continues")
        output.fail_with(error, "")
    output.print_result(msgspec.to_builtins(document, str_keys=True), measure_text(document), json)


@contextmanager
def _progress(json: bool) -> Iterator[Callable[[int, int, str], None]]:
    """Show the number of finished runs and the next run."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    console = output.stderr_console()
    with Progress(*columns, console=console, transient=True, disable=output.is_silent(json)) as progress:
        task = progress.add_task("opening models", total=None)
        yield lambda done, total, run: progress.update(task, completed=done, total=total, description=run)
