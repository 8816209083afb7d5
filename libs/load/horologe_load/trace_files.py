"""Files of arrivals: CSV lines `seconds[,model]`, in any order."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MAX_ARRIVALS = 1_000_000


def read_arrivals(path: Path, limit: int = MAX_ARRIVALS) -> dict[str, list[int]]:
    """Return ascending arrival times in nanoseconds by model; "" stands for lines that name no model.

    Raises OSError for a file that cannot be read, ValueError for a line that is no arrival or more than `limit` lines.
    """
    times: dict[str, list[int]] = {}
    with path.open(newline="") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if number > limit:
                raise ValueError(f"got more than {limit:,} lines")
            if row:
                model = row[1].strip() if len(row) > 1 else ""
                times.setdefault(model, []).append(_time_ns(number, row[0]))
    return {model: sorted(arrivals) for model, arrivals in times.items()}


def _time_ns(number: int, text: str) -> int:
    try:
        time_ns = round(float(text) * 1e9)
    except (ValueError, OverflowError):
        time_ns = -1
    if time_ns < 0:
        raise ValueError(f"line {number}: got {text!r}, wanted seconds from the beginning")
    return time_ns
