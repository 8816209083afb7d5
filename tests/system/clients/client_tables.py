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


class Row(NamedTuple):
    """A call of a client, the requests that it sent, its result, and its error if it was refused."""

    label: str
    requests: str
    result: str
    error: str = ""


def run_client(
    script: str, kind: str, recorder: HttpRecorder | GrpcRecorder, python: str = sys.executable
) -> list[Row]:
    """Run a script of calls through a recorder. Return its calls."""
    command = [python, "-m", f"system.clients.{script}", kind, recorder.address]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    rows = []
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
            rows.append(Row(label, take(recorder), result, error))
            process.stdin.write("\n")
            process.stdin.flush()
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    return rows


def take(recorder: HttpRecorder | GrpcRecorder) -> str:
    """Return the requests since the last time, each once."""
    requests, recorder.requests = recorder.requests, []
    return ", ".join(f"`{request}`" for request in dict.fromkeys(requests))


def client_table(runs: dict[str, Sequence[Row]]) -> str:
    """Return the calls of several clients with the same methods, a column for each."""
    rows = {row.label: row for calls in runs.values() for row in calls}
    table = Table(("call", "request", *runs, "error"), left=3 + len(runs))
    for label, row in rows.items():
        results = [next((row.result for row in calls if row.label == label), "") for calls in runs.values()]
        table.add_row(f"`{label}`", row.requests, *results, row.error)
    return table.markdown()


def check_section(name: str, runs: dict[str, Sequence[Row]]) -> None:
    """Assert that every call has passed or is refused, and that the page says so. With `WRITE`, write it there."""
    wrong = [(kind, row) for kind, calls in runs.items() for row in calls if row.result not in (PASSED, REFUSED)]
    assert not wrong, "\n".join(f"{kind}: {row.label}: {row.result[-2000:]}" for kind, row in wrong)
    page = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n\n", f"\n<!-- end of {name} -->"
    before, _, rest = page.partition(begin)
    section, _, after = rest.partition(end)
    wanted = client_table(runs) + "\n"
    if os.environ.get(WRITE):
        PAGE.write_text(before + begin + wanted + end + after, encoding="utf-8")
    else:
        assert section == wanted, f"docs/clients.md differs from what the clients did: run `make clients`\n{wanted}"
