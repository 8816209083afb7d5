"""`horologe measure`: execution times of models on a running system, or their interference on this machine's GPU."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from horologe_cli import output
from horologe_cli.commands.measuring.measure_options import MeasureOptions, TimesOptions
from horologe_cli.option_groups import expand_groups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@expand_groups
def measure(
    times: TimesOptions,
    *,
    interference: Annotated[
        bool, typer.Option("--interference", help="Measure interference on this machine's GPU, without a system.")
    ] = False,
    options: MeasureOptions,
    json: output.Json = False,
) -> None:
    """Measure execution times on a running system, or how models that share this machine's GPU slow each other.

    On a running system, the models run one batch at a time, after all other requests. Prints the measured times, the
    expected times of each device, and c0 and c1 of time = c0 + c1 x batch x length. Options: --lengths, --runs.

    With --interference, writes coefficients for `horologe plan make`. Each model runs 11 times, alone and beside a
    copy, and then in pairs. Nothing else may use the device meanwhile. Finished runs are stored in OUTPUT.runs.json: an
    interrupted command continues with the next run. All other options are for it.

    \b
    Examples:
      horologe measure
      horologe measure text-encoder --lengths 16,128,512
      horologe measure digits-cnn --runs 0 --json
      horologe measure --interference resnet50 bert --price 2.5 -o h100.json
      horologe measure --interference digits-cnn digits-mlp --device cpu --shares 50,100 --copies 2 --splits 50 \
--assume k4=0
    """
    if interference:
        _measure_interference(options, json)
        return
    from horologe_cli.measuring.model_times import measure_times

    measure_times(options.models or (), times, json)


def _measure_interference(options: MeasureOptions, json: bool) -> None:
    """Measure, fit and write coefficients. A failure ends the command with its reason."""
    if not options.models:
        output.fail("MODEL: got none, wanted the models of --repository to measure", output.ExitCode.USAGE)
    from horologe_cli.measuring.measurement_report import measure_text
    from horologe_cli.measuring.measurement_run import run_measurement
    from horologe_common.status import HorologeError
    from horologe_planning.interference.coefficients_file import CoefficientsError
    from horologe_planning.interference.model_measurements import ProfileError

    try:
        with _progress(json) as report:
            document = run_measurement(options, report)
    except CoefficientsError as error:
        output.fail(str(error), output.ExitCode.USAGE)
    except ProfileError as error:
        file = options.runs_file
        output.fail(f"{error}. The runs are in {file}: delete it to measure again, or --assume NAME=VALUE")
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
