"""Epsilon-greedy: the model whose lately observed loss is least, and now and then any.

Sutton and Barto, Reinforcement learning, 2018, sections 2.2 and 2.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from horologe_selector import policy
from horologe_selector.policies.settings import Memory, Share, read_settings
from horologe_selector.policies.single import Single, drawn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import Chance, Selection


class EpsilonGreedySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    epsilon: Share = 0.1
    """Share of the requests that go to a model at random."""
    memory: Memory = 50
    """Of a model's own observations, not of all."""


class Learned(policy.State, tag="epsilon_greedy", array_like=True, gc=False):
    means: dict[str, float]
    """Of losses; 0 of a model not yet observed, so that each is tried."""
    counts: dict[str, float]
    """Observations behind a mean, `memory` at most."""


class EpsilonGreedy(Single):
    State: ClassVar[type[Any]] = Learned

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.models = tuple(models)
        self.settings = read_settings(EpsilonGreedySettings, settings)

    def init(self, known: Any = None) -> Learned:
        means, counts = (known.means, known.counts) if isinstance(known, Learned) else ({}, {})
        return Learned(
            {model: means.get(model, 0.0) for model in self.models},
            {model: counts.get(model, 0.0) for model in self.models},
        )

    def select(self, state: Learned, chance: Chance) -> Selection:
        probabilities = self.weights(state)
        model = drawn(probabilities, chance)
        return policy.Selection((model,), probabilities[model])

    def observe(self, state: Learned, selection: Selection, losses: Mapping[str, float]) -> Learned:
        if not losses:
            return state
        means, counts = dict(state.means), dict(state.counts)
        for model, loss in losses.items():
            if model in counts:
                counts[model] = min(counts[model] + 1, self.settings.memory)
                means[model] += (loss - means[model]) / counts[model]
        return Learned(means, counts)

    def weights(self, state: Learned) -> dict[str, float]:
        """The probabilities to be asked."""
        even = self.settings.epsilon / len(self.models)
        probabilities = dict.fromkeys(self.models, even)
        probabilities[min(self.models, key=state.means.__getitem__)] = 1 - even * (len(self.models) - 1)
        return probabilities
