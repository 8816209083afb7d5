"""Instruments of a core: counters, gauges, histograms and rolling quantiles, all plain numbers."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from functools import lru_cache
from itertools import accumulate, product
from typing import TYPE_CHECKING, Any, NamedTuple

from horologe_common.clock import NEVER_NS, s
from horologe_common.core.buckets import BUCKETS_NS, bucket_bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.models import ModelSpec

HIGH_QUANTILE = 0.9
"""Quantile of a batch's duration that is predicted: one stalled action among ten does not change it."""
WINDOW = 10
"""Measurements per estimate (Clockwork section 5.3)."""
AGE_NS = s(2)
"""Age at which a measurement is dropped. Without it, the requests of a model could be refused forever after a stall,
because a model without requests is not measured again."""


def quantile(ascending: Sequence[Any], q: float) -> Any:
    """Return the nearest-rank quantile of sorted values: the smallest one that a part `q` (0 to 1) do not exceed.

    NaN if there is no value.
    """
    return ascending[quantile_index(len(ascending), q)] if ascending else math.nan


def quantile_index(count: int, q: float) -> int:
    """Return the index of the nearest-rank quantile in `count` sorted values."""
    return max(1, math.ceil(q * count - 1e-9)) - 1


@lru_cache(64)
def _quantile_indices(window: int, q: float) -> tuple[int, ...]:
    """Return `quantile_index` for every number of measurements up to `window`: faster than to compute it each time."""
    return tuple(quantile_index(count, q) for count in range(window + 1))


