"""Repredictions: feedback on predictions that are no longer cached, but whose inputs were sent along.

The models predict the inputs again, and the feedback is then joined with those predictions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_common.wire import Observation, Query
    from horologe_selector.core.applications.active_application import ActiveApplication
    from horologe_selector.core.feedback.acknowledgements import FeedbackItem
    from horologe_selector.policy import Selection


class Reprediction(msgspec.Struct, eq=False):
    """Feedback item that waits for predictions. `values`: predictions that are still cached."""

    item: FeedbackItem
    application: str
    context: str
    selection: Selection | None
    observation: Observation
    values: dict[str, tuple[float, ...]]


class RepredictRequest(NamedTuple):
    """Request to the core: predict `query` again, then call `FeedbackProcessor.on_repredicted` with the token."""

    holder: str
    token: int
    active: ActiveApplication
    query: Query
    selection: Selection | None
    """Selection of the original query, if known."""


class Repredictions:
    """Pending repredictions by token, the oldest first; `requests` holds those that the core has not started."""

    def __init__(self) -> None:
        self.requests: list[RepredictRequest] = []
        self._pending: dict[int, Reprediction] = {}
        self._last_token = 0

    def __len__(self) -> int:
        return len(self._pending)

    def add_reprediction(self, reprediction: Reprediction, active: ActiveApplication, query: Query) -> None:
        self._last_token += 1
        self._pending[self._last_token] = reprediction
        holder = reprediction.item.feedback.frontend
        self.requests.append(RepredictRequest(holder, self._last_token, active, query, reprediction.selection))

    def pop_reprediction(self, token: int) -> Reprediction | None:
        """Remove and return a reprediction; None if it was overdue."""
        return self._pending.pop(token, None)

    def pop_overdue(self, now_ns: int) -> Iterator[Reprediction]:
        """Remove and yield the repredictions whose feedback has reached its deadline."""
        while self._pending and (first := next(iter(self._pending.items())))[1].item.feedback.deadline_ns <= now_ns:
            del self._pending[first[0]]
            yield first[1]
