"""Log of recent application answers by prediction id, for feedback to find the predictions it refers to.

The log is bounded and drops the oldest answers.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from horologe_common.application_answers import HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_selector.policy import Selection

TEMPLATES = 4096
"""Maximum number of templates that answers share."""


class CacheKeyPart(NamedTuple):
    """Cache key of one model's prediction, without its end."""

    model: str
    prefix: bytes
    private: bool
    """True if the key ends with the whole prediction id, because the application shares no predictions. Otherwise it
    ends with the id's input hash."""


class LogTemplate(NamedTuple):
    """Content that many answers have in common; equal templates are stored once."""

    application: str
    models: tuple[str, ...]
    key_parts: tuple[CacheKeyPart, ...]


class LoggedPrediction(msgspec.Struct, gc=False):
    """One answer. The garbage collector tracks no part of it except `pending_item`, which is set only for a while."""

    template: LogTemplate
    probability: float
    context: str
    pending_item: Any = None
    """Feedback item on this answer that is not saved yet."""
    has_feedback: bool = False
    """True once feedback on this answer has been saved."""


class PredictionLog:
    """Last `limit` answers by prediction id. 100,000 of them take about 23 MB with their contexts."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._answers: dict[bytes, LoggedPrediction] = {}
        self._ids: deque[bytes] = deque()
        """The logged ids, the oldest first."""
        self._templates: dict[LogTemplate, LogTemplate] = {}

    def __len__(self) -> int:
        return len(self._answers)

    def get(self, prediction: bytes) -> LoggedPrediction | None:
        return self._answers.get(prediction)

    def add(
        self, prediction: bytes, application: str, context: str, selection: Selection, cache_keys: Mapping[str, bytes]
    ) -> LoggedPrediction:
        """Log an answer under its prediction id, dropping the oldest. Return the entry, or the one already there.

        `cache_keys` are those of all queried models, with shadows and stragglers. Each ends with the prediction id or
        its input hash.
        """
        if prediction in self._answers:
            return self._answers[prediction]
        template = self._template(prediction, application, selection, cache_keys)
        logged = LoggedPrediction(template, selection.probability, context)
        self._ids.append(prediction)
        self._answers[prediction] = logged
        if len(self._ids) > self._limit:
            del self._answers[self._ids.popleft()]
        return logged

    def _template(
        self, prediction: bytes, application: str, selection: Selection, cache_keys: Mapping[str, bytes]
    ) -> LogTemplate:
        input_hash = prediction[HEAD_BYTES:]
        parts = []
        for model, key in cache_keys.items():
            private = key.endswith(prediction)
            prefix = key[: -len(prediction)] if private else key.removesuffix(input_hash)
            parts.append(CacheKeyPart(model, prefix, private))
        template = LogTemplate(application, selection.models, tuple(parts))
        if len(self._templates) >= TEMPLATES:
            self._templates.clear()
        return self._templates.setdefault(template, template)

    def check(self) -> None:
        assert len(self._answers) == len(self._ids) <= self._limit
        assert all(prediction in self._answers for prediction in self._ids)
