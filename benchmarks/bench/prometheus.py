"""Histograms out of Prometheus' text format."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

_BUCKET = re.compile(r'^(\w+)_bucket\{(?:.*,)?le="([^"]+)".*\} (\S+)$', re.MULTILINE)


class Histogram(msgspec.Struct, frozen=True):
    """Ascending bounds, and how many observations are at most as large as each."""

    bounds: tuple[float, ...]
    counts: tuple[float, ...]

    @property
    def total(self) -> float:
        return self.counts[-1] if self.counts else 0.0

    def since(self, before: Histogram) -> Histogram:
        """What was observed after `before` was read."""
        if not before.bounds:
            return self
        earlier = dict(zip(before.bounds, before.counts, strict=True))
        counts = [count - earlier.get(bound, 0.0) for bound, count in zip(self.bounds, self.counts, strict=True)]
        return Histogram(self.bounds, tuple(counts))

    def quantile(self, q: float) -> float:
        """The upper bound of the bucket that holds quantile `q`: never less than the truth. NaN of nothing."""
        if not self.total:
            return math.nan
        pairs = zip(self.bounds, self.counts, strict=True)
        return next(bound for bound, count in pairs if count >= q * self.total)


def histogram(pages: Iterable[str], name: str) -> Histogram:
    """The histogram `name`, summed over all its labels and all pages."""
    found: dict[float, float] = {}
    for page in pages:
        for metric, bound, count in _BUCKET.findall(page):
            if metric == name:
                found[float(bound)] = found.get(float(bound), 0.0) + float(count)
    bounds = tuple(sorted(found))
    return Histogram(bounds, tuple(found[bound] for bound in bounds))
