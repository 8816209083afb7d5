"""Policy `thompson`: one model for each query, selected as often as it is likely to be the best (Thompson sampling).

Each model's rate of success, 1 - loss, has a Beta distribution. Observations of all models are discounted alike (Raj
and Kalyani, Taming non-stationary bandits: a Bayesian approach, 2017), so a model without recent observations becomes
uncertain and is tried again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import numpy as np

from horologe_selector import policy
from horologe_selector.policies.settings import Memory, Weight, read_settings
from horologe_selector.policies.single_choice import SingleChoicePolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import RandomSource, Selection

GRID = 200
"""Points at which densities are summed; enough for weights that are shown with two digits."""
LOG_GRID = np.log((np.arange(GRID) + 0.5) / GRID)


class ThompsonSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    memory: Memory = 500


class ThompsonState(policy.PolicyState, tag="thompson", array_like=True, gc=False):
    gains: dict[str, Weight]
    """Discounted sum of 1 - loss, by model."""
    losses: dict[str, Weight]
    """Discounted sum of losses, by model."""


class Thompson(SingleChoicePolicy):
    state_type: ClassVar[type[Any]] = ThompsonState

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.models = tuple(models)
        self.discount = 1 - 1 / read_settings(ThompsonSettings, settings).memory

    def init(self, previous: Any = None) -> ThompsonState:
        gains, losses = (previous.gains, previous.losses) if isinstance(previous, ThompsonState) else ({}, {})
        return ThompsonState(
            {model: gains.get(model, 0.0) for model in self.models},
            {model: losses.get(model, 0.0) for model in self.models},
        )

    def select(self, state: ThompsonState, random_source: RandomSource) -> Selection:
        """Select the model with the largest draw. The selection's probability is left at 1: it is never used."""
        gains, losses = state.gains, state.losses
        draws = {model: random_source.betavariate(1 + gains[model], 1 + losses[model]) for model in self.models}
        return policy.Selection((max(draws, key=draws.__getitem__),))

    def observe(self, state: ThompsonState, selection: Selection, losses: Mapping[str, float]) -> ThompsonState:
        if not losses:
            return state
        discount = self.discount
        gains = {model: discount * gain for model, gain in state.gains.items()}
        summed_losses = {model: discount * loss for model, loss in state.losses.items()}
        for model, loss in losses.items():
            if model in gains:
                gains[model] += 1 - loss
                summed_losses[model] += loss
        return ThompsonState(gains, summed_losses)

    def weights(self, state: ThompsonState) -> dict[str, float]:
        """Return the probability of each model to be the best, to about a hundredth."""
        gains, losses = ([values[model] for model in self.models] for values in (state.gains, state.losses))
        logs = np.outer(gains, LOG_GRID) + np.outer(losses, LOG_GRID[::-1])
        densities = np.exp(logs - logs.max(axis=1, keepdims=True))
        densities /= densities.sum(axis=1, keepdims=True)
        less = densities.cumsum(axis=1) - densities / 2
        # Probability that all other models are below a point, by products from both ends: `less` may be 0.
        ones = np.ones((1, GRID))
        before = np.vstack((ones, less[:-1])).cumprod(axis=0)
        behind = np.vstack((ones, less[:0:-1])).cumprod(axis=0)[::-1]
        chances = (densities * before * behind).sum(axis=1)
        return dict(zip(self.models, (chances / chances.sum()).tolist(), strict=True))
