"""Decide whether the execution time of a model depends on its input, or only on the state of the machine.

The same rows run alone in several rounds, in another order in each. A row that takes long in every round does so
because of what it contains. A busy neighbour, a slow clock or a cold cache slow down other rows in each round. Where
requests have lengths, a single round may show the same: noise does not know them.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from itertools import permutations
from statistics import correlation, median, pstdev
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

SPREAD_IN, SPREAD_OUT = 0.10, 0.07
"""A model becomes dynamic if the 5% to 95% range of what inputs cause is at least 0.10 of the typical time, and static
again below 0.07."""
SPREAD_MIN_NS = 250_000
"""Ranges below this do not make a model dynamic. Actions of static models miss their predictions by as much (Clockwork
section 6.5: 250 us at the 99th percentile)."""
ORDERLY = 0.6
"""If the times of a round rise or fall with the order of the runs this much (rank correlation), lengths decide nothing:
the machine may have become slower or faster while clients sent ever longer inputs."""
RANGE_IN_DEVIATIONS = 3.29
"""The 5% to 95% range of a normal distribution, in standard deviations."""
NOTABLE, EVIDENT = 0.25, 0.9
"""Inputs must cause a quarter of the variance: a smaller effect could not be used, the noise hides it. If they cause
nine tenths, a single comparison makes the model dynamic."""
CONFIRMATIONS_IN, CONFIRMATIONS_OUT = 2, 3
"""Comparisons in a row that make a model dynamic or static. Noise makes the rounds agree in two of them in a row once
in 12,000 pairs."""


class InputEffect(NamedTuple):
    """Result of a comparison. All is 0 if the rounds agree no better than when each belongs to other rows.

    `spread` is the 5% to 95% range of what inputs cause, as a part of the typical time. `explained` is the part of the
    variance of single runs that inputs cause.
    """

    spread: float
    spread_ns: float
    explained: float


def input_effect(rounds: Sequence[Sequence[int]]) -> InputEffect:
    """Return how much the same rows agree in three rounds: the mean covariance of two rounds' logarithms of the times.

    `rounds`: times in ns by round, then by row (at least 3). With 12 rows there are 110 other alignments of the rounds,
    so noise makes the true one the best in 0.9% of all comparisons.
    """
    logs = np.log(np.maximum(np.array(rounds, float), 1.0))
    logs -= logs.mean(axis=1, keepdims=True)  # a slower round says nothing about its rows
    covariances = _covariances(logs)
    caused = float(covariances[0, 0])
    count = len(covariances)
    if any(covariances[shifts] >= caused for shifts in permutations(range(1, count), 2)):
        return InputEffect(0.0, 0.0, 0.0)
    spread = math.expm1(RANGE_IN_DEVIATIONS * math.sqrt(caused))
    return InputEffect(spread, spread * float(np.median(rounds)), min(1.0, caused / float(np.square(logs).mean())))


def length_effect(runs: Sequence[tuple[int, int]]) -> InputEffect | None:
    """Return how much the lengths of rows explain of their times: the square of the rank correlation.

    `runs`: (length, time in ns) of one round, in the order in which the rows ran. With 12 rows, noise reaches `EVIDENT`
    once in a million rounds. None if lengths do not explain that much, or if the order of the runs may do so.
    """
    lengths, times = [_ranks(values) for values in zip(*runs, strict=True)]
    of_length, of_order = _correlation(lengths, times), _correlation(list(range(len(runs))), times)
    if of_length * of_length < EVIDENT or abs(of_order) > ORDERLY:
        return None
    explained = of_length * of_length
    logs = [math.log(max(1, took_ns)) for _, took_ns in runs]
    spread = math.expm1(RANGE_IN_DEVIATIONS * math.sqrt(explained) * pstdev(logs))
    return InputEffect(spread, spread * median(took_ns for _, took_ns in runs), explained)


def _ranks(values: Sequence[int]) -> list[float]:
    """Return the rank of each value; equal values share the mean of their ranks."""
    ordered = sorted(values)
    return [(bisect_left(ordered, value) + bisect_right(ordered, value) - 1) / 2 for value in values]


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Return Pearson's correlation; 0 if all values of one side are equal."""
    return correlation(first, second) if min(map(pstdev, (first, second))) > 0.0 else 0.0


def _covariances(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean covariance of two of three rounds, at least 0, by the shifts of the second and third round."""
    first, second, third = logs
    seconds, thirds = ([np.roll(times, -shift) for shift in range(first.size)] for times in (second, third))
    products = np.inner(seconds, first)[:, None] + np.inner(thirds, first) + np.inner(seconds, thirds)
    return np.asarray(np.maximum(products / (3 * first.size), 0.0))


class Verdict(msgspec.Struct, array_like=True):
    """Verdict on a model: dynamic or static, and the number of comparisons in a row that contradict it."""

    dynamic: bool = False
    contrary: Annotated[int, msgspec.Meta(ge=0, lt=CONFIRMATIONS_OUT)] = 0

    def record(self, effect: InputEffect) -> bool:
        """Take a comparison into account. Return whether the model is dynamic now."""
        least = SPREAD_OUT if self.dynamic else SPREAD_IN
        depends = effect.spread >= least and effect.spread_ns >= SPREAD_MIN_NS and effect.explained >= NOTABLE
        if depends == self.dynamic:
            self.contrary = 0
            return self.dynamic
        self.contrary += 1
        if depends:
            turns = self.contrary >= CONFIRMATIONS_IN or effect.explained >= EVIDENT
        else:
            turns = self.contrary >= CONFIRMATIONS_OUT
        if turns:
            self.dynamic, self.contrary = depends, 0
        return self.dynamic
