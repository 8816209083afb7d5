"""Policy `static`: one model for each query or context, by fixed weights, for A/B tests and canaries."""

from __future__ import annotations

from math import inf, log
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from horologe_common.status import InvalidInput
from horologe_selector import policy
from horologe_selector.policies.settings import read_settings
from horologe_selector.policies.single_choice import SingleChoicePolicy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import RandomSource, Selection


class StaticSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    weights: dict[str, float] = {}
    """Weight by model, with any positive sum. A model without a weight gets 0. Empty: equal weights."""


class StaticState(policy.PolicyState, tag="static", array_like=True, gc=False):
    pass


class Static(SingleChoicePolicy):
    sticky: ClassVar[bool] = True
    state_type: ClassVar[type[Any]] = StaticState

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        weights = read_settings(StaticSettings, settings).weights or dict.fromkeys(models, 1.0)
        for model, weight in weights.items():
            if model not in models:
                raise InvalidInput(f"settings: weights: got {model!r}, wanted one of {', '.join(models)}")
            if not 0 <= weight < inf:
                raise InvalidInput(f"settings: weights: {model}: got {weight}, wanted a number from 0 up")
        total = sum(weights.values())
        if not 0 < total < inf:
            raise InvalidInput(f"settings: weights: got {total} in all, wanted more than 0")
        self.shares = {model: weights.get(model, 0.0) / total for model in models}

    def init(self, previous: Any = None) -> StaticState:
        return StaticState()

    def select(self, state: StaticState, random_source: RandomSource) -> Selection:
        """Draw an exponentially distributed time for each model, with its share as the rate; the earliest wins.

        For a given context the draws stay the same. Raising a model's weight therefore moves contexts to that model
        only, and never moves a context between two other models.
        """
        first, selected = inf, ""
        for model, share in self.shares.items():
            draw = -log(1 - random_source.random())
            if share and (not selected or draw < first * share):
                first, selected = draw / share, model
        return policy.Selection((selected,), self.shares[selected])

    def observe(self, state: StaticState, selection: Selection, losses: Mapping[str, float]) -> StaticState:
        return state

    def weights(self, state: StaticState) -> dict[str, float]:
        return dict(self.shares)
