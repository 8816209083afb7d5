"""Average: all models count the same; the vote that most cast, or the mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from horologe_selector import policy
from horologe_selector.policies.settings import Agreement, read_settings
from horologe_selector.policies.voting import combine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import Ballot, Chance, Guess, Selection


class Nothing(policy.State, tag="even", array_like=True, gc=False):
    pass


class Average:
    single: ClassVar[bool] = False
    sticky: ClassVar[bool] = False
    State: ClassVar[type[Any]] = Nothing

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.tolerance = read_settings(Agreement, settings).tolerance
        self.everyone = policy.Selection(tuple(models))
        self.shares = dict.fromkeys(models, 1 / len(models))

    def init(self, known: Any = None) -> Nothing:
        return Nothing()

    def select(self, state: Nothing, chance: Chance) -> Selection:
        return self.everyone

    def combine(self, state: Nothing, ballot: Ballot) -> Guess:
        return combine(self.shares, ballot, self.tolerance)

    def observe(self, state: Nothing, selection: Selection, losses: Mapping[str, float]) -> Nothing:
        return state

    def weights(self, state: Nothing) -> dict[str, float]:
        return dict(self.shares)
