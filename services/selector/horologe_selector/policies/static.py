"""Static: each request, or each context, to one model by fixed weights: A/B tests and canaries."""

from __future__ import annotations

from math import inf, log
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from horologe_common.status import InvalidInput
from horologe_selector import policy
from horologe_selector.policies.settings import read_settings
from horologe_selector.policies.single import Single

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_selector.policy import Chance, Selection


class StaticSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    weights: dict[str, float] = {}
    """By model, of any sum; a model that is not named gets nothing. Empty: all the same."""


class Nothing(policy.State, tag="static", array_like=True, gc=False):
    pass


class Static(Single):
    sticky: ClassVar[bool] = True
    State: ClassVar[type[Any]] = Nothing

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        given = read_settings(StaticSettings, settings).weights or dict.fromkeys(models, 1.0)
        for model, weight in given.items():
            if model not in models:
                raise InvalidInput(f"settings: weights: got {model!r}, wanted one of {', '.join(models)}")
            if not 0 <= weight < inf:
                raise InvalidInput(f"settings: weights: {model}: got {weight}, wanted a number from 0 up")
        total = sum(given.values())
        if not 0 < total < inf:
            raise InvalidInput(f"settings: weights: got {total} in all, wanted more than 0")
        self.shares = {model: given.get(model, 0.0) / total for model in models}

    def init(self, known: Any = None) -> Nothing:
        return Nothing()

    def select(self, state: Nothing, chance: Chance) -> Selection:
        """Each model draws a time that is exponential in its weight, and the first one wins.

        So a context changes its model only where the change of weights is about one of the two.
        """
        first, chosen = inf, ""
        for model, share in self.shares.items():
            at = -log(1 - chance.random())
            if share and (not chosen or at < first * share):
                first, chosen = at / share, model
        return policy.Selection((chosen,), self.shares[chosen])

    def observe(self, state: Nothing, selection: Selection, losses: Mapping[str, float]) -> Nothing:
        return state

    def weights(self, state: Nothing) -> dict[str, float]:
        return dict(self.shares)
