"""Arrival times of open loops: drawn or read from a file before a run, so that no generator or server can move them."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    Seed = int | Sequence[int] | np.random.Generator

MAX_ARRIVALS = 1_000_000
"""Lines of a file of arrivals."""


def poisson(rate: float, seconds: float, seed: Seed) -> list[int]:
    """Return the arrival times of a Poisson process, in nanoseconds from the start, ascending.

    `rate` is in requests per second. The same seed gives the same times. Raises ValueError unless both are positive.
    """
    if rate <= 0 or seconds <= 0:
        raise ValueError(f"rate and seconds: got {rate} and {seconds}, wanted both above 0")
    rng = np.random.default_rng(seed)
    times: list[int] = np.sort(rng.integers(0, round(seconds * 1e9), rng.poisson(rate * seconds))).tolist()
    return times


def popularity(count: int, skew: float) -> NDArray[np.float64]:
    """Return the shares of `count` models: the n-th gets a share in proportion to n ** -skew (Zipf)."""
    weights: NDArray[np.float64] = np.arange(1, count + 1, dtype=float) ** -skew
    return np.asarray(weights / weights.sum())


def read_arrivals(path: Path, limit: int = MAX_ARRIVALS) -> dict[str, list[int]]:
    """Read a CSV file with lines `seconds[,model]`. Return ascending arrival times in nanoseconds by model.

    Lines without a model are under "".

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


def read_counts(path: Path, seed: Seed = 0, limit: int = MAX_ARRIVALS) -> dict[str, list[int]]:
    """Read a CSV file with lines `second,count[,model]`. Draw the arrivals of each second evenly from it, by seed.

    Return and raise as `read_arrivals`; `limit` bounds the sum of the counts.
    """
    rng, left = np.random.default_rng(seed), limit
    times: dict[str, list[int]] = {}
    with path.open(newline="") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if row:
                count = int(row[1]) if len(row) > 1 and row[1].strip().isdecimal() else -1
                if count < 0:
                    raise ValueError(f"line {number}: got {','.join(row)!r}, wanted second,count[,model]")
                if (left := left - count) < 0:
                    raise ValueError(f"got more than {limit:,} requests")
                drawn = _time_ns(number, row[0]) + rng.integers(0, 10**9, count)
                times.setdefault(row[2].strip() if len(row) > 2 else "", []).extend(drawn.tolist())
    return {model: sorted(arrivals) for model, arrivals in times.items()}


def _time_ns(number: int, text: str) -> int:
    try:
        time_ns = round(float(text) * 1e9)
    except (ValueError, OverflowError):
        time_ns = -1
    if time_ns < 0:
        raise ValueError(f"line {number}: got {text!r}, wanted seconds since the start")
    return time_ns
