"""Policy `exp3`: one model for each query, drawn by weights that its losses reduce (Clipper section 5.1).

Auer, Cesa-Bianchi, Freund and Schapire, The nonstochastic multiarmed bandit problem, 2002; `gamma` is from there.
Their variant Exp3.S moves some weight from every model to the others at each step, to follow models that change. Here
losses are discounted instead, as in exp4.py. A model that recovers is found by the random share of the queries.
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
from horologe_selector.policies.settings import Memory, Rate, Share, read_settings
from horologe_selector.policies.single_choice import SingleChoicePolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import Selection


class Exp3Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    eta: Rate = 0.1
    gamma: Share = 0.05
    """Share of the queries that go to a random model."""
    memory: Memory = 500


class Exp3State(policy.PolicyState, tag="exp3", array_like=True, gc=False):
    log_weights: dict[str, LogWeight]


class Exp3(SingleChoicePolicy):
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
