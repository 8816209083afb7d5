"""`horologe explain`: why a recorded request was refused, late or slow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from horologe_cli.output import ExitCode, Json, console, fail, fail_with, print_json
from horologe_sim.report.tables import Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console

    from horologe_sim.explaining.request_explanation import Explanation
    from horologe_sim.explaining.request_history import RequestHistory

LATEST = 20
"""Recordings of a folder that are read, the latest: each process writes one at a time."""


RequestId = Annotated[
    str,
    typer.Argument(
        help="`id` of an HTTP request, number in the header Horologe-Request of an error, `request_id` of an SDK "
        "reply or exception, or CLIENT:NUMBER.",
        metavar="REQUEST_ID",
    ),
]
Recordings = Annotated[
    list[Path] | None,
    typer.Option(help="A recording, or a folder of recordings. Repeat for several processes.", metavar="PATH"),
]


def explain(
    request_id: RequestId,
    recording: Recordings = None,
    json: Json = False,
) -> None:
    """Explain why a request was refused, late or slow: what was ahead of it, and what would have saved it.

    It reads recordings of frontend and controller, and of the selector for queries of pipelines. A service records with
    `--set recorder.directory=DIR`: its last 20,000 to 40,000 messages, which it writes on SIGUSR1 and when it stops.

    \b
    Examples:
      horologe explain 4711 --recording recordings
      horologe explain order-17 --recording edge-001-asked.rec --json
    """
    from horologe_sim.explaining.recorded_requests import find_requests
    from horologe_sim.explaining.request_explanation import explain as explain_request

    files = _find_files(recording or [Path("recordings")])
    try:
        requests = find_requests(files, request_id)
    except Exception as error:
        fail_with(error, "")
    explanations = [(request, explain_request(request)) for request in requests]
    if json:
        print_json([{"request": request, "explanation": explanation} for request, explanation in explanations])
    if not requests:
        problem = "".join(f"; a part of {name} is not readable: {damage}" for name, damage in _find_damage(files)[:1])
        fail(f"request id: got {request_id!r}, which is in none of {len(files)} recordings{problem}")
    if not json:
        for request, explanation in explanations:
            _print(console(), request, explanation)


def _find_damage(files: Iterable[Path]) -> list[tuple[str, str]]:
    """Return the names of the recordings of frontends that have unreadable parts, each with the problem."""
    from horologe_sim.replay import replay_recording

    reports = [(file.name, replay_recording(file, "frontend")) for file in files]
    return [(name, core.damage) for name, report in reports for core in report.cores.values() if core.damage]


def _find_files(paths: list[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        found = sorted(path.glob("*.rec"), key=lambda file: file.stat().st_mtime)[-LATEST:] if path.is_dir() else [path]
        if not found or not all(file.is_file() for file in found):
            fail(f"--recording {path}: no recording; a service records with --set recorder.directory", ExitCode.USAGE)
        files += found
    return files


def _print(out: Console, request: RequestHistory, explanation: Explanation) -> None:
    out.print(f"{request.client}:{request.client_id}{f' ({request.name})' if request.name else ''}", markup=False)
    out.print(f"{explanation.verdict}.", markup=False, soft_wrap=True)
    table = Table(("where the time went", "ms"), left=1)
    for part in explanation.parts:
        table.add_row(part.name, f"{part.took_ns / 1e6:.3f}")
    if explanation.parts:
        table.print(out)
    for line in explanation.ahead:
        out.print(line, markup=False, soft_wrap=True)
    for number, line in enumerate(explanation.remedies):
        out.print(f"{'It would have been saved by' if number == 0 else 'or'}: {line}", markup=False, soft_wrap=True)
