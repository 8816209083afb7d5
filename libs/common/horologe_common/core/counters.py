"""The metrics that a core counts: plain numbers, which service/metrics.py exports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.latency import BUCKETS_NS, ERROR_BUCKETS_NS, Histogram

if TYPE_CHECKING:
    from collections.abc import Sequence

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Bucket bounds of histograms of rows."""


class Stats:
    """Counters, gauges and histograms of one core, by (name, label values). Names and labels: `METRICS`."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, ...], float] = {}
        self.histograms: dict[tuple[str, ...], Histogram] = {}

    def count(self, name: str, *labels: str, by: float = 1) -> None:
        """Add `by` to a counter."""
        key = (name, *labels)
        self.values[key] = self.values.get(key, 0) + by

    def set(self, name: str, *labels: str, to: float) -> None:
        """Set a gauge."""
        self.values[name, *labels] = to

    def observe(self, name: str, *labels: str, value: int) -> None:
        """Add a value to a histogram: nanoseconds, or rows if the name ends in `_rows`."""
        key = (name, *labels)
        histogram = self.histograms.get(key)
        if histogram is None:
            histogram = self.histograms[key] = Histogram(_bounds(name))
        histogram.observe(value)

    def remove_values(self, prefix: str, *labels: str) -> None:
        """Remove the values whose name starts with `prefix` and whose first label is one of `labels`, if any is given.

        Every value is looked at, so call it once for all labels. The exporter's thread may read at the same time.
        """
        first_labels = {(label,) for label in labels}
        for values in (self.values, self.histograms):
            for key in list(values):
                if key[0].startswith(prefix) and (not labels or key[1:2] in first_labels):
                    values.pop(key, None)


def _bounds(name: str) -> Sequence[int]:
    if name.endswith("_rows"):
        return ROWS
    return ERROR_BUCKETS_NS if name.endswith("_error_seconds") else BUCKETS_NS
