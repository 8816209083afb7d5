"""Majority: all models count the same; the vote that most cast, or the median, which no single model can move far."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_selector.policies.average import Average
from horologe_selector.policies.voting import agreement, gather
from horologe_selector.policy import Guess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_selector.policies.average import Nothing
    from horologe_selector.policy import Ballot


class Majority(Average):
    def combine(self, state: Nothing, ballot: Ballot) -> Guess:
        if not ballot.regression:
            return super().combine(state, ballot)
        value = _median(gather(self.shares, ballot))
        return Guess(value, agreement(value, ballot, self.tolerance))


def _median(votes: Mapping[float, float]) -> float:
    """The value with half the weight on either side; between two, their mean."""
    half, weight = sum(votes.values()) / 2, 0.0
    values = sorted(votes)
    for value, above in zip(values, [*values[1:], values[-1]], strict=True):
        weight += votes[value]
        if abs(weight - half) < 1e-9:
            return value / 2 + above / 2
        if weight > half:
            return value
    return values[-1]
