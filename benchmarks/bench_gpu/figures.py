"""Rows of quantiles, and the table in which they are printed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999, "max": 1.0}
ENOUGH = {"p99": 100, "p99.9": 1_000, "p99.99": 10_000}
"""Minimum number of samples for a quantile."""


class Row(NamedTuple):
    """One measurement. `times_ms`: quantiles by name. `notes`: other figures by name, with the unit in the name."""

    section: str
    case: str
    samples: int
    times_ms: dict[str, float]
    notes: dict[str, Any]


def row(section: str, case: str, times_ns: Sequence[int] = (), **notes: Any) -> Row:
    """Build a row with the quantiles that this many samples support, and the tail as a multiple of the median."""
    quantiles: dict[str, float] = {}
    if len(times_ns):
        sorted_ms = np.sort(np.asarray(times_ns, np.float64)) / 1e6
        for name, q in QUANTILES.items():
            if len(sorted_ms) >= ENOUGH.get(name, 1):
                quantiles[name] = float(sorted_ms[min(len(sorted_ms) - 1, int(q * len(sorted_ms)))])
        tail = next((name for name in ("p99.99", "p99.9", "p99") if name in quantiles), None)
        if tail and quantiles["p50"]:
            notes = {f"{tail}/p50": round(quantiles[tail] / quantiles["p50"], 4), **notes}
    return Row(section, case, len(times_ns), quantiles, notes)


def table(rows: Iterable[Row]) -> str:
    """Return a Markdown table with times in milliseconds."""
    names = list(QUANTILES)
    lines = ["| what | case | n | " + " | ".join(f"{name} ms" for name in names) + " | |"]
    lines.append("|---|---|" + "---:|" * (1 + len(names)) + "---|")
    for entry in rows:
        times = [f"{entry.times_ms[name]:.4g}" if name in entry.times_ms else "" for name in names]
        notes = ", ".join(f"{name} {_text(value)}" for name, value in entry.notes.items())
        lines.append(" | ".join([f"| {entry.section}", entry.case, str(entry.samples or ""), *times, notes]) + " |")
    return "\n".join(lines)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sampled(sample_ns: Callable[[], int], samples: int, seconds: float) -> list[int]:
    """Call `sample_ns` until `samples` calls or `seconds` have passed, and return its results.

    The first tenth of the calls (at most 100) is a warm-up and is not returned.
    """
    for _ in range(min(100, samples // 10)):
        sample_ns()
    end_ns = time.perf_counter_ns() + round(seconds * 1e9)
    times_ns: list[int] = []
    while len(times_ns) < samples and (time.perf_counter_ns() < end_ns or not times_ns):
        times_ns.append(sample_ns())
    return times_ns


def timed(act: Callable[[], Any]) -> int:
    """Run `act` and return its duration in ns by the host's clock."""
    begin_ns = time.perf_counter_ns()
    act()
    return time.perf_counter_ns() - begin_ns
