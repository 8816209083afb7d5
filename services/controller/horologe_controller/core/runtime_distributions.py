"""What requests of a model take alone, by application and length, and what batches of them take (ORLOJ 3.2, 4.2).

A request alone takes base + l, a batch of k takes base + k * max(l): base is eq. 3's c0, l what a row adds to it (c1
times its length). Requests that the same was learned of are one *kind*.
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
"""Points at which the distributions of all kinds are compared, in even ratios: over a range of 1 to 20, 3% apart."""
NEVER = 1e-9
"""Stands for a probability of 0, which has no logarithm."""
SOONEST = 0.01
"""A request is beyond help when not even this part of its kind would still be done in time."""
STEADY = 0.1
"""A model nine tenths of whose requests are within a tenth of the mean is static."""
FOUND = 4096
"""So many applications and lengths are remembered with their kinds."""


class Part:
    """One distribution of solo times: of an application's requests of up to `length`; 0: of any."""

    __slots__ = ("application", "length", "solo")

    def __init__(self, application: str, length: int, solo: Distribution) -> None:
        self.application = application
        self.length = length
        self.solo = solo


class ModelDurations:
    """One model's. Kinds are numbered by their mean, shortest first; rows of every array are kinds."""

    def __init__(self, base_ns: int, parts: Sequence[Part]) -> None:
        """Raises ValueError without parts."""
        if not parts:
            raise ValueError("parts: got none, wanted at least one distribution")
        self.base_ns = base_ns
        self.parts = sorted(_with_any(parts), key=lambda part: (part.solo.mean_ns, part.application, part.length))
        rows = [part.solo.excess_over(base_ns) for part in self.parts]
        self.row_mean_ns: Floats = np.array([row.mean_ns for row in rows])
        self.least_ns: list[int] = [int(base_ns + row.quantile_ns(SOONEST)) for row in rows]
        every = mixture([part.solo for part in parts])
        self.mean_ns = every.mean_ns
        self.spread = (every.quantile_ns(0.95) - every.quantile_ns(0.05)) / every.mean_ns
        least_ns = max(1.0, min(row.quantile_ns(1e-3) for row in rows) * 0.99)
        most_ns = max(row.edges_ns[-1] for row in rows)
        self.grid_ns: Floats = np.geomspace(least_ns, max(most_ns, 1.01 * least_ns), GRID)
        """What a row adds (GRID,)."""
        self.log_cdf: Floats = np.log(np.maximum(NEVER, [row.cdf(self.grid_ns) for row in rows]))
        """(kinds, GRID)."""
        self._quantiles: dict[tuple[int, float], float] = {}
        self._kinds: dict[tuple[str, int], int] = {}
        self._lengths: dict[str, list[int]] = {}
        self._found: dict[tuple[str, int], int] = {}
        for kind, part in enumerate(self.parts):
            self._kinds[part.application, part.length] = kind
            if part.length:
                self._lengths.setdefault(part.application, []).append(part.length)
        for lengths in self._lengths.values():
            lengths.sort()

    def __reduce__(self) -> tuple[Any, ...]:
        return ModelDurations, (self.base_ns, self.parts)

    def __len__(self) -> int:
        """Kinds."""
        return len(self.parts)

    def kind(self, application: str, length: int) -> int:
        """The most telling kind there is for such a request: its own bucket of lengths, or the nearest above."""
        key = application, length
        found = self._found.get(key)
        if found is None:
            if len(self._found) >= FOUND:
                self._found.clear()
            found = self._found[key] = self._find(application, length)
        return found

    def quantile_ns(self, kind: int, q: float) -> float:
        """What a row of the kind adds at most, with probability `q`."""
        found = self._quantiles.get((kind, q))
        if found is None:
            found = self._quantiles[kind, q] = self.parts[kind].solo.excess_over(self.base_ns).quantile_ns(q)
        return found

    def _find(self, application: str, length: int) -> int:
        for name in (application, ""):
            lengths = self._lengths.get(name, [])
            if length and lengths:
                return self._kinds[name, lengths[min(bisect_left(lengths, length), len(lengths) - 1)]]
            if (name, 0) in self._kinds:
                return self._kinds[name, 0]
        return self._kinds["", 0]


def learned(known: MutableMapping[str, ModelDurations], told: Distributions) -> None:
    """Replace what is known of a model; one that always takes about the same is static, and not in there.

    Raises ValueError for histograms that are none.
    """
    parts = [
        Part(one.application, one.length, Distribution.from_counts(one.edges_ns, one.counts)) for one in told.histograms
    ]
    durations = ModelDurations(told.base_ns, parts) if parts else None
    if durations is None or durations.spread < STEADY:
        known.pop(told.model, None)
    else:
        known[told.model] = durations


def _with_any(parts: Sequence[Part]) -> list[Part]:
    """And what is known of requests whose application is not known."""
    known = {(part.application, part.length): part for part in parts}
    lesser = [(part.application, 0) for part in parts] + [("", part.length) for part in parts] + [("", 0)]
    for application, length in lesser:
        if (application, length) not in known:
            like = [
                part.solo
                for part in parts
                if (not application or part.application == application) and (not length or part.length == length)
            ]
            known[application, length] = Part(application, length, mixture(like))
    return list(known.values())
