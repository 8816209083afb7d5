"""The cost of decisions beside that of the packages of another checkout, measured by the same script in turn."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.report import Bar

if TYPE_CHECKING:
    from collections.abc import Sequence

COST = "us_per_served"
MOST_OF_BEFORE = 0.6
TIMEOUT_S = 1800


def compare_with_before(script: str, checkout: Path, rounds: int, arguments: Sequence[str]) -> list[Bar]:
    """Run `script` with the packages of both checkouts in turn. Return a bar for each scheduler.

    The other checkout has an environment `.venv` of its own. Raises RuntimeError if a run writes no result.
    """
    own: dict[str, list[float]] = {}
    before: dict[str, list[float]] = {}
    other = str(checkout.resolve() / ".venv/bin/python")
    for turn in range(rounds):
        for python, costs in ((sys.executable, own), (other, before)):
            for row in _run(python, script, arguments):
                costs.setdefault(row["scheduler"], []).append(row[COST])
                print(f"  round {turn + 1}: {python}: {row['scheduler']} {row[COST]} us", file=sys.stderr)
    return [_bar(scheduler, own[scheduler], before[scheduler]) for scheduler in own if scheduler in before]


def _run(python: str, script: str, arguments: Sequence[str]) -> list[dict[str, Any]]:
    environment = os.environ if python == sys.executable else {**os.environ, "PYTHONPATH": ""}
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result.json"
        command = [python, script, *arguments, "--json", str(result)]
        completed = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        if not result.exists():
            raise RuntimeError(f"{' '.join(command)}: no result\n{completed.stderr[-2000:]}")
        rows: list[dict[str, Any]] = json.loads(result.read_text())["rows"]
        return rows


def _bar(scheduler: str, own: Sequence[float], before: Sequence[float]) -> Bar:
    ratio = statistics.median(cost / beside for cost, beside in zip(own, before, strict=True))
    detail = f"{statistics.median(own):.1f} us beside {statistics.median(before):.1f} us"
    return Bar(f"{scheduler}: cost per served request, of before", ratio, "<=", MOST_OF_BEFORE, "x", detail)
