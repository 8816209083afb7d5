"""Interface of a selection policy (Clipper section 5, listing 2). Implementations: `policies/`.

A policy chooses the models of an application that a query is sent to, combines their predictions, and updates its
state from feedback. A policy object is stateless: its state is passed in and returned, one state for each application
and context. Randomness is passed in as well.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ValueShares: TypeAlias = "Mapping[float, float]"
"""Average prediction of a model for one row: each value with its share. The shares sum to 1 (Clipper section 5.2.2)."""


class PolicyState(msgspec.Struct):
    """Base class of policy states. They are stored as MessagePack: add fields only at the end, with defaults."""


class RandomSource(Protocol):
    """Source of random numbers; `random.Random` is one."""

    def random(self) -> float:
        """Return a number drawn uniformly from [0, 1)."""

    def betavariate(self, alpha: float, beta: float) -> float:
        """Return a number drawn from Beta(alpha, beta)."""


class StickyRandom:
    """Random source derived from a context's name, so that a sticky policy always selects the same model for it."""

    def __init__(self, context: str) -> None:
        self._context = context.encode()
        self._draws = 0

    def random(self) -> float:
        self._draws += 1
        digest = hashlib.blake2b(self._context, digest_size=7, salt=self._draws.to_bytes(8, "big")).digest()
        return (int.from_bytes(digest, "big") >> 3) / (1 << 53)

    def betavariate(self, alpha: float, beta: float) -> float:
        """Return the mean: a context that keeps its model does not explore."""
        return alpha / (alpha + beta)


class Selection(NamedTuple):
    """Models that a query is sent to, and the probability with which exactly these were selected."""

    models: tuple[str, ...]
    probability: float = 1.0


class RowPredictions(NamedTuple):
    """Predictions for one row by model, in the order of declaration; `fallbacks`: averages of the missing models."""

    predictions: Mapping[str, float]
    fallbacks: Mapping[str, ValueShares]
    regression: bool = False


class CombinedPrediction(NamedTuple):
    """Prediction of the application for one row; `confidence` is the share of selected models that agree, in [0, 1]."""

    value: float
    confidence: float


class Policy(Protocol):
    """Selection policy of one application, made by a `PolicyFactory`."""

    selects_one: ClassVar[bool]
    """True if the policy selects exactly one model. Task `any`, which passes outputs on unchanged, requires this."""
    sticky: ClassVar[bool]
    """True if a context must always get the same model. `select` is then called with a `StickyRandom`."""
    state_type: ClassVar[type[Any]]
    """Subclass of `PolicyState`."""

    def init(self, previous: Any = None) -> Any:
        """Return a state for the application's models, with what `previous` holds about models that are still there."""

    def select(self, state: Any, random_source: RandomSource) -> Selection:
        """Return the models to send a query to."""

    def combine(self, state: Any, row: RowPredictions) -> CombinedPrediction:
        """Combine the predictions for one row. At least one model has predicted."""

    def observe(self, state: Any, selection: Selection, losses: Mapping[str, float]) -> Any:
        """Return the state after feedback. `losses`: in [0, 1], of the models whose predictions are known."""

    def weights(self, state: Any) -> Mapping[str, float]:
        """Return the present weight of each model; the weights sum to 1."""


class PolicyFactory(Protocol):
    """Constructor of a policy, as registered in `POLICIES`. Raises `InvalidInput` naming an invalid setting."""

    def __call__(self, models: Sequence[str], settings: Mapping[str, Any]) -> Policy: ...
