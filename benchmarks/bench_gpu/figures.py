"""Quantiles, rows, and the one table they are printed in."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "p99.99": 0.9999, "max": 1.0}
ENOUGH = {"p99": 100, "p99.9": 1_000, "p99.99": 10_000}
"""Samples without which a quantile is left out."""


class Row(NamedTuple):
    """`times_ms`: quantiles by name; `notes`: other figures, by name with the unit in it."""

    section: str
    case: str
    samples: int
    times_ms: dict[str, float]
    notes: dict[str, Any]


def row(section: str, case: str, times_ns: Sequence[int] = (), **notes: Any) -> Row:
    """A row of the quantiles that this many samples can tell; `p99.99` also as a multiple of the median."""
    found: dict[str, float] = {}
    if len(times_ns):
        sorted_ms = np.sort(np.asarray(times_ns, np.float64)) / 1e6
        for name, q in QUANTILES.items():
            if len(sorted_ms) >= ENOUGH.get(name, 1):
                found[name] = float(sorted_ms[min(len(sorted_ms) - 1, int(q * len(sorted_ms)))])
        tail = next((name for name in ("p99.99", "p99.9", "p99") if name in found), None)
        if tail and found["p50"]:
            notes = {f"{tail}/p50": round(found[tail] / found["p50"], 4), **notes}
    return Row(section, case, len(times_ns), found, notes)


def table(rows: Iterable[Row]) -> str:
    """Times in milliseconds; what does not apply is empty."""
    names = list(QUANTILES)
    lines = ["| what | case | n | " + " | ".join(f"{name} ms" for name in names) + " | |"]
    lines.append("|---|---|" + "---:|" * (1 + len(names)) + "---|")
    for one in rows:
        times = [f"{one.times_ms[name]:.4g}" if name in one.times_ms else "" for name in names]
        notes = ", ".join(f"{name} {_text(value)}" for name, value in one.notes.items())
        lines.append(" | ".join([f"| {one.section}", one.case, str(one.samples or ""), *times, notes]) + " |")
    return "\n".join(lines)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def sampled(once: Callable[[], int], samples: int, seconds: float) -> list[int]:
    """What `once` returns, so often or until so much time has passed; the first tenth (at most 100) does not count."""
    for _ in range(min(100, samples // 10)):
        once()
    end_ns = time.perf_counter_ns() + round(seconds * 1e9)
    found: list[int] = []
    while len(found) < samples and (time.perf_counter_ns() < end_ns or not found):
        found.append(once())
    return found


def timed(act: Callable[[], Any]) -> int:
    """Nanoseconds on the host's clock."""
    begin_ns = time.perf_counter_ns()
    act()
    return time.perf_counter_ns() - begin_ns