class RollingQuantile:
    """A high quantile of the last `window` measurements, none of them older than `age_ns`.

    The default is the second largest of ten (p90): one stalled action among ten does not change the estimate.
    """

    def __init__(
        self, window: int = WINDOW, age_ns: int = AGE_NS, quantile: float = HIGH_QUANTILE, alone_max: int = NEVER_NS
    ) -> None:
        """Create an empty record. A single measurement above `alone_max` has no high quantile until a second comes."""
        self._samples: deque[tuple[int, int]] = deque()
        self._ordered: list[int] = []
        self._window = window
        self._age_ns = age_ns
        self._high_indices = _quantile_indices(window, quantile)
        self._alone_max = alone_max
        self._valid_until_ns = NEVER_NS
        """Time until which `_high` is valid if nothing is measured. It is read more often than measurements arrive."""
        self._high: int | None = None

    def observe(self, now_ns: int, value: int) -> None:
        """Add a measurement."""
        samples, ordered = self._samples, self._ordered
        if len(samples) == self._window:
            del ordered[bisect_left(ordered, samples.popleft()[1])]
        samples.append((now_ns, value))
        insort(ordered, value)
        self._valid_until_ns = -1

    def high_quantile(self, now_ns: int) -> int | None:
        """Return the high quantile, or None without a recent measurement."""
        if now_ns > self._valid_until_ns:
            self._drop_old(now_ns)
            ordered, samples = self._ordered, self._samples
            self._high = ordered[self._high_indices[len(ordered)]] if ordered else None
            if len(ordered) == 1 and ordered[0] > self._alone_max:
                self._high = None
            self._valid_until_ns = samples[0][0] + self._age_ns if samples else NEVER_NS
        return self._high

    def low_quantile(self, now_ns: int) -> int | None:
        """Return the lower decile, or None without a recent measurement."""
        self._drop_old(now_ns)
        ordered = self._ordered
        return ordered[len(ordered) // 10] if ordered else None

    def median(self, now_ns: int) -> int | None:
        """Return the lower median, or None without a recent measurement."""
        self._drop_old(now_ns)
        ordered = self._ordered
        return ordered[(len(ordered) - 1) // 2] if ordered else None

    def summary(self, now_ns: int) -> tuple[int, int, int]:
        """Return (time until which this is valid, high quantile, median); zeros without a measurement."""
        self._drop_old(now_ns)
        ordered = self._ordered
        if not ordered:
            return 0, 0, 0
        count = len(ordered)
        until_ns = self._samples[0][0] + self._age_ns
        return until_ns, ordered[self._high_indices[count]], ordered[(count - 1) // 2]

    def second_largest(self) -> int | None:
        """Return the largest measurement but one, or None with fewer than two. Old ones count until they are read."""
        return self._ordered[-2] if len(self._ordered) > 1 else None

    def recent(self, now_ns: int) -> list[int]:
        """Return the measurements, the oldest first."""
        self._drop_old(now_ns)
        return [value for _, value in self._samples]

    def clear(self) -> None:
        """Drop all values."""
        self.discard_above(-1)

    def discard_above(self, value: int) -> None:
        """Drop measurements above `value`."""
        self._samples = deque(sample for sample in self._samples if sample[1] <= value)
        del self._ordered[bisect_right(self._ordered, value) :]
        self._valid_until_ns = -1

    @property
    def count(self) -> int:
        return len(self._samples)

    def _drop_old(self, now_ns: int) -> None:
        samples, ordered, oldest_ns = self._samples, self._ordered, now_ns - self._age_ns
        while samples and samples[0][0] < oldest_ns:
            del ordered[bisect_left(ordered, samples.popleft()[1])]


class Exemplar(NamedTuple):
    """A value of a histogram that belongs to a traced request. `at_ns` is this process's monotonic clock."""

    trace_id: str
    value: int
    at_ns: int


class Histogram:
    """A histogram: counts by bucket, their sum, and quantiles with the precision of a bucket."""

    def __init__(self, bounds: tuple[int, ...] = BUCKETS_NS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0
        self.exemplars: dict[int, Exemplar] = {}
        """The last exemplar of a bucket, by its position in `counts`. Empty without tracing."""

    @property
    def total(self) -> int:
        """Number of values."""
        return sum(self.counts)

    def observe(self, value: int, count: int = 1) -> None:
        """Add a value, `count` times."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.sum += value * count

    def add_exemplar(self, exemplar: Exemplar) -> None:
        """Keep the exemplar of a value that was added. It replaces the one of its bucket."""
        self.exemplars[bisect_left(self.bounds, exemplar.value)] = exemplar

    def merge(self, other: Histogram) -> None:
        """Add the values of a histogram with the same bounds."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum
        self.exemplars |= other.exemplars

    def cumulative_counts(self, positions: Iterable[int]) -> list[int]:
        """Return the number of values up to each of these bounds, and that of all values.

        The exporter's thread calls this while the core adds values: all numbers are of one moment.
        """
        cumulative = list(accumulate(self.counts))
        return [*(cumulative[position] for position in positions), cumulative[-1]]

    def quantile(self, q: float) -> int:
        """Return the upper bound of the bucket that holds quantile `q`; 0 if the histogram is empty."""
        rank, seen = q * self.total, 0
        for count, bound in zip(self.counts, (*self.bounds, self.bounds[-1]), strict=True):
            seen += count
            if seen and seen >= rank:
                return bound
        return 0


class Stats:
    """Counters, gauges and histograms of one core, by (name, label values). Names and labels: `METRICS`."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}
        self.histograms: dict[tuple[str, ...], Histogram] = {}

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add `by` to a counter."""
        key = (name, *labels)
        self.values[key] = self.values.get(key, 0) + by

    def create_counters(self, name: str, *labels: Iterable[str]) -> None:
        """Create a counter at 0 for each combination of label values.

        Otherwise the first failure creates the series, and `increase()` of Prometheus does not see it.
        """
        for values in product(*labels):
            self.values.setdefault((name, *values), 0)

    def set(self, name: str, *labels: str, to: float) -> None:
        """Set a gauge."""
        self.values[name, *labels] = to

    def observe(self, name: str, *labels: str, value: int) -> None:
        """Add a value to a histogram: nanoseconds, or rows if the name ends in `_rows`."""
        histogram = self.histograms.get((name, *labels))
        if histogram is None:
            histogram = self.create_histogram(name, *labels)
        histogram.observe(value)

    def create_histogram(self, name: str, *labels: str) -> Histogram:
        """Create a histogram without values, and return it."""
        histogram = self.histograms[name, *labels] = Histogram(bucket_bounds(name))
        return histogram

    def remove_values(self, prefix: str, *labels: str) -> None:
        """Remove the values whose name starts with `prefix` and whose first label is one of `labels`, if any is given.

        Every value is looked at, so call it once for all labels. The exporter's thread may read at the same time.
        """
        first_labels = {(label,) for label in labels}
        for values in (self.values, self.histograms):
            for key in list(values):
                if key[0].startswith(prefix) and (not labels or key[1:2] in first_labels):
                    values.pop(key, None)


MODELS_AT_ZERO = 256
"""Models whose counters of failures exist without a request. With 10,000 models, a frontend had 120,000 series."""


class ModelCounters:
    """A counter by model and status or cause. The counters of `failures` start at 0.

    Those of the first `MODELS_AT_ZERO` models exist from the start, those of other models once they have a request.
    """

    def __init__(self, stats: Stats, name: str, failures: Sequence[str]) -> None:
        self._stats = stats
        self._name = name
        self._failures = failures
        self._created: dict[tuple[str, str], bool] = {}

    def announce(self, specs: Iterable[ModelSpec]) -> None:
        """Create the counters of these models, unless there are too many."""
        for spec in specs:
            if len(self._created) >= MODELS_AT_ZERO:
                return
            self.create(spec.name, spec.version)

    def create(self, name: str, version: str) -> None:
        """Create the counters of a model that has a request."""
        if (name, version) not in self._created:
            self._created[name, version] = True
            self._stats.create_counters(self._name, (name,), (version,), self._failures)

    def count(self, name: str, version: str, status: str, by: int = 1) -> None:
        """Add to a counter."""
        self.create(name, version)
        self._stats.count(self._name, name, version, status, by=by)
