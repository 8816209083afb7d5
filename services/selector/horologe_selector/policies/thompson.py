"""Thompson sampling: a model as often as it is likely to be the best, Beta over 1 - loss.

Raj and Kalyani, Taming non-stationary bandits: a Bayesian approach, 2017: what was observed is discounted, of all
models alike, so that one not asked for long becomes uncertain again.
"""

from __future__ import annotations

from itertools import accumulate
from math import exp, log
from operator import mul
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from horologe_selector import policy
from horologe_selector.policies.settings import Memory, read_settings
from horologe_selector.policies.single import Single

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import Chance, Selection

GRID = 200
"""Points at which densities are added up: no finer than what is shown of them."""
LOGS = [(log((at + 0.5) / GRID), log(1 - (at + 0.5) / GRID)) for at in range(GRID)]


class ThompsonSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    memory: Memory = 500


class Learned(policy.State, tag="thompson", array_like=True, gc=False):
    gains: dict[str, float]
    """Sums of 1 - loss, discounted."""
    losses: dict[str, float]


class Thompson(Single):
    State: ClassVar[type[Any]] = Learned

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.models = tuple(models)
        self.keep = 1 - 1 / read_settings(ThompsonSettings, settings).memory

    def init(self, known: Any = None) -> Learned:
        gains, losses = (known.gains, known.losses) if isinstance(known, Learned) else ({}, {})
        return Learned(
            {model: gains.get(model, 0.0) for model in self.models},
            {model: losses.get(model, 0.0) for model in self.models},
        )

    def select(self, state: Learned, chance: Chance) -> Selection:
        """The probability is not known, and nothing here needs it."""
        gains, losses = state.gains, state.losses
        draws = {model: chance.betavariate(1 + gains[model], 1 + losses[model]) for model in self.models}
        return policy.Selection((max(draws, key=draws.__getitem__),))

    def observe(self, state: Learned, selection: Selection, losses: Mapping[str, float]) -> Learned:
        if not losses:
            return state
        keep = self.keep
        gains = {model: keep * gain for model, gain in state.gains.items()}
        lost = {model: keep * loss for model, loss in state.losses.items()}
        for model, loss in losses.items():
            if model in gains:
                gains[model] += 1 - loss
                lost[model] += loss
        return Learned(gains, lost)

    def weights(self, state: Learned) -> dict[str, float]:
        """The probabilities to be the best, to about a hundredth."""
        chances = dict.fromkeys(self.models, 0.0)
        densities = {model: _density(state.gains[model], state.losses[model]) for model in self.models}
        below = dict.fromkeys(self.models, 0.0)
        for at in range(GRID):
            # How likely all others are less: products from both ends, for each anew takes 80 ms with 64 models.
            less = [below[model] + densities[model][at] / 2 for model in self.models]
            before = [*accumulate(less[:-1], mul, initial=1.0)]
            after = [*accumulate(less[:0:-1], mul, initial=1.0)][::-1]
            for model, one, other in zip(self.models, before, after, strict=True):
                chances[model] += densities[model][at] * one * other
            for model, density in densities.items():
                below[model] += density[at]
        total = sum(chances.values())
        return {model: one / total for model, one in chances.items()}


def _density(gains: float, losses: float) -> list[float]:
    """Of Beta(1 + gains, 1 + losses), in equal steps from 0 to 1, adding up to 1."""
    logs = [gains * low + losses * high for low, high in LOGS]
    top = max(logs)
    heights = [exp(one - top) for one in logs]
    total = sum(heights)
    return [height / total for height in heights]
