"""Rates of real services over time, rescaled to a maximum: NASA's web server in July 1995, and Azure Functions."""

from __future__ import annotations

import csv
import gzip
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from horologe_experiments.traces.azure_functions import read_calls

if TYPE_CHECKING:
    from numpy.typing import NDArray

NASA_DAYS = (1, 3, 13)
"""Days of July 1995 in the data."""
MINUTES_PER_DAY = 1440


def read_nasa_day(day: int) -> NDArray[np.float64]:
    """Return the requests of each minute of a day of July 1995. Raises ValueError for a day that is not in the data."""
    if day not in NASA_DAYS:
        raise ValueError(f"day: got {day}, wanted one of {', '.join(map(str, NASA_DAYS))}")
    data = resources.files("horologe_experiments").joinpath("data", "nasa_http_july.csv.gz").read_bytes()
    first = (day - 1) * MINUTES_PER_DAY
    counts = np.zeros(MINUTES_PER_DAY)
    for row in csv.DictReader(gzip.decompress(data).decode().splitlines()):
        if first <= (minute := int(row["minute"])) < first + MINUTES_PER_DAY:
            counts[minute - first] = float(row["requests"])
    return counts


def read_azure_hour(first_minute: int) -> NDArray[np.float64]:
    """Return the calls of all functions in each minute of an hour that starts at a minute of the trace (0 to 420)."""
    calls: NDArray[np.float64] = read_calls()[:, first_minute : first_minute + 60].sum(0)
    return calls


def rescale(counts: NDArray[np.float64], points: int, max_rate: float) -> NDArray[np.float64]:
    """Return `points` rates, the means of equal parts of `counts`, scaled so that the largest is `max_rate`.

    Raises ValueError unless `points` divides the length.
    """
    if not points or len(counts) % points:
        raise ValueError(f"points: got {points}, wanted a divisor of {len(counts)}")
    rates: NDArray[np.float64] = counts.reshape(points, -1).mean(1)
    rates *= max_rate / rates.max()
    return rates


def busiest(counts: NDArray[np.float64], minutes: int) -> NDArray[np.float64]:
    """Return the stretch of `minutes` that has the largest sum."""
    sums = np.convolve(counts, np.ones(minutes), "valid")
    first = int(sums.argmax())
    return counts[first : first + minutes]
