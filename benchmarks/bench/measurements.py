"""All runs of a benchmark, and the medians and ratios over its rounds."""

from __future__ import annotations

import math
import statistics
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_load.samples import LoadSummary


class Load(NamedTuple):
    """A load on a model: `amount` is the number of clients, or the multiple of the capacity such as `1.5x`."""

    part: str
    model: str
    interface: str
    amount: str

    def __str__(self) -> str:
        return " ".join(self)


class Measurements:
    """Summaries by load and side, one for each round. `add` prints each to standard error."""

    def __init__(self) -> None:
        self.runs: dict[tuple[Load, str], list[LoadSummary]] = {}

    def add(self, load: Load, side: str, run: LoadSummary) -> LoadSummary:
        """Store a run, and print it. Return it."""
        self.runs.setdefault((load, side), []).append(run)
        figures = f"{run.throughput:.0f}/s, p50 {run.p50_ms:.2f}, p99 {run.p99_ms:.2f} ms"
        not_ok = f", {run.sent - run.in_time} of {run.sent} not in time" if run.sent > run.in_time else ""
        print(f"  {load}, {side}: {figures}{not_ok}", file=sys.stderr)
        for reason, count in run.reasons.items():
            print(f"    {count} x {reason}", file=sys.stderr)
        return run

    def median(self, load: Load, side: str, figure: Callable[[LoadSummary], float]) -> float:
        """Return the median of a figure over the rounds; NaN without a run."""
        runs = self.runs.get((load, side))
        return statistics.median([figure(run) for run in runs]) if runs else math.nan

    def ratio(self, load: Load, side: str, other: str, figure: Callable[[LoadSummary], float]) -> float:
        """Return the median over the rounds of a figure of `side` divided by that of `other`; NaN without runs."""
        pairs = zip(self.runs.get((load, side), ()), self.runs.get((load, other), ()), strict=False)
        ratios = [figure(run) / (figure(yard) or math.nan) for run, yard in pairs]
        return statistics.median(ratios) if ratios else math.nan

    def sides(self) -> list[str]:
        """Return the names of all sides in order of their first run."""
        return list(dict.fromkeys(side for _, side in self.runs))


def throughput(run: LoadSummary) -> float:
    """Return the OK answers per second."""
    return run.throughput


def goodput(run: LoadSummary) -> float:
    """Return the answers in time, per second."""
    return run.goodput


def p50(run: LoadSummary) -> float:
    """Return the median latency in milliseconds."""
    return run.p50_ms
