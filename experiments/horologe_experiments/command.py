"""`horologe experiment`: the paper's experiments, each with the bars it must reach."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from horologe_cli.output import ExitCode, Json, console, fail, fail_with, print_json, stderr_console

if TYPE_CHECKING:
    from horologe_experiments.harness.experiment import Experiment, Findings


def experiment(
    name: Annotated[str, typer.Argument(help="Which; none: list them.", metavar="[NAME]")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="A shortened run, under two minutes.")] = False,
    seed: Annotated[int, typer.Option(help="Of arrivals and noise.")] = 1,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the figure into --out (needs the extra `plot`).")] = False,
    out: Annotated[Path | None, typer.Option(help="Write NAME.json and NAME.md into this folder.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change the scene: KEY=VALUE, dotted.", metavar="KEY=VALUE")
    ] = None,
    json: Json = False,
) -> None:
    """Run an experiment of the paper and compare with its bars. Exit code 0 only if every bar holds.

    \b
    Examples:
      horologe experiment
      horologe experiment fig5 --quick
      horologe experiment fig8 --plot --out results
      horologe experiment fig6 --json --seed 7
    """
    known = _known()
    if not name:
        for one in known.values():
            console().print(f"{one.name:8} {one.title}", markup=False)
        return
    if name not in known:
        fail(f"NAME: got {name!r}, wanted one of {', '.join(known)}", ExitCode.USAGE)
    try:
        findings = _run(known[name], seed, quick, _changes(changes or []), quiet=json)
        _write(findings, known[name], out, plot, quiet=json)
    except Exception as error:
        fail_with(error, "")
    if json:
        print_json(findings.as_json())
    else:
        _print(findings)
    if not findings.holds:
        raise SystemExit(int(ExitCode.FAILED))


def _known() -> dict[str, Experiment]:
    from horologe_experiments.live.batching import Batching
    from horologe_experiments.live.dynamic import Dynamic
    from horologe_experiments.live.fig9 import Fig9
    from horologe_experiments.live.live import Live
    from horologe_experiments.live.overhead import Overhead
    from horologe_experiments.registry import EXPERIMENTS

    lives = (Fig9(), Live(), Dynamic(), Batching(), Overhead())
    return {**EXPERIMENTS, **{one.name: one for one in lives}}


def _changes(texts: list[str]) -> dict[str, Any]:
    """`KEY=VALUE`; values are TOML where they can be read as that, else text."""
    import tomllib

    found: dict[str, Any] = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key:
            fail(f"--set: got {text!r}, wanted KEY=VALUE", ExitCode.USAGE)
        try:
            found[key] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[key] = value
    return found


def _run(one: Experiment, seed: int, quick: bool, changes: dict[str, Any], quiet: bool) -> Findings:
    from rich.progress import Progress

    with Progress(console=stderr_console(), transient=True, disable=quiet) as progress:
        task = progress.add_task(one.name, total=1.0)
        return one.run(
            seed,
            quick,
            changes,
            lambda done, what: progress.update(task, completed=done, description=f"{one.name}: {what}"),
        )


def _write(findings: Findings, one: Experiment, out: Path | None, plot: bool, quiet: bool) -> None:
    from horologe_experiments.harness.findings_files import write_findings

    if out is None and not plot:
        return
    try:
        paths = write_findings(findings, one, out or Path.cwd(), plot)
    except ImportError:
        fail("--plot: needs matplotlib: pip install matplotlib", ExitCode.USAGE)
    if not quiet:
        stderr_console().print("\n".join(map(str, paths)), markup=False)


def _print(findings: Findings) -> None:
    from horologe_experiments.harness.findings_files import findings_text

    console().print(findings_text(findings), markup=False, soft_wrap=True)
