"""An application being served: what was declared, with its policy, its loss and how its models have done."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.status import InvalidInput
from horologe_common.wire import ApplicationState, ModelStatistics
from horologe_selector.core.applications.fallback import StandIn
from horologe_selector.core.applications.losses import loss_of
from horologe_selector.policies import make_policy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.applications import Application
    from horologe_selector.core.applications.losses import Loss
    from horologe_selector.policy import Guess

AGREES = 0.05
"""Numbers of a regression that differ by less, absolutely or of the larger, count as agreement."""


class Tally(msgspec.Struct):
    """Of one model since the application was declared or the selector started."""

    answered: int = 0
    missing: int = 0
    agreed: int = 0
    observations: int = 0
    loss: float = 0.0


class Running:
    """Raises `InvalidInput` where policy, settings or loss are not known."""

    def __init__(self, application: Application, revision: int, losses: Mapping[str, Loss]) -> None:
        self.application = application
        self.revision = revision
        self.policy = make_policy(application)
        self.loss = loss_of(application, losses)
        self.replaced = False
        """Whether it was declared anew, or withdrawn, while queries were under way."""
        known = (*application.models, *application.shadows)
        self.stand_ins = {model: StandIn(application.task == "regression") for model in known}
        self.tallies = {model: Tally() for model in known}

    def take_over(self, before: Running) -> None:
        """Keep what is known of the models that are still there."""
        for model in self.tallies.keys() & before.tallies.keys():
            self.tallies[model] = before.tallies[model]
            if self.application.task == before.application.task:
                self.stand_ins[model] = before.stand_ins[model]

    def answered(self, model: str, values: Sequence[float], guesses: Sequence[Guess]) -> None:
        """A model has predicted these values, a row each, where the application has said so."""
        tally = self.tallies[model]
        tally.answered += 1
        tally.agreed += 0 < len(values) == len(guesses) and all(
            math.isclose(value, guess.value, rel_tol=AGREES, abs_tol=AGREES)
            for value, guess in zip(values, guesses, strict=True)
        )

    def missed(self, model: str) -> None:
        """A model that was asked has not predicted anything in time."""
        self.tallies[model].missing += 1

    def losses(self, truths: Sequence[float], values: Mapping[str, tuple[float, ...]]) -> dict[str, float]:
        """The mean over the rows by model, of those there still are.

        Raises `InvalidInput` for truths that are not finite or not as many as rows, and what a loss of the operator's
        raises.
        """
        loss, count = self.loss, len(truths)
        if not all(map(math.isfinite, truths)):
            raise InvalidInput(f"truths: got {list(truths)}, wanted finite numbers")
        if count == 1:
            (truth,) = truths
            found = {model: loss(truth, rows[0]) for model, rows in values.items() if len(rows) == 1}
        else:
            found = {
                model: sum(map(loss, truths, rows)) / count
                for model, rows in values.items()
                if count and len(rows) == count
            }
        if values and not found:
            rows = len(next(iter(values.values())))
            raise InvalidInput(f"truths: got {count}, wanted {rows}, one for each row")
        return {model: one for model, one in found.items() if model in self.tallies}

    def observed(self, model: str, loss: float) -> None:
        """Feedback has told this loss of the model."""
        tally = self.tallies[model]
        tally.observations += 1
        tally.loss += loss

    def describe(self, state: Any = None, contexts: int = 0) -> ApplicationState:
        """With the standing of each model, as the policy sees it in `state`, if one is given."""
        if state is None:
            return ApplicationState(self.application, self.revision)
        weights = self.policy.weights(state)
        standings = tuple(
            ModelStatistics(
                model,
                weights.get(model, 0.0),
                model in self.application.shadows,
                tally.answered,
                tally.missing,
                tally.agreed,
                tally.observations,
                tally.loss,
            )
            for model, tally in self.tallies.items()
        )
        return ApplicationState(self.application, self.revision, standings, contexts)
