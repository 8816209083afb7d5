"""Publication of measurements: the models whose distributions are due, and their histograms, c0 and c1."""

from __future__ import annotations

import math
from bisect import bisect_right
from statistics import pvariance
from typing import TYPE_CHECKING

from horologe_common.wire import Distributions, DurationHistogram
from horologe_profiler.core.batch_fit import fit, fit_scales

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Sequence

    from horologe_profiler.core.batch_fit import Fit
    from horologe_profiler.core.measurements import Measurements, TimeWindow

BINS_MAX = 32
BIN_RATIO = 1.05
"""Least ratio of a bin's edges. The times of one input vary by more than this."""
PUBLISH_FROM = 5
"""Least number of times from which a range of lengths gets a histogram."""
BORROW_FROM, BORROW_EXPLAINED, BORROW_MAX = 10, 0.6, 64
"""A range of lengths with too few times borrows those of the other ranges if c0 + c1 * length explains at least
`BORROW_EXPLAINED` of the variance of the logarithms of at least `BORROW_FROM` times. The last `BORROW_MAX` ratios of
measured to fitted time are scaled to the range: on a noisy machine its own times would scatter in the same way."""


class PublicationSchedule:
    """Models that have changed since they were last published, and when to publish: at most every `interval_ns`.

    `audience` in the methods is the set of models that a controller serves.
    """

    def __init__(self, interval_ns: int) -> None:
        self._interval_ns = interval_ns
        self._models: dict[str, bool] = {}
        self._unsaved = False
        self._next_ns = 0

    def mark_changed(self, model: str) -> None:
        """Publish and save the model at the next time."""
        self._models[model] = self._unsaved = True

    def publish_soon(self, models: Iterable[str]) -> None:
        """Publish these models at the next tick, because a new controller has connected."""
        self._models |= dict.fromkeys(models, True)
        self._next_ns = 0

    def next_publication_ns(self, audience: Container[str]) -> int | None:
        """Return the time of the next publication; None if nothing has changed."""
        return self._next_ns if self._unsaved or any(model in audience for model in self._models) else None

    def pop_due(self, now_ns: int, audience: Container[str]) -> tuple[list[str], bool]:
        """Remove and return the models to publish, and whether to save the state."""
        self._next_ns = now_ns + self._interval_ns
        models, unsaved = [model for model in self._models if model in audience], self._unsaved
        for model in models:
            del self._models[model]
        self._unsaved = False
        return models, unsaved


def build_distributions(
    measurements: Measurements, model: str, *, dynamic: bool = False
) -> tuple[Distributions, Fit | None]:
    """Build the histograms of a model by application: first one for any length, then one for each range of lengths.

    The first histogram weighs each range by the number of its samples, because rare ranges run more often than their
    share of requests. A range with too few times borrows those of the others (`BORROW_FROM`).
    """
    fitted = fit(measurements.fit_points(model))
    applications: dict[str, list[tuple[int, TimeWindow]]] = {}
    for key, window in measurements.windows_of_model(model):
        applications.setdefault(key.application, []).append((key.length, window))
    has_lengths = any(length for windows in applications.values() for length, _ in windows)
    ratios = _borrowed_ratios(measurements, model, fitted) if has_lengths and fitted else []
    durations: list[DurationHistogram] = []
    for application, windows in applications.items():
        ranges = [
            (length, window.recent_samples, _window_times(length, window, fitted, ratios)) for length, window in windows
        ]
        durations += _durations(application, ranges)
    shortest_ns = min([entry.edges_ns[0] for entry in durations], default=0)  # no row may add less than 0 to the base
    linear_ns = min(fitted.base_ns if fitted else 0.0, shortest_ns)
    batches = fit_scales(measurements.batch_points(model), linear_ns, shortest_ns)
    slope_ns = fitted.slope_ns if has_lengths and fitted else 0.0
    message = Distributions(
        model,
        round(batches.base_ns),
        slope_ns,
        tuple(durations),
        dynamic,
        batches.scales,
        measurements.contents.get(model, ""),
    )
    return message, fitted


def _borrowed_ratios(measurements: Measurements, model: str, fitted: Fit) -> list[float]:
    """Return measured over fitted time of the model's rows, oldest first; none if the fit explains too little."""
    row_times = sorted(
        row_time for _, window in measurements.windows_of_model(model) for row_time in window.times if row_time.length
    )
    ratios = [row_time.took_ns / (fitted.base_ns + fitted.slope_ns * row_time.length) for row_time in row_times]
    if len(row_times) < BORROW_FROM:
        return []
    residual = pvariance(map(math.log, ratios))
    total = pvariance(math.log(row_time.took_ns) for row_time in row_times)
    return ratios[-BORROW_MAX:] if residual < (1 - BORROW_EXPLAINED) * total else []


def _window_times(length: int, window: TimeWindow, fitted: Fit | None, ratios: Sequence[float]) -> list[int]:
    """Return the window's times, or, if they are too few, borrowed times scaled to its upper bound of lengths."""
    if len(window.times) >= PUBLISH_FROM or not ratios or not length or fitted is None:
        return [row_time.took_ns for row_time in window.times]
    return [round(ratio * (fitted.base_ns + fitted.slope_ns * length)) for ratio in ratios]


def _durations(application: str, ranges: Sequence[tuple[int, int, list[int]]]) -> Iterable[DurationHistogram]:
    """Yield the histograms of an application. A range is (upper bound of lengths, samples, times in ns)."""
    weighted = [(max(1, samples) / len(times), took_ns) for _, samples, times in ranges for took_ns in times]
    if len(weighted) >= PUBLISH_FROM:
        yield build_histogram(application, 0, weighted)
    for length, _, times in ranges:
        if length and len(times) >= PUBLISH_FROM:
            yield build_histogram(application, length, [(1.0, took_ns) for took_ns in times])


def build_histogram(application: str, length: int, times: Sequence[tuple[float, int]]) -> DurationHistogram:
    """Build a histogram from (weight, ns) pairs.

    The bins have equal ratios from the shortest to the longest time. The counts add up to about `len(times)`.
    """
    shortest = max(1, min(took_ns for _, took_ns in times))
    end = max(shortest, *(took_ns for _, took_ns in times)) + 1
    bins = min(BINS_MAX, max(1, math.ceil(math.log(end / shortest) / math.log(BIN_RATIO))))
    inner = (round(shortest * (end / shortest) ** (index / bins)) for index in range(1, bins))
    edges = sorted({shortest, *(edge for edge in inner if shortest < edge < end), end})
    sums = [0.0] * (len(edges) - 1)
    for weight, took_ns in times:
        sums[bisect_right(edges, max(took_ns, shortest)) - 1] += weight
    scale = len(times) / sum(weight for weight, _ in times)
    counts = tuple(max(1, round(total * scale)) if total else 0 for total in sums)
    return DurationHistogram(application, length, tuple(edges), counts)
