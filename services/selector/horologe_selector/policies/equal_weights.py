"""Policies `average` and `majority`: all models are queried, have the same weight, and nothing is learned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from horologe_selector.policies.settings import Tolerance, read_settings
from horologe_selector.policies.voting import VotingPolicy, agreement_share, count_votes
from horologe_selector.policy import CombinedPrediction, PolicyState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import RowPredictions, Selection


class EqualWeightsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    tolerance: Tolerance = 0.1
    """0.1, because the absolute loss counts a distance of 1 as entirely wrong."""


class EqualWeightsState(PolicyState, tag="even", array_like=True, gc=False):
    pass


class Average(VotingPolicy):
    """For classes the most frequent prediction, for regression the mean."""

    state_type: ClassVar[type[Any]] = EqualWeightsState

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        super().__init__(models, read_settings(EqualWeightsSettings, settings).tolerance)
        self.shares = dict.fromkeys(models, 1 / len(models))

    def init(self, previous: Any = None) -> EqualWeightsState:
        return EqualWeightsState()

    def observe(self, state: EqualWeightsState, selection: Selection, losses: Mapping[str, float]) -> EqualWeightsState:
        return state

    def weights(self, state: EqualWeightsState) -> dict[str, float]:
        return self.shares


class Majority(Average):
    """For classes the most frequent prediction, for regression the median, which a single outlier cannot move far."""

    def combine(self, state: EqualWeightsState, row: RowPredictions) -> CombinedPrediction:
        if not row.regression:
            return super().combine(state, row)
        value = _median(count_votes(self.shares, row))
        return CombinedPrediction(value, agreement_share(value, row, self.tolerance))


def _median(votes: Mapping[float, float]) -> float:
    """Return the value with half the weight on either side; between two such values, their mean."""
    half, weight = sum(votes.values()) / 2, 0.0
    values = sorted(votes)
    for value, above in zip(values, [*values[1:], values[-1]], strict=True):
        weight += votes[value]
        if abs(weight - half) < 1e-9:
            return value / 2 + above / 2
        if weight > half:
            return value
    return values[-1]
