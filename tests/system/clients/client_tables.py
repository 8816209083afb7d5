"""Runs clients, and compares what they asked and got with docs/clients.md."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from horologe_sim.report.tables import Table
from system.clients.client_calls import PASSED, REFUSED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from system.clients.recorders import GrpcRecorder, HttpRecorder

TESTS = Path(__file__).parents[2]
PAGE = TESTS.parent / "docs" / "clients.md"
WRITE = "HOROLOGE_WRITE_CLIENTS"


class Run(NamedTuple):
    """The calls of a client, and its name with its version."""

    client: str
    rows: Sequence[Row]


class Row(NamedTuple):
    """A call of a client, the requests that it sent, its result, and its error if it was refused."""

    label: str
    requests: str
    result: str
    error: str = ""


def run_client(script: str, kind: str, recorder: HttpRecorder | GrpcRecorder, python: str = sys.executable) -> Run:
    """Run a script of calls, `kind` of client, through a recorder. The script reports a call on each line."""
    command = [python, "-m", f"system.clients.{script}", kind, recorder.address]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    rows = []
    client = ""
    with subprocess.Popen(
        command,
        env=environment | {"PYTHONPATH": str(TESTS)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin
        assert process.stdout
        assert process.stderr
        for line in process.stdout:
            label, result, error = json.loads(line)
            if client:
                rows.append(Row(label, take(recorder), result, error.replace(recorder.address, "ADDRESS")))
            else:
                client = f"{label} {result}"
            process.stdin.write("\n")
            process.stdin.flush()
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    return Run(client, rows)


def take(recorder: HttpRecorder | GrpcRecorder) -> str:
    """Return the requests since the last time, each once."""
    requests, recorder.requests = recorder.requests, []
    return ", ".join(f"`{request}`" for request in sorted(set(requests)))


def client_table(runs: dict[str, Run]) -> str:
    """Return the calls of several clients with the same methods, a column for each."""
    rows = {row.label: row for run in runs.values() for row in run.rows}
    table = Table(("call", "request", *runs, "error"), left=3 + len(runs))
    for label, row in rows.items():
        results = [next((row.result for row in run.rows if row.label == label), "") for run in runs.values()]
        table.add_row(f"`{label}`", row.requests, *results, row.error)
    results = [row.result for run in runs.values() for row in run.rows]
    passed, refused = results.count(PASSED), results.count(REFUSED)
    (client,) = {run.client for run in runs.values()}
    return f"{client}: {passed} calls pass, {refused} are refused.\n\n{table.markdown()}"


def check_section(name: str, runs: dict[str, Run]) -> None:
    """Assert that every call has passed or is refused, and that the page says so. With `WRITE`, write it there."""
    wrong = [
        f"{kind}: {row.label}: {row.result[-2000:]}"
        for kind, run in runs.items()
        for row in run.rows
        if row.result not in (PASSED, REFUSED)
    ]
    assert not wrong, "\n".join(wrong)
    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(f"<!-- tests: {name} -->\n")
    section, end, after = rest.partition(f"<!-- end: {name} -->\n")
    assert end, f"docs/clients.md: got no section {name!r}"
    wanted = f"\n{client_table(runs)}\n\n"
    if os.environ.get(WRITE):
        PAGE.write_text(before + begin + wanted + end + after, encoding="utf-8")
    else:
        assert section == wanted, f"docs/clients.md differs from what clients did: run `make clients`\n{wanted}"
