"""What policies that ask one model at a time have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from horologe_selector.policy import Guess

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_selector.policy import Ballot, Chance


class Single:
    """Asks one model and answers what it predicts."""

    single: ClassVar[bool] = True
    sticky: ClassVar[bool] = False

    def combine(self, state: object, ballot: Ballot) -> Guess:
        (value, *others) = ballot.predictions.values()
        return Guess(value, (1 + others.count(value)) / (1 + len(others) + len(ballot.absent)))


def drawn(probabilities: Mapping[str, float], chance: Chance) -> str:
    """A model, each with its probability."""
    left = chance.random()
    for model, probability in probabilities.items():
        left -= probability
        if left < 0:
            return model
    return max(probabilities, key=probabilities.__getitem__)  # what rounding has left over
