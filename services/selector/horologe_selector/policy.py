"""What a selection policy is: which models of an application to ask, what to make of their predictions, what to learn.

Clipper section 5, listing 2. A policy is stateless: what it has learned is in a state that it is given and gives back,
one for each application and context, and randomness is passed in. Implementations: policies/.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Shares: TypeAlias = "Mapping[float, float]"
"""What a model predicts for one row: values with shares that sum to 1. One value where the model has answered; what it
has predicted on average where it is missing (Clipper section 5.2.2)."""


class State(msgspec.Struct):
    """Base of what policies learn. Kept as MessagePack, so fields are added at the end, with defaults."""


class Chance(Protocol):
    """Source of randomness; `random.Random` is one."""

    def random(self) -> float:
        """Uniform in [0, 1)."""

    def betavariate(self, alpha: float, beta: float) -> float: ...


class Selection(NamedTuple):
    """Models to ask, and the probability with which just these were chosen."""

    models: tuple[str, ...]
    probability: float = 1.0


class Ballot(NamedTuple):
    """Predictions for one row by the models selected, as declared. `absent`: what stands in for a missing one."""

    predictions: Mapping[str, float]
    absent: Mapping[str, Shares]
    regression: bool = False


class Guess(NamedTuple):
    """The combined prediction; `confidence` is the share of the models selected that agree with it, in [0, 1]."""

    value: float
    confidence: float


class Policy(Protocol):
    """Constructed from an application's models and settings; raises `InvalidInput` naming a setting that is wrong."""

    single: ClassVar[bool]
    """Whether it asks one model at a time, so that outputs of any kind can be passed on."""
    sticky: ClassVar[bool]
    """Whether a context is to keep its model: `chance` then follows from the context alone (`chance.Sticky`)."""
    State: ClassVar[type[Any]]

    def init(self, known: Any = None) -> Any:
        """A state for the application's models; `known` carries over what was learned about those it still has."""

    def select(self, state: Any, chance: Chance) -> Selection:
        """Which models to ask."""

    def combine(self, state: Any, ballot: Ballot) -> Guess:
        """One prediction from those that are there, at least one."""

    def observe(self, state: Any, selection: Selection, losses: Mapping[str, float]) -> Any:
        """The state after feedback: `losses` in [0, 1] of those models whose predictions are known."""

    def weights(self, state: Any) -> Mapping[str, float]:
        """What each model counts now; they sum to 1."""


class Make(Protocol):
    """How a policy is made, what the registry holds."""

    def __call__(self, models: Sequence[str], settings: Mapping[str, Any]) -> Policy: ...
