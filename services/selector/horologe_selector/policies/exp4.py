"""Exp4: all models, combined by weights that their losses lessen (Clipper section 5.2)."""

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


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    eta: Rate = 0.1
    memory: Memory = 100
    tolerance: Tolerance = 0.1


class Learned(policy.State, tag="exp4", array_like=True, gc=False):
    log_weights: dict[str, float]


class Exp4:
    single: ClassVar[bool] = False
    sticky: ClassVar[bool] = False
    State: ClassVar[type[Any]] = Learned

    def __init__(self, models: Sequence[str], settings: Mapping[str, Any]) -> None:
        self.settings = read_settings(Settings, settings)
        self.keep = 1 - 1 / self.settings.memory
        self.everyone = policy.Selection(tuple(models))

    def init(self, known: Any = None) -> Learned:
        return Learned(carried(self.everyone.models, known.log_weights if isinstance(known, Learned) else None))

    def select(self, state: Learned, chance: Chance) -> Selection:
        return self.everyone

    def combine(self, state: Learned, ballot: Ballot) -> Guess:
        return combine(shares(state.log_weights), ballot, self.settings.tolerance)

    def observe(self, state: Learned, selection: Selection, losses: Mapping[str, float]) -> Learned:
        eta = self.settings.eta
        costs = {model: eta * loss for model, loss in losses.items()}
        return Learned(lessened(state.log_weights, self.keep, costs)) if costs else state

    def weights(self, state: Learned) -> dict[str, float]:
        return shares(state.log_weights)
