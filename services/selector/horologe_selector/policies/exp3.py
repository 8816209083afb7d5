"""Exp3: one model at a time, drawn by weights that its losses lessen (Clipper section 5.1).

Auer, Cesa-Bianchi, Freund and Schapire, The nonstochastic multiarmed bandit problem, 2002; `gamma` is theirs. Where
their Exp3.S lends every model some of the others' weight each time, losses are discounted here as in exp4.py, and a
model that recovers is found by the requests that go anywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from horologe_selector import policy
from horologe_selector.policies.settings import Memory, Rate, Share, read_settings
from horologe_selector.policies.single import Single, drawn
from horologe_selector.policies.weights import carried, lessened, shares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import Chance, Selection


class Exp3Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    eta: Rate = 0.1
    gamma: Share = 0.05
    """Share of the requests that go to a model at random."""
    memory: Memory = 500


class Learned(policy.State, tag="exp3", array_like=True, gc=False):
    log_weights: dict[str, float]


class Exp3(Single):
    State: ClassVar[type[Any]] = Learned

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.models = tuple(models)
        self.settings = read_settings(Exp3Settings, settings)
        self.keep = 1 - 1 / self.settings.memory

    def init(self, known: Any = None) -> Learned:
        return Learned(carried(self.models, known.log_weights if isinstance(known, Learned) else None))

    def select(self, state: Learned, chance: Chance) -> Selection:
        probabilities = self.weights(state)
        model = drawn(probabilities, chance)
        return policy.Selection((model,), probabilities[model])

    def observe(self, state: Learned, selection: Selection, losses: Mapping[str, float]) -> Learned:
        """The loss counts for all the times that the model was not asked: it is divided by the probability."""
        by = self.settings.eta / max(selection.probability, self.settings.gamma / len(self.models), 1e-9)
        costs = {model: by * losses[model] for model in selection.models if model in losses}
        return Learned(lessened(state.log_weights, self.keep, costs)) if costs else state

    def weights(self, state: Learned) -> dict[str, float]:
        return shares(state.log_weights, self.settings.gamma)
