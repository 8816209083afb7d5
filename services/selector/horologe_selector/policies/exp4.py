"""Exp4: all models, combined by weights that their losses lessen (Clipper section 5.2).

Losses are discounted (Cesa-Bianchi and Lugosi, Prediction, learning, and games, 2006, section 2.11): with a loss of e
on average a model comes to weigh exp(-eta * memory * e). So a model that fails loses its weight, one that recovers
finds it again, both within about `memory` observations; and models that do about equally well keep about equal votes,
where without the discount the best would soon have them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from horologe_selector import policy
from horologe_selector.policies.settings import Memory, Rate, Tolerance, read_settings
from horologe_selector.policies.voting import combine
from horologe_selector.policies.weights import carried, lessened, shares

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import Ballot, Chance, Guess, Selection


class Exp4Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    eta: Rate = 0.2
    """Times `memory`, 10: of two models one of which errs 20% more often than the other, that one counts 1/7."""
    memory: Memory = 50
    tolerance: Tolerance = 0.1


class Learned(policy.State, tag="exp4", array_like=True, gc=False):
    log_weights: dict[str, float]


class Exp4:
    single: ClassVar[bool] = False
    sticky: ClassVar[bool] = False
    State: ClassVar[type[Any]] = Learned

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.settings = read_settings(Exp4Settings, settings)
        self.keep = 1 - 1 / self.settings.memory
        self.everyone = policy.Selection(tuple(models))

    def init(self, known: Any = None) -> Learned:
        return Learned(carried(self.everyone.models, known.log_weights if isinstance(known, Learned) else None))

    def select(self, state: Learned, chance: Chance) -> Selection:
        return self.everyone

    def combine(self, state: Learned, ballot: Ballot) -> Guess:
        return combine(shares(state.log_weights), ballot, self.settings.tolerance)

    def observe(self, state: Learned, selection: Selection, losses: Mapping[str, float]) -> Learned:
        """A model whose prediction is not known pays what the others do on average, or it would gain by its absence.

        Freund, Schapire, Singer and Warmuth, Using and combining predictors that specialize, 1997: who sleeps keeps
        its share.
        """
        logs, eta = state.log_weights, self.settings.eta
        costs = {model: eta * losses[model] for model in logs if model in losses}
        if not costs:
            return state
        if len(costs) < len(logs):
            awake = shares({model: logs[model] for model in costs})
            mean = sum([cost * awake[model] for model, cost in costs.items()])
            costs = {model: costs.get(model, mean) for model in logs}
        return Learned(lessened(logs, self.keep, costs))

    def weights(self, state: Learned) -> dict[str, float]:
        return shares(state.log_weights)
