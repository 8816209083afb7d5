"""Policy `epsilon_greedy`: the model with the least recent mean loss; a share of the queries goes to a random model.

Sutton and Barto, Reinforcement learning, 2018, sections 2.2 and 2.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from horologe_selector import policy
from horologe_selector.policies.settings import Memory, Share, Weight, read_settings
from horologe_selector.policies.single_choice import SingleChoicePolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import Selection


class EpsilonGreedySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    epsilon: Share = 0.1
    """Share of the queries that go to a random model."""
    memory: Memory = 50
    """Counts observations of the model itself, not of all models."""


class EpsilonGreedyState(policy.PolicyState, tag="epsilon_greedy", array_like=True, gc=False):
    means: dict[str, Share]
    """Mean loss by model; 0 before the first observation, so that each model is tried."""
    counts: dict[str, Weight]
    """Observations behind each mean, at most `memory`."""


class EpsilonGreedy(SingleChoicePolicy):
    state_type: ClassVar[type[Any]] = EpsilonGreedyState

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.models = tuple(models)
        self.settings = read_settings(EpsilonGreedySettings, settings)

    def init(self, previous: Any = None) -> EpsilonGreedyState:
        means, counts = (previous.means, previous.counts) if isinstance(previous, EpsilonGreedyState) else ({}, {})
        return EpsilonGreedyState(
            {model: means.get(model, 0.0) for model in self.models},
            {model: counts.get(model, 0.0) for model in self.models},
        )

    def observe(
        self, state: EpsilonGreedyState, selection: Selection, losses: Mapping[str, float]
    ) -> EpsilonGreedyState:
        if not losses:
            return state
        means, counts = dict(state.means), dict(state.counts)
        for model, loss in losses.items():
            if model in counts:
                counts[model] = min(counts[model] + 1, self.settings.memory)
                means[model] += (loss - means[model]) / counts[model]
        return EpsilonGreedyState(means, counts)

    def weights(self, state: EpsilonGreedyState) -> dict[str, float]:
        uniform = self.settings.epsilon / len(self.models)
        probabilities = dict.fromkeys(self.models, uniform)
        probabilities[min(self.models, key=state.means.__getitem__)] = 1 - uniform * (len(self.models) - 1)
        return probabilities
