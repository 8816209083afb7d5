"""Arrival times of open loops: drawn or read from a file before a run, so that no generator or server can move them."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from horologe_load.csv_rows import read_rows, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Seed = int | Sequence[int] | np.random.Generator

MAX_ARRIVALS = 1_000_000
"""Lines of a file of arrivals."""
MAX_TRACE_ARRIVALS = 20_000_000
MAX_GAP_S = 60.0
"""Longest time without an arrival in a trace: the longest window of a traffic envelope (InferLine section 5)."""
MAX_TIME_S = 9e9
"""Seconds since 1970 in the year 2255. Times since 1970 in milliseconds are larger."""
MAX_DIGITS = 10
"""Of a count."""
ARRIVAL, COUNT = "seconds[,model]", "second,count[,model]"
STEPS = {"second": 1, "minute": 60}
"""Names of the first column of a file of counts, with its unit in seconds."""


def poisson(rate: float, seconds: float, seed: Seed) -> list[int]:
    """Return the arrival times of a Poisson process, in nanoseconds from the start, ascending.

    `rate` is in requests per second. The same seed gives the same times. Raises ValueError unless both are positive.
    """
    if rate <= 0 or seconds <= 0:
        raise ValueError(f"rate and seconds: got {rate} and {seconds}, wanted both above 0")
    rng = np.random.default_rng(seed)
    times: list[int] = np.sort(rng.integers(0, round(seconds * 1e9), rng.poisson(rate * seconds))).tolist()
    return times


def spread(rate: float, seconds: float, seed: Seed) -> list[int]:
    """Return exactly `rate` * `seconds` arrivals of a Poisson process, rounded; otherwise as `poisson`.

    A measured capacity then does not vary with the drawn number of arrivals.
    """
    times: list[int] = np.sort(
        np.random.default_rng(seed).integers(0, round(seconds * 1e9), round(rate * seconds))
    ).tolist()
    return times


def constant(rate: float, seconds: float) -> list[int]:
    """Return arrivals at equal distances, in nanoseconds from the start. `rate` is in requests per second."""
    return [round(number * 1e9 / rate) for number in range(round(rate * seconds))]


class RateStep(NamedTuple):
    """A stretch of `seconds` with `rate` requests per second, whose gaps have variance / mean^2 = `cv`."""

    seconds: float
    rate: float
    cv: float = 1.0


def gamma(rate: float, cv: float, seconds: float, seed: Seed) -> NDArray[np.int64]:
    """Return arrival times with gamma distributed gaps, in nanoseconds, ascending. See `gamma_steps`."""
    return gamma_steps([RateStep(seconds, rate, cv)], seed)


def gamma_steps(steps: Sequence[RateStep], seed: Seed) -> NDArray[np.int64]:
    """Return arrival times whose gaps are gamma distributed by the rate and CV of each step, in nanoseconds, ascending.

    CV is the variance of the gaps over their squared mean (InferLine section 2), so the shape is 1 / CV, and CV 1 is a
    Poisson process. A gap that a step cuts continues in the next step at that step's rate. A rate of 0
    gives no arrivals. Raises ValueError for a negative rate, or a CV or duration that is not positive.
    """
    rng = np.random.default_rng(seed)
    parts: list[NDArray[np.int64]] = []
    begin_s, left = 0.0, 0.0
    """`left`: the rest of the cut gap, in mean gaps."""
    for step in steps:
        if not (step.rate >= 0 and step.cv > 0 and step.seconds > 0):
            raise ValueError(f"steps: got {step}, wanted a rate of at least 0, and cv and seconds above 0")
        expected = step.rate * step.seconds
        at = np.array([left])
        while at[-1] < expected:
            gaps = rng.gamma(1 / step.cv, step.cv, int(1.1 * (expected - at[-1])) + 100)
            at = np.concatenate((at, at[-1] + np.cumsum(gaps)))
        count = int(np.searchsorted(at, expected))
        left = float(at[count] - expected)
        if count:
            parts.append(np.round((begin_s + at[:count] / step.rate) * 1e9).astype(np.int64))
        begin_s += step.seconds
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def read_arrivals(path: Path, limit: int = MAX_ARRIVALS) -> dict[str, list[int]]:
    """Read a CSV file with lines `seconds[,model]`. The first line may name the columns.

    Return ascending arrival times in nanoseconds by model. Lines without a model are under "". Raises OSError for a
    file that cannot be read, ValueError for a line that is no arrival or more than `limit` lines.
    """
    times: dict[str, list[int]] = {}
    for line, cells in read_rows(path, limit):
        if line == 1 and cells[0] == "seconds":
            continue
        _check_cells(line, cells, ARRIVAL)
        times.setdefault(cells[1] if len(cells) > 1 else "", []).append(_time_ns(line, cells[0]))
    return {model: sorted(arrivals) for model, arrivals in times.items()}


def read_counts(path: Path) -> dict[str, list[int]]:
    """Read a CSV file with lines `second,count[,model]`. Draw the arrivals of each second evenly from it.

    The first line may name the columns. If the first one is `minute`, each line is a minute. Return and raise as
    `read_arrivals`; `MAX_ARRIVALS` also bounds the sum of the counts. The same file gives the same arrivals.
    """
    rng, left, unit = np.random.default_rng(0), MAX_ARRIVALS, 1
    times: dict[str, list[int]] = {}
    for line, cells in read_rows(path, MAX_ARRIVALS):
        if line == 1 and cells[0] in STEPS:
            unit = STEPS[cells[0]]
            continue
        _check_cells(line, cells, COUNT)
        if len(cells) < 2 or not (cells[1].isascii() and cells[1].isdecimal()):
            raise ValueError(f"line {line}: got {shorten(','.join(cells))}, wanted {COUNT}")
        count = int(cells[1]) if len(cells[1]) < MAX_DIGITS else MAX_ARRIVALS + 1
        if (left := left - count) < 0:
            raise ValueError(f"line {line}: got more than {MAX_ARRIVALS:,} requests in all, wanted at most that")
        begin_ns = unit * _time_ns(line, cells[0])
        drawn = rng.integers(0, unit * 10**9, count).tolist()
        if count:
            name = cells[2] if len(cells) > 2 else ""
            times.setdefault(name, []).extend(begin_ns + time_ns for time_ns in drawn)
    return {model: sorted(arrivals) for model, arrivals in times.items()}


def read_trace(path: Path, limit: int = MAX_TRACE_ARRIVALS, max_gap_s: float = MAX_GAP_S) -> NDArray[np.int64]:
    """Read a trace for planning: a file with one arrival per line, in seconds since any origin.

    Text after a comma is ignored. Return the times in nanoseconds since the first.

    Raises OSError for a file that cannot be read. Raises ValueError with the line for an empty line, a time that is not
    a number, negative or before the one above, and a gap of more than `max_gap_s`: such traces come from recordings
    that were interrupted or put together in the wrong order.
    """
    times: list[float] = []
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if number > limit:
                raise ValueError(f"{path}: got more than {limit:,} lines")
            text = line.partition(",")[0].strip()
            try:
                time_s = float(text)
            except ValueError:
                raise ValueError(f"{path}, line {number}: got {text[:40]!r}, wanted a time in seconds") from None
            last_s = times[-1] if times else time_s
            if not (isfinite(time_s) and time_s >= 0):
                raise ValueError(f"{path}, line {number}: got {text}, wanted a time of at least 0 s")
            if time_s < last_s:
                raise ValueError(f"{path}, line {number}: got {text} after {last_s:g}, wanted the times in order")
            if time_s - last_s > max_gap_s:
                gap = f"got {time_s - last_s:g} s without an arrival, wanted at most {max_gap_s:g} s"
                raise ValueError(f"{path}, line {number}: {gap}")
            times.append(time_s)
    if not times:
        raise ValueError(f"{path}: got no arrivals, wanted at least one")
    return np.rint((np.array(times) - times[0]) * 1e9).astype(np.int64)


def _check_cells(line: int, cells: list[str], wanted: str) -> None:
    most = wanted.count(",") + 1
    if len(cells) > most:
        raise ValueError(f"line {line}: got {len(cells)} cells, wanted at most {most}: {wanted}")


def _time_ns(line: int, text: str) -> int:
    try:
        time_s = float(text)
    except ValueError:
        time_s = -1.0
    if not 0 <= time_s < MAX_TIME_S:
        raise ValueError(f"line {line}: got {shorten(text)}, wanted a time in seconds{explain_time(time_s)}")
    return round(time_s * 1e9)


def explain_time(time_s: float) -> str:
    """Return what a time may be that is too large for seconds, as the end of an error."""
    return " (is it in milliseconds or nanoseconds?)" if time_s >= MAX_TIME_S else " of at least 0"
