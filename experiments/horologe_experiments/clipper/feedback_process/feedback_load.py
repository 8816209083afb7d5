"""The load of the feedback experiment: answers that an Exp4 over four models gave, and feedback on them. By seed."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from horologe_common.applications import Application
from horologe_common.wire import Envelope, Feedback, Observation, Query, Tensor, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

CLASSES = 10
NAME = "learning"
BUDGET_NS = 10**9


class LoadSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`observations` in lists of `list`; each observation has a context and an input, drawn evenly."""

    observations: int
    unmeasured: int
    """The first observations, which are not measured."""
    list: int
    contexts: int
    inputs: int
    """Number of different inputs; each is predicted once by each model."""
    width: int
    """Numbers in an input."""
    hidden: int
    """Units of the stub models' hidden layer."""
    accuracies: tuple[float, ...]
    """Accuracy of each model."""


class FeedbackLoad:
    """The load as drawn: `context` and `input` by observation, `label` by model and input."""

    def __init__(self, settings: LoadSettings, seed: int) -> None:
        rng = np.random.default_rng([seed, 17])
        self.settings = settings
        self.models = tuple(f"model-{number}" for number in range(len(settings.accuracies)))
        self.application = Application(NAME, self.models, policy="exp4", contexts=settings.contexts)
        self.context = rng.integers(settings.contexts, size=settings.observations).tolist()
        self.input = rng.integers(settings.inputs, size=settings.observations).tolist()
        truths = rng.integers(CLASSES, size=settings.inputs)
        self.truth: list[float] = truths.astype(float).tolist()
        right = rng.random((len(self.models), settings.inputs)) < np.array(settings.accuracies)[:, None]
        wrong = (truths + rng.integers(1, CLASSES, size=right.shape)) % CLASSES
        self.label: list[list[int]] = np.where(right, truths, wrong).tolist()
        self.inputs = rng.standard_normal((settings.inputs, settings.width)).astype(np.float32)
        self.weights = [
            [
                rng.standard_normal(shape).astype(np.float32)
                for shape in ((settings.width, settings.hidden), (settings.hidden, CLASSES))
            ]
            for _ in self.models
        ]

    def prediction(self, number: int) -> bytes:
        """Return the id of the prediction that an observation is on."""
        return number.to_bytes(8, "big") + self.hash(self.input[number])

    def hash(self, place: int) -> bytes:
        """Return the input's hash: its index, so that `predict` can find it."""
        return place.to_bytes(32, "big")

    def cache_keys(self, place: int) -> dict[str, bytes]:
        """Return the input's cache key for each model, as the selector's core makes it."""
        return {model: b"%s/1\0%032d" % (model.encode(), 0) + self.hash(place) for model in self.models}

    def scores(self, model: int, place: int) -> tuple[Tensor, bytes]:
        """Return a model's scores for an input: 1 for its label, 0 for the other classes."""
        values = [0.0] * CLASSES
        values[self.label[model][place]] = 1.0
        return Tensor("scores", "FP32", (1, CLASSES), 4 * CLASSES), struct.pack(f"<{CLASSES}f", *values)

    def context_of(self, number: int) -> str:
        """Return the name of an observation's context."""
        return f"user-{self.context[number]}"

    def lists(self, inputs: bool) -> Iterator[bytes]:
        """Yield packets of one Feedback each, as a frontend sends them. With `inputs` they can be predicted again."""
        settings = self.settings
        for begin in range(0, settings.observations, settings.list):
            numbers = range(begin, min(begin + settings.list, settings.observations))
            items = tuple(self._observation(number, inputs) for number in numbers)
            message = Feedback(begin // settings.list, NAME, items)
            yield encode([Envelope("selector/0#1", "frontend/0#1", [message])])

    def _observation(self, number: int, inputs: bool) -> Observation:
        place = self.input[number]
        query = Query(number + 1, "", BUDGET_NS, 1, self.hash(place), application=NAME) if inputs else None
        return Observation((self.truth[place],), self.prediction(number), self.context_of(number), (), query)

    def losses(self, number: int) -> dict[str, float]:
        """Return the zero-one loss of each model for an observation."""
        place = self.input[number]
        return {model: float(self.label[at][place] != self.truth[place]) for at, model in enumerate(self.models)}

    def predict(self, places: Sequence[int]) -> Mapping[str, Sequence[float]]:
        """Run the stub models, perceptrons, on a batch of inputs. Return the labels that were drawn, not theirs."""
        rows = self.inputs[places]
        predictions: dict[str, Any] = {}
        for at, (model, (first, second)) in enumerate(zip(self.models, self.weights, strict=True)):
            (np.maximum(rows @ first, 0) @ second).argmax(axis=1).tolist()
            labels = self.label[at]
            predictions[model] = [float(labels[place]) for place in places]
        return predictions
