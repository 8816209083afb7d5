"""Policies that query all models, by weighted votes and means over their predictions (Clipper section 5.2.1).

A missing model votes with its average prediction (section 5.2.2) and agrees with no answer. Each missing model keeps
its weight, but all missing models together weigh at most as much as the models that predicted. Without that bound, a
model with most of the weight would impose its most frequent class on every row that it misses. Models are processed in
the order of declaration, so the result does not depend on the order of their answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from horologe_selector.policy import CombinedPrediction, Selection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import RandomSource, RowPredictions


class VotingPolicy:
    """Policy that selects all models and combines their predictions by its `weights`."""

    selects_one: ClassVar[bool] = False
    sticky: ClassVar[bool] = False

    def __init__(self, models: Sequence[str], tolerance: float) -> None:
        self.all_models = Selection(tuple(models))
        self.tolerance = tolerance

    def weights(self, state: Any) -> Mapping[str, float]:
        raise NotImplementedError

    def select(self, state: object, random_source: RandomSource) -> Selection:
        return self.all_models

    def combine(self, state: Any, row: RowPredictions) -> CombinedPrediction:
        return combine_votes(self.weights(state), row, self.tolerance)


def combine_votes(weights: Mapping[str, float], row: RowPredictions, tolerance: float) -> CombinedPrediction:
    """Return the weighted vote, or for regression the weighted mean. `weights`: of all models in order, at least 0."""
    votes = count_votes(weights, row)
    if row.regression:
        total = sum(votes.values())
        value = sum([vote * weight for vote, weight in votes.items()]) / total
        return CombinedPrediction(min(max(value, min(votes)), max(votes)), agreement_share(value, row, tolerance))
    value = max(votes, key=votes.__getitem__)
    return CombinedPrediction(value, agreement_share(value, row, 0.0))


def count_votes(weights: Mapping[str, float], row: RowPredictions) -> dict[float, float]:
    """Return the weight of each value, from predictions and the averages of missing models; the sum is positive.

    If all models that predicted have weight 0, each of them gets the same weight.
    """
    votes: dict[float, float] = {}
    present = 0.0
    for model, weight in weights.items():
        if model in row.predictions:
            value = row.predictions[model]
            votes[value] = votes.get(value, 0.0) + weight
            present += weight
    if present <= 0:
        return {row.predictions[model]: 1.0 for model in weights if model in row.predictions}
    missing = {model: weights[model] for model, shares in row.fallbacks.items() if shares and weights.get(model)}
    if missing:
        scale = min(1.0, present / sum(missing.values()))
        for model in weights:
            if model in missing:
                for value, share in row.fallbacks[model].items():
                    votes[value] = votes.get(value, 0.0) + scale * missing[model] * share
    return votes


def agreement_share(value: float, row: RowPredictions, tolerance: float) -> float:
    """Return the share of selected models whose prediction is present and at most `tolerance` away from `value`."""
    agreeing = 0
    for prediction in row.predictions.values():
        if prediction == value or abs(prediction - value) <= tolerance:
            agreeing += 1
    return agreeing / (len(row.predictions) + len(row.fallbacks))
