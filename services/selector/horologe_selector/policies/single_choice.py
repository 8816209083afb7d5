"""Base of policies that send each query to one model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from horologe_selector.policy import CombinedPrediction, Selection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_selector.policy import RandomSource, RowPredictions


class SingleChoicePolicy:
    """Policy that selects one model, by default drawn by its `weights`, and returns its prediction."""

    selects_one: ClassVar[bool] = True
    sticky: ClassVar[bool] = False

    def weights(self, state: Any) -> Mapping[str, float]:
        raise NotImplementedError

    def select(self, state: Any, random_source: RandomSource) -> Selection:
        probabilities = self.weights(state)
        model = draw_model(probabilities, random_source)
        return Selection((model,), probabilities[model])

    def combine(self, state: object, row: RowPredictions) -> CombinedPrediction:
        (value, *others) = row.predictions.values()
        return CombinedPrediction(value, (1 + others.count(value)) / (1 + len(others) + len(row.fallbacks)))


def draw_model(probabilities: Mapping[str, float], random_source: RandomSource) -> str:
    remaining = random_source.random()
    for model, probability in probabilities.items():
        remaining -= probability
        if remaining < 0:
            return model
    return max(probabilities, key=probabilities.__getitem__)  # the probabilities sum to slightly less than 1
