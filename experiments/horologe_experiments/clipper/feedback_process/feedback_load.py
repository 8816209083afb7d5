"""What the half is told: answers of a four-model Exp4 that were given, and lists of feedback on them. By seed."""

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


class Load(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`observations` in lists of `list`, each of a context and of inputs drawn evenly."""

    observations: int
    unmeasured: int
    """Of them, the first."""
    list: int
    contexts: int
    inputs: int
    """Different ones; each is predicted once by each model."""
    width: int
    """Numbers in an input."""
    hidden: int
    """Units of the stub models' hidden layer."""
    accuracies: tuple[float, ...]
    """Of the models."""


class Play:
    """The load, drawn: index by observation, prediction by model and input."""

    def __init__(self, load: Load, seed: int) -> None:
        rng = np.random.default_rng([seed, 17])
        self.load = load
        self.models = tuple(f"model-{number}" for number in range(len(load.accuracies)))
        self.application = Application(NAME, self.models, policy="exp4", contexts=load.contexts)
        self.context = rng.integers(load.contexts, size=load.observations).tolist()
        self.input = rng.integers(load.inputs, size=load.observations).tolist()
        truths = rng.integers(CLASSES, size=load.inputs)
        self.truth: list[float] = truths.astype(float).tolist()
        right = rng.random((len(self.models), load.inputs)) < np.array(load.accuracies)[:, None]
        wrong = (truths + rng.integers(1, CLASSES, size=right.shape)) % CLASSES
        self.label: list[list[int]] = np.where(right, truths, wrong).tolist()
        self.inputs = rng.standard_normal((load.inputs, load.width)).astype(np.float32)
        self.weights = [
            [
                rng.standard_normal(shape).astype(np.float32)
                for shape in ((load.width, load.hidden), (load.hidden, CLASSES))
            ]
            for _ in self.models
        ]

    def prediction(self, number: int) -> bytes:
        """What the answer of this observation was named."""
        return number.to_bytes(8, "big") + self.hash(self.input[number])

    def hash(self, place: int) -> bytes:
        return place.to_bytes(32, "big")

    def cache_keys(self, place: int) -> dict[str, bytes]:
        """As the selector's core makes them."""
        return {model: b"%s/1\0%032d" % (model.encode(), 0) + self.hash(place) for model in self.models}

    def scores(self, model: int, place: int) -> tuple[Tensor, bytes]:
        """What a model has said: the largest score is its label."""
        values = [0.0] * CLASSES
        values[self.label[model][place]] = 1.0
        return Tensor("scores", "FP32", (1, CLASSES), 4 * CLASSES), struct.pack(f"<{CLASSES}f", *values)

    def context_of(self, number: int) -> str:
        return f"user-{self.context[number]}"

    def lists(self, inputs: bool) -> Iterator[bytes]:
        """Packets of one Feedback each, as a frontend sends them; with `inputs`, they can be predicted again."""
        for begin in range(0, self.load.observations, self.load.list):
            numbers = range(begin, min(begin + self.load.list, self.load.observations))
            items = tuple(self._observation(number, inputs) for number in numbers)
            message = Feedback(begin // self.load.list, NAME, items)
            yield encode([Envelope("selector/0#1", "frontend/0#1", [message])])

    def _observation(self, number: int, inputs: bool) -> Observation:
        place = self.input[number]
        query = Query(number + 1, "", 10**9, 1, self.hash(place), application=NAME) if inputs else None
        return Observation((self.truth[place],), self.prediction(number), self.context_of(number), (), query)

    def losses(self, number: int) -> dict[str, float]:
        place = self.input[number]
        return {model: float(self.label[at][place] != self.truth[place]) for at, model in enumerate(self.models)}

    def predict(self, places: Sequence[int]) -> Mapping[str, Sequence[float]]:
        """The stub models: perceptrons, by the list. What they say gives way to what was drawn."""
        rows = self.inputs[places]
        found: dict[str, Any] = {}
        for at, (model, (first, second)) in enumerate(zip(self.models, self.weights, strict=True)):
            (np.maximum(rows @ first, 0) @ second).argmax(axis=1).tolist()
            labels = self.label[at]
            found[model] = [float(labels[place]) for place in places]
        return found
