"""`horologe experiment`: the experiments of the papers, each with the bars that it must reach."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horologe_cli.output import ExitCode, Json, console, fail, fail_with, print_json, stderr_console

if TYPE_CHECKING:
    from horologe_experiments.harness.experiment import Experiment, Findings


def experiment(
    name: Annotated[str, typer.Argument(help="Name of the experiment. Without it, list all.", metavar="[NAME]")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Shortened run, under two minutes.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of arrivals and noise.")] = 1,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the figure into --out.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write NAME.json and NAME.md into this folder.")] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a value of the scene, for example cluster.devices=2.", metavar="KEY=VALUE"),
    ] = None,
    json: Json = False,
) -> None:
    """Run an experiment of a paper and compare its results with the bars. Exit code 0 only if every bar holds.

    \b
    Examples:
      horologe experiment
      horologe experiment fig5 --quick
      horologe experiment fig8 --plot --out results
      horologe experiment fig6 --json --seed 7
    """
    from horologe_experiments.harness.findings_files import findings_text
    from horologe_experiments.registry import ALL_EXPERIMENTS

    if not name:
        _list_experiments()
        return
    if name not in ALL_EXPERIMENTS:
        fail(f"NAME: got {name!r}, wanted one of {', '.join(ALL_EXPERIMENTS)}", ExitCode.USAGE)
    try:
        findings = _run(ALL_EXPERIMENTS[name], seed, quick, _parse_changes(changes or []), quiet=json)
        _write(findings, ALL_EXPERIMENTS[name], out, plot, quiet=json)
    except Exception as error:
        fail_with(error, "")
    if json:
        print_json(findings.as_json())
    else:
        console().print(findings_text(findings), markup=False, soft_wrap=True)
    if not findings.holds:
        raise SystemExit(int(ExitCode.FAILED))


def _list_experiments() -> None:
    from horologe_experiments.registry import ALL_EXPERIMENTS
    from horologe_sim.report.tables import Table

    table = Table(("", ""), left=2)
    for entry in ALL_EXPERIMENTS.values():
        table.add_row(entry.name, entry.title)
    table.print(console())


def _parse_changes(texts: list[str]) -> dict[str, Any]:
    """Parse texts `KEY=VALUE`. A value that is no TOML is taken as text."""
    import tomllib

    changes: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            fail(f"--set: got {text!r}, wanted KEY=VALUE", ExitCode.USAGE)
        try:
            changes[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            changes[key] = value
    return changes


def _run(selected: Experiment, seed: int, quick: bool, changes: dict[str, Any], quiet: bool) -> Findings:
    from rich.progress import Progress

    with Progress(console=stderr_console(), transient=True, disable=quiet) as progress:
        task = progress.add_task(selected.name, total=1.0)
        return selected.run(
            seed,
            quick,
            changes,
            lambda completed, label: progress.update(
                task, completed=completed, description=f"{selected.name}: {label}"
            ),
        )


def _write(findings: Findings, selected: Experiment, out: Path | None, plot: bool, quiet: bool) -> None:
    from horologe_experiments.harness.findings_files import write_findings

    if out is None and not plot:
        return
    try:
        paths = write_findings(findings, selected, out or Path.cwd(), plot)
    except ImportError:
        fail("--plot: needs matplotlib: pip install matplotlib", ExitCode.USAGE)
    if not quiet:
        stderr_console().print("\n".join(map(str, paths)), markup=False)
