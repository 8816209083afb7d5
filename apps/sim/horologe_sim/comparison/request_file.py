"""Reads a CSV file with a line for each request."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

COLUMNS = ("seconds", "model", "application", "length", "exec_ms", "slo_ms", "rows")
TEXTS = ("model", "application")
MAX_REQUESTS = 1_000_000


class FileRequest(NamedTuple):
    """A request of the file. `exec_ns` 0: the time of its model. `slo_ns` 0: the SLO of its model."""

    at_ns: int
    model: str = ""
    """Empty: any model."""
    application: str = ""
    length: int = 0
    exec_ns: int = 0
    """Execution time alone."""
    slo_ns: int = 0
    rows: int = 1


def read_requests(path: Path, limit: int = MAX_REQUESTS) -> list[FileRequest]:
    """Return the requests in order of time. The first line names the columns, in any order; only `seconds` must exist.

    Raises OSError for a file that cannot be read, ValueError for an unknown column, a wrong value or too many lines.
    """
    requests = []
    with path.open(newline="") as file:
        reader = csv.DictReader(file, skipinitialspace=True)
        names = [name.strip() for name in reader.fieldnames or ()]
        if "seconds" not in names or (unknown := sorted(set(names) - set(COLUMNS))):
            wrong = ", ".join(unknown) if "seconds" in names else ",".join(names)
            raise ValueError(f"line 1: got {wrong!r}, wanted the column seconds and some of {', '.join(COLUMNS[1:])}")
        reader.fieldnames = names
        for number, row in enumerate(reader, start=2):
            if number > limit:
                raise ValueError(f"got more than {limit:,} lines")
            requests.append(_read_row(number, row))
    return sorted(requests, key=lambda request: request.at_ns)


def _read_row(number: int, row: dict[str, str | None]) -> FileRequest:
    values = {name: _read_number(number, name, row.get(name)) for name in COLUMNS if name not in TEXTS}
    return FileRequest(
        round(1e9 * values["seconds"]),
        (row.get("model") or "").strip(),
        (row.get("application") or "").strip(),
        int(values["length"]),
        round(1e6 * values["exec_ms"]),
        round(1e6 * values["slo_ms"]),
        max(1, int(values["rows"])),
    )


def _read_number(number: int, name: str, text: str | None) -> float:
    if text is None or not text.strip():
        if name == "seconds":
            raise ValueError(f"line {number}: seconds: got nothing, wanted seconds since the start")
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise ValueError(f"line {number}: {name}: got {text!r}, wanted a number of at least 0")
    return value
