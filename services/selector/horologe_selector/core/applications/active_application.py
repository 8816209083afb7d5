"""Application being served: its declaration, policy and loss, and for each model counters and a fallback."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.status import InvalidInput
from horologe_common.wire import ApplicationState, ModelStatistics
from horologe_selector.core.applications.losses import find_loss
from horologe_selector.policies import make_policy

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horologe_common.applications import Application
    from horologe_selector.core.applications.losses import Loss
    from horologe_selector.policy import CombinedPrediction, ValueShares

AGREEMENT = 0.05
"""Numbers of a regression agree if they differ by at most this, absolutely or relative to the larger magnitude."""
WINDOW = 1000
"""Number of later predictions after which a prediction counts 1/e of its original weight."""
VALUES = 64
"""Maximum number of classes kept. A class rarer than 64 others decides no vote."""
RESCALE_AT = 1e100
"""Largest weight of a new prediction before all weights are rescaled."""


class ModelTally(msgspec.Struct):
    """Counters of one model since the application was declared or the selector started.

    Each field is exported as the metric `horologe_application_model_FIELD_total`. `ModelStatistics` ends with the same
    fields in the same order.
    """

    answered: int = 0
    missing: int = 0
    agreed: int = 0
    observations: int = 0
    loss: float = 0.0


class FallbackPrediction:
    """Recent predictions of one model: frequency of each class, or for regression the mean (Clipper section 5.2.2).

    It is used when the model is missing. Example: a model that recently predicted class 3 for six rows and class 8 for
    two has the shares 3: 0.75, 8: 0.25. When it misses a deadline, its weight in the vote is divided between the
    classes 3 and 8 in that ratio.
    """

    __slots__ = ("_count", "_mean", "_regression", "_step", "_sums")

    def __init__(self, regression: bool = False) -> None:
        self._regression = regression
        self._mean = 0.0
        self._count = 0
        self._sums: dict[float, float] = {}
        self._step = 1.0
        """Weight of the next prediction. It grows with each one, which discounts all earlier predictions."""

    def add_predictions(self, values: Iterable[float]) -> None:
        """Add predictions, one for each row. They must be finite."""
        for value in values:
            if self._regression:
                self._count = min(self._count + 1, WINDOW)
                # Two divisions, because the difference of two finite numbers may overflow.
                self._mean += value / self._count - self._mean / self._count
            else:
                self._step *= 1 + 1 / WINDOW
                self._sums[value] = self._sums.get(value, 0.0) + self._step
        if len(self._sums) > 2 * VALUES or self._step > RESCALE_AT:
            self._compact()

    def shares(self) -> ValueShares:
        """Return values with shares that sum to 1, the most frequent first; empty before the first prediction."""
        if self._regression:
            return {self._mean: 1.0} if self._count else {}
        frequent = self._most_frequent()
        total = sum([weight for _, weight in frequent])
        return {value: weight / total for value, weight in frequent}

    def _most_frequent(self) -> list[tuple[float, float]]:
        return sorted(self._sums.items(), key=lambda item: -item[1])[:VALUES]

    def _compact(self) -> None:
        self._sums = {value: weight / self._step for value, weight in self._most_frequent()}
        self._step = 1.0


class ActiveApplication:
    """Declared application with its policy and counters. Raises `InvalidInput` for unknown policies or losses."""

    def __init__(self, application: Application, revision: int, losses: Mapping[str, Loss]) -> None:
        self.application = application
        self.revision = revision
        self.policy = make_policy(application)
        self.loss = find_loss(application, losses)
        self.replaced = False
        """True once it was replaced by another declaration or withdrawn; queries in flight still refer to it."""
        models = (*application.models, *application.shadows)
        self.fallbacks = {model: FallbackPrediction(application.task == "regression") for model in models}
        self.tallies = {model: ModelTally() for model in models}

    def carry_over(self, previous: ActiveApplication) -> None:
        """Keep counters and fallbacks of the models that the previous declaration had too."""
        for model in self.tallies.keys() & previous.tallies.keys():
            self.tallies[model] = previous.tallies[model]
            if self.application.task == previous.application.task:
                self.fallbacks[model] = previous.fallbacks[model]

    def count_answer(self, model: str, values: Sequence[float], combined: Sequence[CombinedPrediction]) -> None:
        """Count a model's predictions `values` for the rows that the application answered with `combined`."""
        tally = self.tallies[model]
        tally.answered += 1
        tally.agreed += 0 < len(values) == len(combined) and all(
            math.isclose(value, row.value, rel_tol=AGREEMENT, abs_tol=AGREEMENT)
            for value, row in zip(values, combined, strict=True)
        )

    def count_missing(self, model: str) -> None:
        self.tallies[model].missing += 1

    def compute_losses(self, truths: Sequence[float], values: Mapping[str, tuple[float, ...]]) -> dict[str, float]:
        """Return the mean loss over the rows, by model, for models that the application still has.

        Raises `InvalidInput` if a truth is not finite or the number of truths differs from the number of rows. Passes
        on exceptions of the operator's own loss functions.
        """
        loss, count = self.loss, len(truths)
        if not all(map(math.isfinite, truths)):
            raise InvalidInput(f"truths: got {list(truths)}, wanted finite numbers")
        if count == 1:
            (truth,) = truths
            losses = {model: loss(truth, rows[0]) for model, rows in values.items() if len(rows) == 1}
        else:
            losses = {
                model: sum(map(loss, truths, rows)) / count
                for model, rows in values.items()
                if count and len(rows) == count
            }
        if values and not losses:
            rows = len(next(iter(values.values())))
            raise InvalidInput(f"truths: got {count}, wanted {rows}, one for each row")
        return {model: mean for model, mean in losses.items() if model in self.tallies}

    def count_loss(self, model: str, loss: float) -> None:
        tally = self.tallies[model]
        tally.observations += 1
        tally.loss += loss

    def describe(self, state: Any = None, contexts: int = 0) -> ApplicationState:
        """Return the declaration, and with a policy state also the counters and weights of each model."""
        if state is None:
            return ApplicationState(self.application, self.revision)
        weights, shadows = self.policy.weights(state), self.application.shadows
        statistics = tuple(
            ModelStatistics(model, weights.get(model, 0.0), model in shadows, *msgspec.structs.astuple(tally))
            for model, tally in self.tallies.items()
        )
        return ApplicationState(self.application, self.revision, statistics, contexts)
