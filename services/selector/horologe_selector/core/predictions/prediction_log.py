"""What was answered, by its name, so that feedback finds the predictions it is about. Bounded; the oldest go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_common.prediction_id import HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_selector.policy import Selection

PLANS = 4096


class Part(NamedTuple):
    """Of one model: its key in the cache, but for its end, which is the name of the prediction or just its hash."""

    model: str
    front: bytes
    own: bool
    """Whether it ends in the whole name: the application shares no predictions."""


class Plan(NamedTuple):
    """What many answers have in common, kept once."""

    application: str
    models: tuple[str, ...]
    parts: tuple[Part, ...]


class Remembered(msgspec.Struct, gc=False):
    """One answer. Nothing in it is tracked by the garbage collector but `item`, which goes when it has been learned."""

    plan: Plan
    probability: float
    context: str
    item: Any = None
    """The feedback on it that is on its way."""
    counted: bool = False
    """Whether it has had its feedback."""


class Table:
    """At most `limit` answers, by name. 100,000 take about 23 MB with their contexts."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._answers: dict[bytes, Remembered] = {}
        self._names: list[bytes] = []
        self._next = 0
        self._plans: dict[Plan, Plan] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, prediction: bytes) -> Remembered | None:
        return self._answers.get(prediction)

    def put(
        self, prediction: bytes, application: str, context: str, selection: Selection, cache_keys: Mapping[str, bytes]
    ) -> Remembered:
        """Remember an answer, forgetting the oldest."""
        if prediction in self._answers:
            return self._answers[prediction]
        known = Remembered(self._plan(prediction, application, selection, cache_keys), selection.probability, context)
        if len(self._names) < self._limit:
            self._names.append(prediction)
        else:
            self._answers.pop(self._names[self._next])
            self._names[self._next] = prediction
            self._next = (self._next + 1) % self._limit
        self._answers[prediction] = known
        return known

    def _plan(self, prediction: bytes, application: str, selection: Selection, cache_keys: Mapping[str, bytes]) -> Plan:
        suffix = prediction[HEAD_BYTES:]
        parts = []
        for model, key in cache_keys.items():
            own = key.endswith(prediction)
            front = key[: -len(prediction)] if own else key.removesuffix(suffix)
            parts.append(Part(model, front, own))
        plan = Plan(application, selection.models, tuple(parts))
        if len(self._plans) >= PLANS:
            self._plans.clear()
        return self._plans.setdefault(plan, plan)

    def check(self) -> None:
        assert len(self._answers) == len(self._names) <= self._limit
        assert all(name in self._answers for name in self._names)
