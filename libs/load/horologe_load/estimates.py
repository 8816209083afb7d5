"""Confidence intervals of shares and percentiles of requests that follow one another.

Requests that wait in one queue have similar latencies, so intervals for independent samples would be too narrow. The
variance of a share is estimated from the shares of consecutive batches of requests (method of batch means), which gives
the number of independent requests with the same variance.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

BATCHES = 25
T = 2.064
"""Quantile 0.975 of Student's t distribution with `BATCHES` - 1 degrees of freedom."""
TAIL = 0.025
"""Probability that a value lies above its interval, and that it lies below."""


class Estimate(msgspec.Struct, frozen=True):
    """A measured value and its 95% confidence interval. None: the run has too few requests for this bound."""

    value: float
    low: float | None
    high: float | None


def estimate_share(hits: NDArray[np.bool_]) -> Estimate:
    """Return the share of True in `hits`, which are in the order of the requests. Raises ValueError if empty."""
    if not len(hits):
        raise ValueError("hits: got none, wanted at least one request")
    share = float(hits.mean())
    return Estimate(share, *_wilson(share, _independent_count(hits)))


def estimate_quantile(values: NDArray[np.int64], share: float) -> Estimate:
    """Return the `share` quantile (nearest rank) of `values`, which are in the order of the requests.

    The bounds are order statistics, so no distribution is assumed. Raises ValueError if `values` is empty.
    """
    if not len(values):
        raise ValueError("values: got none, wanted at least one request")
    ordered = np.sort(values)
    value = _at(ordered, share)
    count = _independent_count(values <= value)
    low, high = _wilson(share, count)
    return Estimate(
        value,
        _at(ordered, low) if (1 - share) ** count <= TAIL else None,
        _at(ordered, high) if share**count <= TAIL else None,
    )


def _at(ordered: NDArray[np.int64], share: float) -> float:
    return float(ordered[max(0, math.ceil(len(ordered) * share) - 1)])


def _independent_count(hits: NDArray[np.bool_]) -> float:
    """Return how many independent requests have a share of hits with the same variance, at most all of them."""
    count, share = len(hits), float(hits.mean())
    if count < 2 * BATCHES or share in (0.0, 1.0):
        return count
    shares = [batch.mean() for batch in np.array_split(hits, BATCHES)]
    variance = float(np.var(shares, ddof=1)) / BATCHES
    independent = share * (1 - share) / count
    return count * min(1.0, independent / variance) if variance else count


def _wilson(share: float, count: float) -> tuple[float, float]:
    """Return the interval of Wilson's score for a share of `count` independent requests."""
    weight = T * T / count
    middle = (share + weight / 2) / (1 + weight)
    half = T * math.sqrt(share * (1 - share) / count + weight / (4 * count)) / (1 + weight)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))
