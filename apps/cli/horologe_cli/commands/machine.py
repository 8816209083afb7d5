"""`horologe doctor`: check this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from horologe_cli.output import ExitCode, Json, console, fail, print_json
from horologe_sim.report.tables import Cell, Table

LEVEL_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
"""Levels of a finding, from best to worst, with their colours."""


def doctor(
    workers: Annotated[int, typer.Option(min=0, help="Number of workers to check for. 0: the default.")] = 0,
    config: Annotated[str, typer.Option(help="TOML file with the settings to check for.", metavar="FILE")] = "",
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="A setting to check for.", metavar="SECTION.FIELD=VALUE")
    ] = None,
    json: Json = False,
) -> None:
    """Check this machine for causes of unpredictable latency, and certificates that expire. Print a fix for each.

    \b
    Examples:
      horologe doctor
      horologe doctor --config horologe.toml
      horologe doctor --json | jq '.findings[] | select(.level != "ok")'
    The exit code is 1 if Horologe could not run on this machine at all.
    """
    from horologe_cli.doctor import checks
    from horologe_common.service.settings import SettingsError

    try:
        findings = checks.run_checks(workers, config=config, sets=sets or ())
    except SettingsError as error:
        fail(error.reason, ExitCode.USAGE)
    worst = max((finding.level for finding in findings), key=list(LEVEL_STYLES).index)
    if json:
        print_json({"level": worst, "findings": [finding._asdict() for finding in findings]})
    else:
        table = Table(("", "", ""), left=3)
        for finding in findings:
            table.add_row(Cell(finding.level, LEVEL_STYLES[finding.level]), finding.subject, finding.found)
            if finding.hint:
                table.add_row("", "", Cell(finding.hint, "dim"))
        table.print(console())
    raise SystemExit(int(ExitCode.FAILED if worst == "fail" else ExitCode.OK))
