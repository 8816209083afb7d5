"""`horologe doctor` and `horologe keys`: this machine, and who may connect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from horologe_cli.output import ExitCode, Json, console, fail, print_json

MARKS = {"ok": "[green]ok  [/]", "warn": "[yellow]warn[/]", "fail": "[red]fail[/]"}


def doctor(
    workers: Annotated[int, typer.Option(min=0, help="Workers you mean to run; 0: the default.")] = 0,
    json: Json = False,
) -> None:
    """What keeps this machine from being predictable, and what to do about it.

    \b
    Examples:
      horologe doctor
      horologe doctor --json | jq '.findings[] | select(.level != "ok")'
    Exit code 1 if something would keep Horologe from running at all.
    """
    from horologe_cli.doctor.checks import examine

    findings = examine(workers)
    worst = max((finding.level for finding in findings), key=list(MARKS).index)
    if json:
        print_json({"level": worst, "findings": [finding._asdict() for finding in findings]})
    else:
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=None, show_header=False, pad_edge=False)
        for finding in findings:
            table.add_row(MARKS[finding.level], finding.subject, escape(finding.found))
            if finding.hint:
                table.add_row("", "", escape(finding.hint), style="dim")
        console().print(table)
    raise SystemExit(int(ExitCode.FAILED if worst == "fail" else ExitCode.OK))


def keys(
    folder: Annotated[Path, typer.Argument(help="Where the keys go; existing ones stay.", metavar="DIR")],
    client: Annotated[
        list[str] | None, typer.Option(help="Name of a client to make keys for; may be repeated.", metavar="NAME")
    ] = None,
    json: Json = False,
) -> None:
    """Make the key pairs that encrypt links over the network and say who may connect.

    \b
    Examples:
      horologe keys ./keys
      horologe keys ./keys --client alice --client bob
    Then give services `--set links.keys=./keys`, and clients `keys="./keys"` or one pair of ./keys/clients.
    """
    from horologe_common.transport.keys import make_keys

    names = tuple(client or ("client",))
    for name in names:
        if not name or any(mark in name for mark in "/\\.") or name.isspace():
            fail(f"--client: got {name!r}, wanted a name without '/' and '.'", ExitCode.USAGE)
    try:
        made = make_keys(folder, names)
    except OSError as error:
        fail(f"keys: {error.filename or folder}: {error.strerror or error}", ExitCode.USAGE)
    if json:
        print_json({"folder": str(folder), "made": [str(path) for path in made]})
        return
    out = console()
    for path in made:
        out.print(f"made {path}", markup=False)
    if not made:
        out.print(f"{folder}: nothing new, all keys were there already", markup=False)
