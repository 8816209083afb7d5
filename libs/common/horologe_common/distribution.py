"""Distributions of execution times as histograms: mixtures, maxima, and times of batches (ORLOJ section 4.2).

Within a bin all times are equally likely, so the CDF is linear on each bin. The CDF of the maximum of independent times
is the product of their CDFs, a polynomial on each bin. Its values at the edges and its mean are exact. Only between the
edges it is approximated by a line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

BINS = 64
POINT_NS = 1.0
"""Width of a bin for a single time: the resolution of the clock."""
APART_NS = 1e-3
"""Edges closer than this are merged: they differ by rounding, and no time lies between them."""


class Distribution:
    """Immutable distribution of times in ns: increasing `edges_ns` (n + 1,) and `mass` (n,) of sum 1, float64.

    `mean_ns` can be more precise than the bins, for samples and for maxima.
    """

    __slots__ = ("_below", "edges_ns", "mass", "mean_ns")

    def __init__(self, edges_ns: ArrayLike, mass: ArrayLike, mean_ns: float | None = None) -> None:
        """Raise ValueError if the edges do not increase or the masses are not probabilities."""
        edges, masses = np.array(edges_ns, np.float64), np.array(mass, np.float64)
        if edges.ndim != 1 or masses.shape != (edges.size - 1,) or not masses.size:
            raise ValueError(f"edges_ns, mass: got shapes {edges.shape} and {masses.shape}, wanted (n + 1,) and (n,)")
        if not np.isfinite(edges).all() or (np.diff(edges) <= 0).any():
            raise ValueError("edges_ns: got some that do not increase, wanted strictly increasing ones")
        total = masses.sum()
        if not (masses >= 0).all() or not abs(total - 1) < 1e-6:
            raise ValueError(f"mass: got a sum of {total} (least {masses.min()}), wanted 1 and none below 0")
        self.edges_ns: Floats = edges
        self.mass: Floats = masses / total
        self.mean_ns = float(self.mass @ (edges[1:] + edges[:-1]) / 2) if mean_ns is None else float(mean_ns)
        self._below: Floats = np.minimum(np.concatenate(([0.0], np.cumsum(self.mass))), 1.0)
        self._below[-1] = 1.0
        for array in (self.edges_ns, self.mass, self._below):
            array.flags.writeable = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Distribution, (self.edges_ns.tolist(), self.mass.tolist(), self.mean_ns)

    def __repr__(self) -> str:
        low, high = self.edges_ns[0] / 1e6, self.edges_ns[-1] / 1e6
        return f"Distribution({low:.3f} to {high:.3f} ms, mean {self.mean_ns / 1e6:.3f} ms, {self.mass.size} bins)"

    @staticmethod
    def from_samples(samples_ns: ArrayLike, bins: int = BINS) -> Distribution:
        """Return the histogram of samples (n,) in ns, with the bins of `coarsen`. Raises ValueError without any."""
        samples = np.rint(np.asarray(samples_ns, np.float64).ravel())
        if not samples.size:
            raise ValueError("samples_ns: got none, wanted at least one")
        values, counts = np.unique(samples, return_counts=True)
        edges = np.unique(np.concatenate((values - POINT_NS / 2, values + POINT_NS / 2)))
        mass = np.zeros(edges.size - 1)
        mass[np.searchsorted(edges, values) - 1] = counts / samples.size
        return Distribution(edges, mass, float(samples.mean())).coarsen(bins)

    @staticmethod
    def point(ns: float) -> Distribution:
        """Return the distribution of a constant time."""
        return Distribution((ns - POINT_NS / 2, ns + POINT_NS / 2), (1.0,))

    @staticmethod
    def from_counts(edges_ns: ArrayLike, counts: ArrayLike) -> Distribution:
        """Return the distribution of counts per bin. Raises ValueError if their sum is 0."""
        counted = np.asarray(counts, np.float64)
        if not counted.sum() > 0:
            raise ValueError("counts: got a sum of 0, wanted at least one")
        return Distribution(edges_ns, counted / counted.sum())

    def coarsen(self, bins: int = BINS) -> Distribution:
        """Return the distribution with merged bins, at most 3 * `bins`. A merged bin holds at most 1/bins of the mass.

        The edges are quantiles: times span decades, and with even bins one outlier would put all others into one bin.
        Bins wider than 1/bins of the range are not merged, so gaps between modes stay empty.
        """
        if self.mass.size <= bins:
            return self
        quantiles = np.searchsorted(self._below, np.linspace(0, 1, bins + 1)[1:-1])
        wide = np.flatnonzero(np.diff(self.edges_ns) * bins > self.edges_ns[-1] - self.edges_ns[0])
        kept = np.unique(np.concatenate(([0], quantiles, wide, wide + 1, [self.mass.size])))
        return Distribution(self.edges_ns[kept], np.diff(self._below[kept]), self.mean_ns)

    def cdf(self, t_ns: ArrayLike) -> Any:
        """Return the probability of at most `t_ns`: a float, or an array of the shape of `t_ns`."""
        times_ns = np.asarray(t_ns, np.float64)
        below = np.interp(times_ns, self.edges_ns, self._below)
        return below if times_ns.ndim else float(below)

    def quantile_ns(self, q: float) -> float:
        """Return the shortest time that a part `q` (0 to 1) does not exceed."""
        place = max(1, int(np.searchsorted(self._below, q)))
        low, high = self._below[place - 1], self._below[place]
        start_ns, end_ns = self.edges_ns[place - 1], self.edges_ns[place]
        return float(start_ns + (end_ns - start_ns) * (q - low) / (high - low)) if high > low else float(start_ns)

    def affine(self, base_ns: float, factor: float) -> Distribution:
        """Return the distribution of base_ns + factor * t, factor > 0. The masses do not change."""
        return Distribution(base_ns + factor * self.edges_ns, self.mass, base_ns + factor * self.mean_ns)

    def excess_over(self, base_ns: float) -> Distribution:
        """Return the distribution of max(0, t - base_ns). Mass below 0 is put into a bin that ends at 0."""
        if self.edges_ns[0] >= base_ns:
            return self.affine(-base_ns, 1.0)
        inside = self.edges_ns[self.edges_ns > base_ns]
        edges = np.concatenate(([base_ns - POINT_NS, base_ns], inside))
        below = np.concatenate(([0.0], self.cdf(edges[1:])))
        return Distribution(edges - base_ns, np.diff(below))

    def maximum(self, k: int) -> Distribution:
        """Return the distribution of the largest of `k` independent times (ORLOJ eq. 6)."""
        return maximum_of([self] * k)

    def batch(self, base_ns: float, size: int) -> Distribution:
        """Return the distribution of a batch of `size` requests that each take this alone; see `batch_of`."""
        return batch_of([self] * size, base_ns)


def mixture(parts: Sequence[Distribution], weights: Sequence[float] | None = None) -> Distribution:
    """Return the mixture of `parts` with these weights, or equal weights."""
    if not parts:
        raise ValueError("parts: got none, wanted at least one")
    if len(parts) == 1:
        return parts[0]
    shares = np.ones(len(parts)) if weights is None else np.asarray(weights, np.float64)
    shares = shares / shares.sum()
    edges = _edges(parts)
    below = sum(weight * part.cdf(edges) for weight, part in zip(shares, parts, strict=True))
    mean_ns = sum(weight * part.mean_ns for weight, part in zip(shares, parts, strict=True))
    return Distribution(edges, _masses(np.asarray(below)), float(mean_ns))


def maximum_of(parts: Sequence[Distribution]) -> Distribution:
    """Return the distribution of the largest of independent times: the product of their CDFs, equal to ORLOJ eq. 8.

    The edges are those of all parts. The mean is exact: E = end - integral of the CDF, by Gauss-Legendre quadrature
    with as many nodes as the degree of the polynomials needs.
    """
    if not parts:
        raise ValueError("parts: got none, wanted at least one")
    if len(parts) == 1:
        return parts[0]
    powers: dict[int, int] = {}
    for part in parts:
        powers[id(part)] = powers.get(id(part), 0) + 1
    distinct = {id(part): part for part in parts}
    edges = _edges(distinct.values())
    edges = edges[edges >= max(part.edges_ns[0] for part in distinct.values())]

    def below(t_ns: Floats) -> Floats:
        product = np.ones_like(t_ns)
        for key, part in distinct.items():
            product *= part.cdf(t_ns) ** powers[key]
        return product

    nodes, weights = np.polynomial.legendre.leggauss(len(parts) // 2 + 1)
    middle, half = (edges[1:] + edges[:-1]) / 2, np.diff(edges) / 2
    area = half @ (below(middle[:, None] + half[:, None] * nodes) @ weights)
    return Distribution(edges, _masses(below(edges)), float(edges[-1] - area))


def _edges(parts: Iterable[Distribution]) -> Floats:
    """Return the edges of all parts, in order."""
    edges: Floats = np.unique(np.concatenate([part.edges_ns for part in parts]))
    last_of_each = np.diff(edges, append=np.inf) > APART_NS
    kept: Floats = edges[last_of_each]
    return kept


def _masses(below: Floats) -> Floats:
    """Return the masses of bins from the CDF (n + 1,) at their edges."""
    below[0] = 0.0
    return np.maximum(0.0, np.diff(below))


def batch_of(parts: Sequence[Distribution], base_ns: float) -> Distribution:
    """Return the distribution of a batch whose requests take `parts` alone: base_ns + k * max(l).

    ORLOJ eq. 3 to 9, for k requests padded to the longest, with l = max(0, t - base_ns). A
    request alone takes c0 + l (eq. 3 at k = 1, with c1 in l),
    so l is the time that a row adds. Eq. 9 lacks a factor 1 / (c1 k), without which its area is not 1; see `affine`.
    """
    rows: dict[int, Distribution] = {}
    for part in parts:
        if id(part) not in rows:
            rows[id(part)] = part.excess_over(base_ns)
    return maximum_of([rows[id(part)] for part in parts]).affine(base_ns, len(parts))
