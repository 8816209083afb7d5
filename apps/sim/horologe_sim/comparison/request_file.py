"""Reads a CSV file with a line for each request, and finds the origin of the times in such a file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_common.clock import s
from horologe_load.arrivals import MAX_TIME_S, explain_time
from horologe_load.csv_rows import MAX_LINES, read_rows, shorten
from horologe_sim.engine.number_types import MAX_LOAD_NS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

COLUMNS = ("seconds", "model", "application", "length", "exec_ms", "slo_ms", "rows")
WHOLE, POSITIVE = ("length", "rows"), ("exec_ms", "slo_ms", "rows")
"""Columns of whole numbers, and of numbers above 0."""
MOST = {"seconds": MAX_TIME_S, "length": 1e9, "exec_ms": 1e7, "slo_ms": 1e7, "rows": 1e6}
MAX_REQUESTS = MAX_LINES
HOUR_NS = s(3600)
MAX_LOAD = f"{MAX_LOAD_NS // s(1):,} s (a week)"


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
    line: int = 0
    """Line of the file. 0: the request is not from a file."""


class RequestFile(NamedTuple):
    """Requests in order of time. `origin_ns`: time in the file at which the load starts (`find_origin_ns`)."""

    requests: list[FileRequest]
    origin_ns: int = 0


def read_requests(path: Path) -> RequestFile:
    """Read a file. The first line names the columns, in any order; only `seconds` must exist.

    Raises OSError for a file that cannot be read, ValueError for an unknown column, a wrong value, no requests, too
    many lines, or a time that is too long.
    """
    names: list[str] = []
    requests = []
    for line, cells in read_rows(path, MAX_REQUESTS):
        if not names:
            names = _check_names(cells)
            continue
        if len(cells) > len(names):
            raise ValueError(f"line {line}: got {len(cells)} cells, wanted at most {len(names)}: {','.join(names)}")
        requests.append(_read_row(line, dict(zip(names, cells, strict=False))))
    if not requests:
        raise ValueError("got no requests, wanted a line with names of columns and a line for each request")
    requests.sort(key=lambda request: request.at_ns)
    origin_ns = find_origin_ns(requests[0].at_ns, requests[-1].at_ns)
    if origin_ns:
        requests = [request._replace(at_ns=request.at_ns - origin_ns) for request in requests]
    return RequestFile(requests, origin_ns)


def find_origin_ns(first_ns: int, last_ns: int) -> int:
    """Return the time at which the load starts, for the times of the first and the last request of a file.

    0 if the first request is within an hour, else the full second of the first request: such times count from
    elsewhere, for example from 1970. Raises ValueError if the load is longer than `MAX_LOAD_NS`.
    """
    origin_ns = 0 if first_ns <= HOUR_NS else first_ns // s(1) * s(1)
    if last_ns - origin_ns > MAX_LOAD_NS:
        raise ValueError(
            f"seconds: got {(last_ns - origin_ns) / 1e9:,.0f} s until the last request, wanted at most {MAX_LOAD}; "
            "are the times in milliseconds?"
        )
    return origin_ns


def describe_origin(origin_ns: int) -> str:
    """Return a sentence for the user, empty if the times count from the start."""
    return f"times count from the first request, at {origin_ns // s(1)} s" if origin_ns else ""


def _check_names(names: Sequence[str]) -> list[str]:
    wanted = f"wanted the column seconds and some of {', '.join(COLUMNS[1:])}"
    if "seconds" not in names:
        raise ValueError(f"line 1: got {shorten(','.join(names))}, {wanted}")
    if unknown := sorted(set(names) - set(COLUMNS)):
        raise ValueError(f"line 1: got {shorten(', '.join(unknown))}, {wanted}")
    if len(set(names)) < len(names):
        raise ValueError(f"line 1: got {shorten(','.join(names))}, wanted each column once")
    return list(names)


def _read_row(line: int, row: dict[str, str]) -> FileRequest:
    values = {name: _read_number(line, name, row.get(name, "")) for name in MOST}
    if values["exec_ms"] and not row.get("model"):
        raise ValueError(f"line {line}: model: got nothing beside exec_ms {row['exec_ms']}, wanted a name")
    return FileRequest(
        round(1e9 * values["seconds"]),
        row.get("model", ""),
        row.get("application", ""),
        int(values["length"]),
        round(1e6 * values["exec_ms"]),
        round(1e6 * values["slo_ms"]),
        int(values["rows"]) or 1,
        line,
    )


def _read_number(line: int, name: str, text: str) -> float:
    if not text:
        if name == "seconds":
            raise ValueError(f"line {line}: seconds: got nothing, wanted a time in seconds")
        return 0.0
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    is_valid = 0 <= value < MOST[name] and (value >= 1e-6 or name not in POSITIVE)
    if is_valid and (name not in WHOLE or value.is_integer()):
        return value
    kind = "a whole number" if name in WHOLE else "a number"
    bounds = "above 0" if name in POSITIVE else "of at least 0"
    wanted = f"{kind} {bounds} and below {MOST[name]:,.0f}"
    if name == "seconds":
        wanted = f"a time in seconds{explain_time(value)}"
    raise ValueError(f"line {line}: {name}: got {shorten(text)}, wanted {wanted}")
