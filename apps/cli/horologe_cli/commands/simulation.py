"""`horologe sim` and `horologe replay`: the same cores under a virtual clock."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from horologe_cli.output import Exit, Json, console, exit_for, fail, notes

if TYPE_CHECKING:
    from horologe_sim.report import Report
    from horologe_sim.scenario import Scenario


def sim(
    file: Annotated[
        str, typer.Argument(help="Scenario (TOML), or the name of an example; none: list them.", metavar="[FILE]")
    ] = "",
    seed: Annotated[int | None, typer.Option(help="Instead of the scenario's.")] = None,
    json: Json = False,
) -> None:
    """Play a scenario with the real cores and a virtual clock: same seed, same report.

    \b
    Examples:
      horologe sim
      horologe sim two-models --seed 7
      horologe sim ./overload.toml --json
    """
    from horologe_sim import scenario

    if not file:
        for name in scenario.examples():
            console().print(name)
        return
    try:
        report = _play(scenario.load(file), seed, quiet=json)
    except Exception as error:
        exit_for(error, "")
    console().print(report.to_json() if json else report.table(), markup=False, soft_wrap=True)


def replay(
    file: Annotated[Path, typer.Argument(help="What a service's recorder wrote.", metavar="FILE")],
    core: Annotated[str, typer.Option(help="One core of it, by role or address.", metavar="NAME")] = "",
    until: Annotated[float, typer.Option(min=0.0, help="Stop after so many seconds; 0: at the end.")] = 0.0,
    json: Json = False,
) -> None:
    """Feed a recording to the same cores again, and say where they do something else than they did.

    \b
    Examples:
      horologe replay incident.rec
      horologe replay incident.rec --core controller --until 12.3
    Services record with `--set recorder.directory=DIR`. Exit code 1 if a core does something else now.
    """
    if not file.is_file():
        fail(f"{file}: no such file", Exit.USAGE)
    from horologe_sim.replay import replay as play

    try:
        found = play(file, core, until or None)
    except Exception as error:
        exit_for(error, "")
    console().print(found.to_json() if json else found.table(), markup=False, soft_wrap=True)
    if not found.cores:
        fail(f"{file}: no core called {core!r} in it", Exit.USAGE)
    if not found.identical:
        raise SystemExit(int(Exit.FAILED))


def _play(scene: Scenario, seed: int | None, quiet: bool) -> Report:
    from rich.progress import Progress

    from horologe_sim.scenario import run

    with Progress(console=notes(), transient=True, disable=quiet) as progress:
        task = progress.add_task(scene.name, total=1.0)
        return run(scene, seed, lambda done: progress.update(task, completed=done))
