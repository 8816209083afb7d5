"""Policy `exp4`: all models, combined by weights that their losses reduce (Clipper section 5.2).

Losses are discounted (Cesa-Bianchi and Lugosi, Prediction, learning, and games, 2006, section 2.11): a model with mean
loss e gets a weight proportional to exp(-eta * memory * e). A model that fails loses its weight, and one that recovers
regains it, both within about `memory` observations. Models with about equal losses keep about equal weights; without
the discount, the best model would soon have all the weight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from horologe_selector import policy
from horologe_selector.policies.exponential_weights import (
    LogWeight,
    carry_over_weights,
    discount_weights,
    normalize_weights,
)
from horologe_selector.policies.settings import Memory, Rate, Tolerance, read_settings
from horologe_selector.policies.voting import combine_votes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import CombinedPrediction, RandomSource, RowPredictions, Selection


class Exp4Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    eta: Rate = 0.2
    """`eta * memory` is 10: a model that errs on 20 percentage points more of the rows has 1/7 of the weight."""
    memory: Memory = 50
    tolerance: Tolerance = 0.1


class Exp4State(policy.PolicyState, tag="exp4", array_like=True, gc=False):
    log_weights: dict[str, LogWeight]


class Exp4:
    selects_one: ClassVar[bool] = False
    sticky: ClassVar[bool] = False
    state_type: ClassVar[type[Any]] = Exp4State

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.settings = read_settings(Exp4Settings, settings)
        self.discount = 1 - 1 / self.settings.memory
        self.all_models = policy.Selection(tuple(models))

    def init(self, previous: Any = None) -> Exp4State:
        log_weights = previous.log_weights if isinstance(previous, Exp4State) else None
        return Exp4State(carry_over_weights(self.all_models.models, log_weights))

    def select(self, state: Exp4State, random_source: RandomSource) -> Selection:
        return self.all_models

    def combine(self, state: Exp4State, row: RowPredictions) -> CombinedPrediction:
        return combine_votes(normalize_weights(state.log_weights), row, self.settings.tolerance)

    def observe(self, state: Exp4State, selection: Selection, losses: Mapping[str, float]) -> Exp4State:
        """Reduce all weights by the losses. A model without a known prediction pays the mean cost of the others.

        Otherwise a model would gain weight by being missing (Freund, Schapire, Singer and Warmuth, Using and combining
        predictors that specialize, 1997).
        """
        log_weights, eta = state.log_weights, self.settings.eta
        costs = {model: eta * losses[model] for model in log_weights if model in losses}
        if not costs:
            return state
        if len(costs) < len(log_weights):
            weights = normalize_weights({model: log_weights[model] for model in costs})
            mean = sum([cost * weights[model] for model, cost in costs.items()])
            costs = {model: costs.get(model, mean) for model in log_weights}
        return Exp4State(discount_weights(log_weights, self.discount, costs))

    def weights(self, state: Exp4State) -> dict[str, float]:
        return normalize_weights(state.log_weights)
