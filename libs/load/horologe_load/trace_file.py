"""Trace files of arrivals for planning: one time in seconds per line, in order and without gaps."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

MAX_ARRIVALS = 20_000_000
MAX_GAP_S = 60.0
"""Longest time without an arrival: the longest window of a traffic envelope (InferLine section 5)."""


def read_trace(path: Path, limit: int = MAX_ARRIVALS, max_gap_s: float = MAX_GAP_S) -> NDArray[np.int64]:
    """Read a file with one arrival per line, in seconds since any origin. Text after a comma is ignored.

    Return the times in nanoseconds since the first. Raises OSError for a file that cannot be read. Raises ValueError
    with the line for an empty line, a time that is not a number, negative or before the one above, and a gap of more
    than `max_gap_s`: such traces come from recordings that were interrupted or put together in the wrong order.
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
