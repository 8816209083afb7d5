"""Online learning: a policy of the selector answers requests in turn, with feedback before the next request.

The predictions of the models are given.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from horologe_common.applications import Application
from horologe_selector.core.applications.losses import find_loss
from horologe_selector.policies import make_policy
from horologe_selector.policy import RowPredictions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray


class Requests(NamedTuple):
    """Predictions of all models for all requests, and the right answers."""

    models: tuple[str, ...]
    predictions: NDArray[np.int64]
    """[requests, models]; columns in the order of `models`."""
    truth: NDArray[np.int64]
    """[requests]."""

    @property
    def wrong(self) -> NDArray[np.bool_]:
        """Return True for each wrong prediction: [requests, models]."""
        return np.not_equal(self.predictions, self.truth[:, None])


class Answers(NamedTuple):
    """Wrong answers and confidences: [requests] each."""

    wrong: NDArray[np.bool_]
    confidence: NDArray[np.float64]


def serve_online(
    requests: Requests,
    policy: str,
    seed: int,
    contexts: Sequence[int] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Answers:
    """Answer all requests in turn. With `contexts`, every context has its own state."""
    application = Application("online", requests.models, policy=policy, settings=dict(settings or {}))
    selector, loss, rng = make_policy(application), find_loss(application, {}), Random(seed)
    states: dict[int, Any] = {}
    wrong, confidences = [], []
    for values, truth, context in zip(
        requests.predictions.tolist(), requests.truth.tolist(), contexts or [0] * len(requests.truth), strict=True
    ):
        state = states[context] if context in states else selector.init()
        selection = selector.select(state, rng)
        predicted = dict(zip(requests.models, values, strict=True))
        ballot = RowPredictions({model: predicted[model] for model in selection.models}, {})
        value, confidence = selector.combine(state, ballot)
        losses = {model: loss(truth, prediction) for model, prediction in ballot.predictions.items()}
        states[context] = selector.observe(state, selection, losses)
        wrong.append(value != truth)
        confidences.append(confidence)
    return Answers(np.array(wrong), np.array(confidences))
