"""Points of `benchmarks/clients.py`: clients that share devices, what they offer, and what counts as fair."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

BATCH_MS = (0.01, 1.0, 5.0, 20.0, 80.0, 200.0)
SLO_MS = (20.0, 50.0, 100.0, 400.0, 1000.0)
LOADS = (0.9, 1.25, 2.0)
MIXES = ("two", "ten", "small", "loops")
LEAST_BATCHES = 2.5
SIZE, WORKERS, LOOPS = 8, 2, 6
PARTS = {1: 0.4, 2: 0.5, 4: 0.7, 8: 1.0}
"""Execution time of each batch size, in parts of the time of the largest."""
BARS = {"alone": 0.9, "together": 0.95, "each": 0.9, "full": 0.97}
LOSING = 0.01
"""Batches must be as full as with one client where more than this part of its requests is lost."""


class Point(NamedTuple):
    """One combination. `load` is relative to `capacity`, in requests per second."""

    batch_ms: float
    slo_ms: float
    load: float
    mix: str
    capacity: float

    def demands(self) -> dict[str, float]:
        """Return the requests per second that each client offers. Closed loops offer what they get: 0."""
        total = self.capacity * self.load
        match self.mix:
            case "two":
                return {"a": total / 2, "b": total / 2}
            case "ten":
                return {f"c{number}": total / 10 for number in range(10)}
            case "small":
                return {"small": self.capacity / 10, "flood": total - self.capacity / 10}
            case _:
                return {"open": total, "loops": 0.0}


class Result(msgspec.Struct):
    """What a run served: requests per second by client, mean rows of a batch, and the part of lost requests."""

    served: dict[str, float]
    rows: float
    lost: float


def full_batch_rate(batch_ms: float, most: float) -> float:
    """Return the requests per second that full batches serve, at most `most`: beyond it the processes decide."""
    return min(most, 1e3 * WORKERS * SIZE / batch_ms)


def grid(most: float) -> list[Point]:
    """Return all combinations with an SLO of at least 2.5 batch times."""
    return [
        Point(batch_ms, slo_ms, load, mix, full_batch_rate(batch_ms, most))
        for batch_ms in BATCH_MS
        for slo_ms in SLO_MS
        if slo_ms >= LEAST_BATCHES * batch_ms
        for load in LOADS
        for mix in MIXES
    ]


def judge(point: Point, alone: Result, shared: Result) -> dict[str, Any]:
    """Return the figures of a point, and which bars it misses. `alone`: one client with the same load."""
    demands, goodput = point.demands(), sum(alone.served.values())
    equal = point.capacity / len(demands)
    wanted = {name: min(demand, equal) for name, demand in demands.items() if demand}
    figures = {
        "alone": goodput / min(point.load * point.capacity, point.capacity),
        "together": sum(shared.served.values()) / goodput if goodput else 0.0,
        "each": min(shared.served[name] / rate for name, rate in wanted.items()),
        "full": shared.rows / alone.rows if alone.lost > LOSING else 1.0,
    }
    missed = [name for name, bar in BARS.items() if figures[name] < bar]
    return {**point._asdict(), **figures, "served": shared.served, "rows": shared.rows, "missed": missed}
