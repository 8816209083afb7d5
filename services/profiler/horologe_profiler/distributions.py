"""From what is remembered of a model to what is published of it: histograms, c0 and c1."""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING

from horologe_common.wire import Distributions, Durations
from horologe_profiler.fit import fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_profiler.fit import Fit
    from horologe_profiler.memory import Memory, Part

BINS_MAX = 32
BIN_RATIO = 1.05
"""Bins are at least so wide: finer than times of one input differ."""
PUBLISH_FROM = 5
"""Fewer times say too little of a range of lengths."""


def distributions(memory: Memory, model: str) -> tuple[Distributions, Fit | None]:
    """All of a model, by application: a part for each range of lengths, and first one for any length.

    That one weighs each range by how often it was sampled, not by how often it was run: rare ones are run more often
    than they come.
    """
    applications: dict[str, list[tuple[int, Part]]] = {}
    for key, part in memory.of(model):
        applications.setdefault(key.application, []).append((key.length, part))
    parts = [one for application, found in applications.items() for one in _parts(application, found)]
    found_fit = fit(memory.points(model))
    base_ns = slope_ns = 0.0
    if found_fit is not None:
        base_ns = min([found_fit.base_ns, *(one.edges_ns[0] for one in parts)])  # a row has no negative part
        if any(length for found in applications.values() for length, _ in found):
            slope_ns = found_fit.slope_ns
    return Distributions(model, round(base_ns), slope_ns, tuple(parts)), found_fit


def _parts(application: str, found: Sequence[tuple[int, Part]]) -> Iterable[Durations]:
    weighted = [
        (max(1, part.weight) / len(part.times), took.took_ns)
        for _, part in found
        for took in part.times
    ]  # fmt: skip
    if len(weighted) >= PUBLISH_FROM:
        yield histogram(application, 0, weighted)
    for length, part in found:
        if length and len(part.times) >= PUBLISH_FROM:
            yield histogram(application, length, [(1.0, took.took_ns) for took in part.times])


def histogram(application: str, length: int, times: Sequence[tuple[float, int]]) -> Durations:
    """Of (weight, ns): bins of equal ratio from the shortest to the longest; counts add up to about `len(times)`."""
    shortest = max(1, min(took_ns for _, took_ns in times))
    end = max(shortest, *(took_ns for _, took_ns in times)) + 1
    bins = min(BINS_MAX, max(1, math.ceil(math.log(end / shortest) / math.log(BIN_RATIO))))
    middle = (round(shortest * (end / shortest) ** (place / bins)) for place in range(1, bins))
    edges = sorted({shortest, *(edge for edge in middle if shortest < edge < end), end})
    sums = [0.0] * (len(edges) - 1)
    for weight, took_ns in times:
        sums[bisect_right(edges, max(took_ns, shortest)) - 1] += weight
    scale = len(times) / sum(weight for weight, _ in times)
    counts = tuple(max(1, round(one * scale)) if one else 0 for one in sums)
    return Durations(application, length, tuple(edges), counts)
