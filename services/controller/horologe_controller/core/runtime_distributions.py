"""Distributions of execution times: of single requests by application and length, and of batches (ORLOJ 3.2, 4.2).

A request alone takes base + l, a batch of k requests takes base + k * max(l). `base` is c0 of ORLOJ's eq. 3, and l is
what a row adds (c1 times its length). Requests with the same distribution are of one *kind*. Example: with base 2 ms, a
batch of four rows that would add 1, 1, 2 and 5 ms takes 2 + 4 * 5 = 22 ms, as every row is padded to the longest.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

import numpy as np

from horologe_common.distribution import Distribution, mixture

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from numpy.typing import NDArray

    from horologe_common.wire import Distributions

    Floats = NDArray[np.float64]

GRID = 96
"""Points of the common grid of all kinds, in even ratios: over a range of 1 to 20 they are 3% apart."""
ZERO_PROBABILITY = 1e-9
"""Replaces a probability of 0, which has no logarithm."""
HOPELESS_QUANTILE = 0.01
"""A request is refused when fewer than 1% of its kind would still finish in time."""
MAX_CACHED_KINDS = 4096
"""Cached pairs of application and length. The cache is cleared when it is full."""


class SoloDistribution:
    """Distribution of solo times of an application's requests of up to `length`; `length` 0: of any length."""

    __slots__ = ("application", "length", "solo")

    def __init__(self, application: str, length: int, solo: Distribution) -> None:
        self.application = application
        self.length = length
        self.solo = solo


class RuntimeDistributions:
    """Distributions of one model. Kinds are numbered by mean, shortest first; rows of every array are kinds."""

    def __init__(self, base_ns: int, parts: Sequence[SoloDistribution]) -> None:
        """Build from the published distributions. Raises ValueError if there are none."""
        if not parts:
            raise ValueError("parts: got none, wanted at least one distribution")
        self.base_ns = base_ns
        self.parts = sorted(_with_marginals(parts), key=lambda part: (part.solo.mean_ns, part.application, part.length))
        rows = [part.solo.excess_over(base_ns) for part in self.parts]
        self.row_mean_ns: Floats = np.array([row.mean_ns for row in rows])
        self.least_ns: list[int] = [int(base_ns + row.quantile_ns(HOPELESS_QUANTILE)) for row in rows]
        mixed = mixture([part.solo for part in parts])
        self.mean_ns = mixed.mean_ns
        self.spread = (mixed.quantile_ns(0.95) - mixed.quantile_ns(0.05)) / mixed.mean_ns
        least_ns = max(1.0, min(row.quantile_ns(1e-3) for row in rows) * 0.99)
        most_ns = max(row.edges_ns[-1] for row in rows)
        self.grid_ns: Floats = np.geomspace(least_ns, max(most_ns, 1.01 * least_ns), GRID)
        """Time that a row adds (GRID,)."""
        self.log_cdf: Floats = np.log(np.maximum(ZERO_PROBABILITY, [row.cdf(self.grid_ns) for row in rows]))
        """(kinds, GRID)."""
        self._quantiles: dict[tuple[int, float], float] = {}
        self._kind_of_part: dict[tuple[str, int], int] = {}
        self._lengths: dict[str, list[int]] = {}
        self._cached_kinds: dict[tuple[str, int], int] = {}
        for kind, part in enumerate(self.parts):
            self._kind_of_part[part.application, part.length] = kind
            if part.length:
                self._lengths.setdefault(part.application, []).append(part.length)
        for lengths in self._lengths.values():
            lengths.sort()

    def __reduce__(self) -> tuple[Any, ...]:
        return RuntimeDistributions, (self.base_ns, self.parts)

    def __len__(self) -> int:
        """Return the number of kinds."""
        return len(self.parts)

    def kind_of(self, application: str, length: int) -> int:
        """Return the most specific kind for a request: its own bucket of lengths, or the nearest above."""
        key = application, length
        kind = self._cached_kinds.get(key)
        if kind is None:
            if len(self._cached_kinds) >= MAX_CACHED_KINDS:
                self._cached_kinds.clear()
            kind = self._cached_kinds[key] = self._find_kind(application, length)
        return kind

    def row_quantile_ns(self, kind: int, q: float) -> float:
        """Return the quantile `q` of what a row of the kind adds."""
        quantile_ns = self._quantiles.get((kind, q))
        if quantile_ns is None:
            quantile_ns = self._quantiles[kind, q] = self.parts[kind].solo.excess_over(self.base_ns).quantile_ns(q)
        return quantile_ns

    def _find_kind(self, application: str, length: int) -> int:
        for name in (application, ""):
            lengths = self._lengths.get(name, [])
            if length and lengths:
                return self._kind_of_part[name, lengths[min(bisect_left(lengths, length), len(lengths) - 1)]]
            if (name, 0) in self._kind_of_part:
                return self._kind_of_part[name, 0]
        return self._kind_of_part["", 0]


def store_distributions(stored: MutableMapping[str, RuntimeDistributions], message: Distributions) -> None:
    """Replace a dynamic model's distributions, or remove those of a model that turns out to be static.

    Raises ValueError for invalid histograms.
    """
    if not (message.dynamic and message.histograms):
        stored.pop(message.model, None)
        return
    parts = [
        SoloDistribution(part.application, part.length, Distribution.from_counts(part.edges_ns, part.counts))
        for part in message.histograms
    ]
    stored[message.model] = RuntimeDistributions(message.base_ns, parts)


def _with_marginals(parts: Sequence[SoloDistribution]) -> list[SoloDistribution]:
    """Add mixtures for requests whose application, length or both have no distribution of their own."""
    by_key = {(part.application, part.length): part for part in parts}
    wider = [(part.application, 0) for part in parts] + [("", part.length) for part in parts] + [("", 0)]
    for application, length in wider:
        if (application, length) not in by_key:
            included = [
                part.solo
                for part in parts
                if (not application or part.application == application) and (not length or part.length == length)
            ]
            by_key[application, length] = SoloDistribution(application, length, mixture(included))
    return list(by_key.values())
