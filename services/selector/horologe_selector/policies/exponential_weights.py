"""Policies `exp3` and `exp4`: each model has a weight that its losses reduce exponentially (Clipper section 5).

Weights are kept as logarithms, of which the largest is 0. They do not overflow, and a weight that underflows becomes 0.

Losses are discounted (Cesa-Bianchi and Lugosi, Prediction, learning, and games, 2006, section 2.11): a model with mean
loss e gets a weight proportional to exp(-eta * memory * e). A model that fails loses its weight, and one that recovers
regains it, both within about `memory` observations. Models with about equal losses keep about equal weights; without
the discount, the best model would soon have all the weight.
"""

from __future__ import annotations

from math import exp, log
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec

from horologe_selector.policies.settings import Memory, Rate, Share, Tolerance, read_settings
from horologe_selector.policies.single_choice import SingleChoicePolicy
from horologe_selector.policies.voting import VotingPolicy
from horologe_selector.policy import PolicyState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import Selection

LogWeight = Annotated[float, msgspec.Meta(ge=-1e30, le=0)]
"""Range that a stored log weight must have. The largest rates and memories of the policies reach -1e23."""


class Exp3Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    eta: Rate = 0.1
    gamma: Share = 0.05
    """Share of the queries that go to a random model."""
    memory: Memory = 500


class Exp3State(PolicyState, tag="exp3", array_like=True, gc=False):
    log_weights: dict[str, LogWeight]


class Exp3(SingleChoicePolicy):
    """One model for each query, drawn by the weights (Clipper section 5.1).

    Auer, Cesa-Bianchi, Freund and Schapire, The nonstochastic multiarmed bandit problem, 2002; `gamma` is from there.
    Their variant Exp3.S moves some weight from every model to the others at each step, to follow models that change.
    Here the discount does so. A model that recovers is found by the random share of the queries.
    """

    state_type: ClassVar[type[Any]] = Exp3State

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.models = tuple(models)
        self.settings = read_settings(Exp3Settings, settings)
        self.discount = 1 - 1 / self.settings.memory

    def init(self, previous: Any = None) -> Exp3State:
        log_weights = previous.log_weights if isinstance(previous, Exp3State) else None
        return Exp3State(carry_over_weights(self.models, log_weights))

    def observe(self, state: Exp3State, selection: Selection, losses: Mapping[str, float]) -> Exp3State:
        """Reduce the weight of the selected model by its loss divided by the probability of its selection.

        The division makes up for the queries that went to other models. Example: a model selected for one query in
        ten pays ten times its loss.
        """
        rate = self.settings.eta / max(selection.probability, self.settings.gamma / len(self.models), 1e-9)
        costs = {model: rate * losses[model] for model in selection.models if model in losses}
        return Exp3State(discount_weights(state.log_weights, self.discount, costs)) if costs else state

    def weights(self, state: Exp3State) -> dict[str, float]:
        return normalize_weights(state.log_weights, self.settings.gamma)


class Exp4Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    eta: Rate = 0.2
    """`eta * memory` is 10: a model that errs on 20 percentage points more of the rows has 1/7 of the weight."""
    memory: Memory = 50
    tolerance: Tolerance = 0.1


class Exp4State(PolicyState, tag="exp4", array_like=True, gc=False):
    log_weights: dict[str, LogWeight]


class Exp4(VotingPolicy):
    """All models, combined by their weights (Clipper section 5.2)."""

    state_type: ClassVar[type[Any]] = Exp4State

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.settings = read_settings(Exp4Settings, settings)
        self.discount = 1 - 1 / self.settings.memory
        super().__init__(models, self.settings.tolerance)

    def init(self, previous: Any = None) -> Exp4State:
        log_weights = previous.log_weights if isinstance(previous, Exp4State) else None
        return Exp4State(carry_over_weights(self.all_models.models, log_weights))

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


def carry_over_weights(models: Sequence[str], previous: Mapping[str, float] | None) -> dict[str, float]:
    """Return the log weights of `models`: previous ones where known, else the mean weight of those known."""
    kept = {model: previous[model] for model in models if model in previous} if previous else {}
    if not kept:
        return dict.fromkeys(models, 0.0)
    top = max(kept.values())
    mean = log(sum([exp(log_weight - top) for log_weight in kept.values()]) / len(kept))
    return {model: kept[model] - top if model in kept else mean for model in models}


def normalize_weights(log_weights: Mapping[str, float], uniform_share: float = 0.0) -> dict[str, float]:
    """Return weights that sum to 1; `uniform_share` of the sum is spread evenly over all models."""
    top = max(log_weights.values())
    weights = {model: exp(log_weight - top) for model, log_weight in log_weights.items()}
    scale, floor = (1 - uniform_share) / sum(weights.values()), uniform_share / len(weights)
    return {model: weight * scale + floor for model, weight in weights.items()}


def discount_weights(log_weights: Mapping[str, float], discount: float, costs: Mapping[str, float]) -> dict[str, float]:
    """Multiply the log weights by `discount`, subtract each model's cost, and shift so that the largest is 0."""
    reduced = {model: discount * weight - costs.get(model, 0.0) for model, weight in log_weights.items()}
    top = max(reduced.values())
    return {model: weight - top for model, weight in reduced.items()}
