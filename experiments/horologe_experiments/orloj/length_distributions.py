"""Length distributions of requests: mixtures of applications, each a table of equally likely lengths."""

from __future__ import annotations

import functools
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

POINTS = 2000
"""Number of equally likely lengths of an application."""
MEAN_LENGTH = 1000
"""Mean length of all requests of a case. It sets the unit of length."""
RANGE = 20.0
"""Length of the axis with the peaks of tables 2 and 3, in the unit of their standard deviations."""
SHORTEST = 0.1
"""Shortest length on that axis, because lengths are positive."""
SPREAD = 0.2
"""Standard deviation of the logarithm of the lengths of a real application."""
LONG_SHARE, LONG_WORK = 0.5, 0.7
"""Largest share of the long-running application of a real task in the requests, and in the sum of their lengths."""
P99 = 0.99


class LengthDistribution(NamedTuple):
    """The lengths of one application, all equally likely. `share` is its share of the requests."""

    share: float
    lengths: NDArray[np.int64]


def peaks(sigmas: Sequence[float]) -> tuple[LengthDistribution, ...]:
    """Return equally likely normal peaks with these standard deviations (ORLOJ section 5.3, tables 2 and 3).

    The peaks are at the centres of equal parts of an axis of 20 units, so the mean is 10 units for any number of peaks.
    Three peaks of deviation 1 then have a P99 of 1.9 times the mean and minima below a tenth of that, as section 5.7
    reports for its three-modal workload. Lengths below 0.1 units are not drawn.
    """
    step = RANGE / len(sigmas)
    drawn = [_truncated((index + 0.5) * step, sigma) for index, sigma in enumerate(sigmas)]
    return _mixture([1 / len(sigmas)] * len(sigmas), drawn)


def short_and_long(p99: float) -> tuple[LengthDistribution, ...]:
    """Return a short- and a long-running application (section 5.2), both log-normal.

    The mixture has mean 1 and this P99. The share of long requests is 0.5, or less if they would make more than 0.7 of
    the sum of all lengths. Raises ValueError for a P99 that no such mixture has.
    """
    low, high = 1.0, 2.0 * p99
    if not length_quantile(_two_lognormals(low), P99) < p99 * MEAN_LENGTH < length_quantile(_two_lognormals(high), P99):
        raise ValueError(f"p99: got {p99} times the mean, wanted one that two lognormals have")
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (
            (middle, high) if length_quantile(_two_lognormals(middle), P99) < p99 * MEAN_LENGTH else (low, middle)
        )
    return _two_lognormals(high)


def constant() -> tuple[LengthDistribution, ...]:
    """Return one application whose requests are all alike."""
    return (LengthDistribution(1.0, np.full(POINTS, MEAN_LENGTH, np.int64)),)


def length_quantile(applications: Sequence[LengthDistribution], part: float) -> int:
    """Return the smallest length that at least `part` of all requests do not exceed."""
    lengths = np.concatenate([application.lengths for application in applications])
    shares = np.repeat([application.share / POINTS for application in applications], POINTS)
    order = np.argsort(lengths, kind="stable")
    index = int(np.searchsorted(np.cumsum(shares[order]), part - 1e-9))
    return int(lengths[order][min(index, lengths.size - 1)])


def draw_lengths(
    applications: Sequence[LengthDistribution], requests: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Draw the application (its index) and the length of each request."""
    edges = np.cumsum([application.share for application in applications])
    chosen = np.searchsorted(edges, rng.random(requests) * edges[-1], side="right")
    table = np.stack([application.lengths for application in applications])
    return chosen.astype(np.int64), table[chosen, rng.integers(POINTS, size=requests)]


def _two_lognormals(long_mean: float) -> tuple[LengthDistribution, ...]:
    share = min(LONG_SHARE, LONG_WORK / long_mean)
    short_mean = (1 - share * long_mean) / (1 - share)
    factors = np.exp(SPREAD * _normal())
    factors /= factors.mean()
    return _mixture([1 - share, share], [short_mean * factors, long_mean * factors])


def _mixture(shares: Sequence[float], drawn: Sequence[NDArray[np.float64]]) -> tuple[LengthDistribution, ...]:
    mean = sum(share * float(lengths.mean()) for share, lengths in zip(shares, drawn, strict=True))
    return tuple(
        LengthDistribution(share, np.maximum(1, np.rint(lengths * MEAN_LENGTH / mean)).astype(np.int64))
        for share, lengths in zip(shares, drawn, strict=True)
    )


def _truncated(middle: float, sigma: float) -> NDArray[np.float64]:
    lost = NormalDist(middle, sigma).cdf(SHORTEST)
    return middle + sigma * _normal(lost)


@functools.cache
def _normal(lost: float = 0.0) -> NDArray[np.float64]:
    """Return equally likely values of a standard normal without its lowest part `lost`."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse(lost + (1 - lost) * (index + 0.5) / POINTS) for index in range(POINTS)])
