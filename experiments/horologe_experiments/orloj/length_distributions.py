"""Lengths of requests: mixtures of applications, each a table of equally likely lengths."""

from __future__ import annotations

import functools
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

POINTS = 2000
"""Equally likely lengths of an application."""
MEAN_LENGTH = 1000
"""Of all requests of a case: the unit of length."""
RANGE = 20.0
"""Of the axis on which the peaks of tables 2 and 3 lie, in the units of their standard deviations."""
SHORTEST = 0.1
"""On that axis: lengths are positive."""
SPREAD = 0.2
"""Of a real application: the standard deviation of the logarithm of its lengths."""
LONG_SHARE, LONG_WORK = 0.5, 0.7
"""The long-running application of a real task: at most so many of the requests, and of their lengths."""
P99 = 0.99


class Application(NamedTuple):
    """`share` of the requests; their length is any of `lengths`, all equally likely."""

    share: float
    lengths: NDArray[np.int64]


def peaks(sigmas: Sequence[float]) -> tuple[Application, ...]:
    """Equally spaced normal peaks, equally likely, with these standard deviations (section 5.3, tables 2 and 3).

    `k` peaks are the middles of `k` equal parts of an axis of 20 units, so that the mean is 10 units whatever `k` is,
    and three peaks of deviation 1 have a P99 of 1.9 times their mean and lows under a tenth of that, as section 5.7
    says of its three-modal workload. Lengths under 0.1 units are not drawn.
    """
    step = RANGE / len(sigmas)
    drawn = [_truncated((place + 0.5) * step, sigma) for place, sigma in enumerate(sigmas)]
    return _mixture([1 / len(sigmas)] * len(sigmas), drawn)


def short_and_long(p99: float) -> tuple[Application, ...]:
    """A short- and a long-running application (section 5.2), both lognormal; the mixture has mean 1 and this P99.

    Half of the requests are long ones, or as many as make 0.7 of all lengths, whichever is fewer. Raises ValueError
    for a P99 that no such mixture has.
    """
    low, high = 1.0, 2.0 * p99
    if not quantile(_two(low), P99) < p99 * MEAN_LENGTH < quantile(_two(high), P99):
        raise ValueError(f"p99: got {p99} times the mean, wanted one that two lognormals have")
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if quantile(_two(middle), P99) < p99 * MEAN_LENGTH else (low, middle)
    return _two(high)


def constant() -> tuple[Application, ...]:
    """One application whose requests are all alike."""
    return (Application(1.0, np.full(POINTS, MEAN_LENGTH, np.int64)),)


def quantile(applications: Sequence[Application], part: float) -> int:
    """The least length that at least `part` of all requests do not exceed."""
    lengths = np.concatenate([one.lengths for one in applications])
    shares = np.repeat([one.share / POINTS for one in applications], POINTS)
    order = np.argsort(lengths, kind="stable")
    at = int(np.searchsorted(np.cumsum(shares[order]), part - 1e-9))
    return int(lengths[order][min(at, lengths.size - 1)])


def draw(
    applications: Sequence[Application], requests: int, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each request, its application (a place in `applications`) and its length."""
    edges = np.cumsum([one.share for one in applications])
    chosen = np.searchsorted(edges, rng.random(requests) * edges[-1], side="right")
    table = np.stack([one.lengths for one in applications])
    return chosen.astype(np.int64), table[chosen, rng.integers(POINTS, size=requests)]


def _two(long_mean: float) -> tuple[Application, ...]:
    share = min(LONG_SHARE, LONG_WORK / long_mean)
    short_mean = (1 - share * long_mean) / (1 - share)
    factors = np.exp(SPREAD * _normal())
    factors /= factors.mean()
    return _mixture([1 - share, share], [short_mean * factors, long_mean * factors])


def _mixture(shares: Sequence[float], drawn: Sequence[NDArray[np.float64]]) -> tuple[Application, ...]:
    mean = sum(share * float(one.mean()) for share, one in zip(shares, drawn, strict=True))
    return tuple(
        Application(share, np.maximum(1, np.rint(one * MEAN_LENGTH / mean)).astype(np.int64))
        for share, one in zip(shares, drawn, strict=True)
    )


def _truncated(middle: float, sigma: float) -> NDArray[np.float64]:
    lost = NormalDist(middle, sigma).cdf(SHORTEST)
    return middle + sigma * _normal(lost)


@functools.cache
def _normal(lost: float = 0.0) -> NDArray[np.float64]:
    """Equally likely values of a standard normal without the lowest `lost` of it."""
    inverse = NormalDist().inv_cdf
    return np.array([inverse(lost + (1 - lost) * (place + 0.5) / POINTS) for place in range(POINTS)])
