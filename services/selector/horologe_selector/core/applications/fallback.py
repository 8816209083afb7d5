"""Average prediction of a model, used as a fallback when the model is missing (Clipper section 5.2.2).

Example: a model that recently predicted class 3 for six rows and class 8 for two has the shares 3: 0.75, 8: 0.25. When
it misses a deadline, its weight in the vote is divided between the classes 3 and 8 in that ratio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_selector.policy import ValueShares

WINDOW = 1000
"""Number of later predictions after which a prediction counts 1/e of its original weight."""
VALUES = 64
"""Maximum number of classes kept. A class rarer than 64 others decides no vote."""
RESCALE_AT = 1e100
"""Largest weight of a new prediction before all weights are rescaled."""


class FallbackPrediction:
    """Recent predictions of one model: frequency of each class, or for regression the mean."""

    __slots__ = ("_count", "_mean", "_regression", "_step", "_sums")

    def __init__(self, regression: bool = False) -> None:
        self._regression = regression
        self._mean = 0.0
        self._count = 0
        self._sums: dict[float, float] = {}
        self._step = 1.0
        """Weight of the next prediction. It grows with each one, which discounts all earlier predictions."""

    def add_predictions(self, values: Iterable[float]) -> None:
        """Add predictions, one for each row. They must be finite."""
        for value in values:
            if self._regression:
                self._count = min(self._count + 1, WINDOW)
                # Two divisions, because the difference of two finite numbers may overflow.
                self._mean += value / self._count - self._mean / self._count
            else:
                self._step *= 1 + 1 / WINDOW
                self._sums[value] = self._sums.get(value, 0.0) + self._step
        if len(self._sums) > 2 * VALUES or self._step > RESCALE_AT:
            self._compact()

    def shares(self) -> ValueShares:
        """Return values with shares that sum to 1, the most frequent first; empty before the first prediction."""
        if self._regression:
            return {self._mean: 1.0} if self._count else {}
        frequent = self._most_frequent()
        total = sum([weight for _, weight in frequent])
        return {value: weight / total for value, weight in frequent}

    def _most_frequent(self) -> list[tuple[float, float]]:
        return sorted(self._sums.items(), key=lambda item: -item[1])[:VALUES]

    def _compact(self) -> None:
        self._sums = {value: weight / self._step for value, weight in self._most_frequent()}
        self._step = 1.0
