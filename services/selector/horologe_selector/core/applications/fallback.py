"""What a model predicts on average, to stand in for it when it is missing (Clipper section 5.2.2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_selector.policy import Shares

WINDOW = 1000
"""Predictions after which one counts 1/e of what it did."""
VALUES = 64
"""Classes kept: what comes more rarely than 64 others decides no vote."""
LARGE = 1e100


class StandIn:
    """Of one model: how often it lately predicted each class, or for regression the mean of what it predicted."""

    __slots__ = ("_mean", "_regression", "_seen", "_step", "_sums")

    def __init__(self, regression: bool = False) -> None:
        self._regression = regression
        self._mean = 0.0
        self._seen = 0
        self._sums: dict[float, float] = {}
        self._step = 1.0
        """What a prediction adds now: growing it is dividing all others."""

    def add(self, values: Iterable[float]) -> None:
        """Predictions, one a row, finite."""
        for value in values:
            if self._regression:
                self._seen = min(self._seen + 1, WINDOW)
                self._mean += value / self._seen - self._mean / self._seen  # each finite, whatever their difference
            else:
                self._step *= 1 + 1 / WINDOW
                self._sums[value] = self._sums.get(value, 0.0) + self._step
        if len(self._sums) > 2 * VALUES or self._step > LARGE:
            self._tidy()

    def shares(self) -> Shares:
        """Values with shares that sum to 1, the most frequent first; none before the first prediction."""
        if self._regression:
            return {self._mean: 1.0} if self._seen else {}
        kept = self._most_frequent()
        total = sum([share for _, share in kept])
        return {value: share / total for value, share in kept}

    def _most_frequent(self) -> list[tuple[float, float]]:
        return sorted(self._sums.items(), key=lambda item: -item[1])[:VALUES]

    def _tidy(self) -> None:
        self._sums = {value: share / self._step for value, share in self._most_frequent()}
        self._step = 1.0
