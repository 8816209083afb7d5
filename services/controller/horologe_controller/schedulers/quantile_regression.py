"""A line through a quantile of measurements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

STEPS = 48
"""Golden sections: the slope is good to a part in 10^10 of where it was looked for."""
GOLDEN = (math.sqrt(5) - 1) / 2


def quantile_line(points: Sequence[tuple[int, int]], q: float) -> tuple[float, float]:
    """(intercept, slope) of the line below which a part `q` of the points (x, y) lies, its slope not negative.

    Linear quantile regression (Koenker and Bassett 1978): the least sum of q * r over points r above the line and of
    (1 - q) * -r below. With the best intercept for each slope that is convex in the slope. Needs two different x.
    """
    ys = [y for _, y in points]
    low, high = 0.0, float(max(ys) - min(ys))
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    left_loss, right_loss = loss(points, left, q), loss(points, right, q)
    for _ in range(STEPS):
        if left_loss <= right_loss:
            high, right, right_loss = right, left, left_loss
            left = high - GOLDEN * (high - low)
            left_loss = loss(points, left, q)
        else:
            low, left, left_loss = left, right, right_loss
            right = low + GOLDEN * (high - low)
            right_loss = loss(points, right, q)
    slope = (low + high) / 2
    return _intercept(sorted(y - slope * x for x, y in points), q), slope


def loss(points: Sequence[tuple[int, int]], slope: float, q: float) -> float:
    """What the line of this slope with the best intercept leaves to be desired."""
    rests = sorted(y - slope * x for x, y in points)
    middle = _intercept(rests, q)
    return sum(q * (rest - middle) if rest > middle else (1 - q) * (middle - rest) for rest in rests)


def _intercept(rests: Sequence[float], q: float) -> float:
    """The `q` quantile of what a slope leaves, in order."""
    return rests[max(0, math.ceil(q * len(rests)) - 1)]
