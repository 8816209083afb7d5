"""From what is remembered of a model to what is published of it: histograms, c0 and c1."""

from __future__ import annotations

import math
from bisect import bisect_right
from statistics import pvariance
from typing import TYPE_CHECKING

from horologe_common.wire import Distributions, DurationHistogram
from horologe_profiler.core.batch_fit import fit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_profiler.core.batch_fit import Fit
    from horologe_profiler.core.measurements import Memory, Part

BINS_MAX = 32
BIN_RATIO = 1.05
"""Bins are at least so wide: finer than times of one input differ."""
PUBLISH_FROM = 5
"""Fewer times say too little of a range of lengths."""
LEND_FROM, LEND_EXPLAINED, LEND_MAX = 10, 0.6, 64
"""Where c0 + c1 * length explains so much of the variance of (the logarithms of) so many times, the last of them stand
for ranges that have too few: on a noisy machine they differ from the line, and those of such a range would too."""


def distributions(memory: Memory, model: str) -> tuple[Distributions, Fit | None]:
    """All of a model, by application: a part for each range of lengths, and first one for any length.

    That one weighs each range by how often it was sampled, not by how often it was run: rare ones are run more often
    than they come. A range that was hardly run has the times of the others, as far as length explains them.
    """
    fitted = fit(memory.points(model))
    applications: dict[str, list[tuple[int, Part]]] = {}
    for key, part in memory.of(model):
        applications.setdefault(key.application, []).append((key.length, part))
    long = any(length for found in applications.values() for length, _ in found)
    lent = _ratios(memory, model, fitted) if long and fitted else []
    parts: list[DurationHistogram] = []
    for application, found in applications.items():
        parts += _parts(
            application, [(length, part.weight, _times(length, part, fitted, lent)) for length, part in found]
        )
    base_ns = min([fitted.base_ns if fitted else 0.0, *(one.edges_ns[0] for one in parts)])  # no row adds less than 0
    return Distributions(model, round(base_ns), fitted.slope_ns if long and fitted else 0.0, tuple(parts)), fitted


def _ratios(memory: Memory, model: str, fitted: Fit) -> list[float]:
    """Times over what the line through all says, in order of time; none where it says too little."""
    times = sorted(took for _, part in memory.of(model) for took in part.times if took.length)
    ratios = [took.took_ns / (fitted.base_ns + fitted.slope_ns * took.length) for took in times]
    if len(times) < LEND_FROM:
        return []
    left, all_ = (pvariance(map(math.log, some)) for some in (ratios, [took.took_ns for took in times]))
    return ratios[-LEND_MAX:] if left < (1 - LEND_EXPLAINED) * all_ else []


def _times(length: int, part: Part, fitted: Fit | None, lent: Sequence[float]) -> list[int]:
    """The part's own, or, where these are too few, those of the others at its upper bound."""
    if len(part.times) >= PUBLISH_FROM or not lent or not length or fitted is None:
        return [took.took_ns for took in part.times]
    return [round(ratio * (fitted.base_ns + fitted.slope_ns * length)) for ratio in lent]


def _parts(application: str, found: Sequence[tuple[int, int, list[int]]]) -> Iterable[DurationHistogram]:
    """From (upper bound, weight, times) of each range."""
    weighted = [(max(1, weight) / len(times), took_ns) for _, weight, times in found for took_ns in times]
    if len(weighted) >= PUBLISH_FROM:
        yield histogram(application, 0, weighted)
    for length, _, times in found:
        if length and len(times) >= PUBLISH_FROM:
            yield histogram(application, length, [(1.0, took_ns) for took_ns in times])


def histogram(application: str, length: int, times: Sequence[tuple[float, int]]) -> DurationHistogram:
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
    return DurationHistogram(application, length, tuple(edges), counts)
