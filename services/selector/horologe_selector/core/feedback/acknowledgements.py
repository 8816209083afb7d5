"""Acknowledgements: a status for each observation of a Feedback, then one reply, at a deadline at the latest."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Acknowledged

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_selector.core.predictions.prediction_log import LoggedPrediction


class UnacknowledgedFeedback(msgspec.Struct, eq=False):
    """Feedback without its reply. `missing`: number of items without a status; -1 after the reply."""

    frontend: str
    id: int
    deadline_ns: int
    missing: int
    statuses: list[int]
    reason: str = ""
    retry_after_ns: int = 0


class FeedbackItem:
    """Observation that is not saved yet. `duplicates`: places where the same observation was sent again.

    This is no Struct, because `prediction` refers back to it, and a snapshot cannot hold a Struct in a cycle.
    """

    __slots__ = ("duplicates", "feedback", "index", "prediction")

    def __init__(self, feedback: UnacknowledgedFeedback, index: int, prediction: LoggedPrediction | None) -> None:
        self.feedback = feedback
        self.index = index
        self.prediction = prediction
        self.duplicates: list[tuple[UnacknowledgedFeedback, int]] | None = None


class Acknowledgements:
    """Pending feedback. Invariant: each gets exactly one reply, at its deadline at the latest.

    Items without a status at the deadline are LOST.
    """

    def __init__(self, post: Callable[[Out], None]) -> None:
        self._pending: deque[UnacknowledgedFeedback] = deque()
        self._post = post

    def __len__(self) -> int:
        return sum(feedback.missing > 0 for feedback in self._pending)

    def open_feedback(self, frontend: str, number: int, deadline_ns: int, count: int) -> UnacknowledgedFeedback:
        """Add a Feedback with `count` items. `deadline_ns` must not be earlier than that of the previous one."""
        feedback = UnacknowledgedFeedback(frontend, number, deadline_ns, count, [int(Status.LOST)] * count)
        if count:
            self._pending.append(feedback)
        else:
            self._acknowledge(feedback)
        return feedback

    def set_status(
        self, feedback: UnacknowledgedFeedback, index: int, status: int, reason: str = "", retry_after_ns: int = 0
    ) -> None:
        """Set the status of one item. The reply contains the first reason. After the reply this does nothing."""
        if feedback.missing <= 0:
            return
        feedback.statuses[index] = status
        feedback.missing -= 1
        feedback.reason = feedback.reason or reason
        feedback.retry_after_ns = feedback.retry_after_ns or retry_after_ns
        if not feedback.missing:
            self._acknowledge(feedback)

    def tick(self, now_ns: int) -> None:
        pending = self._pending
        while pending and (pending[0].missing <= 0 or pending[0].deadline_ns <= now_ns):
            feedback = pending.popleft()
            if feedback.missing > 0:
                feedback.reason = feedback.reason or "not saved in time; it may be saved later"
                self._acknowledge(feedback)

    def next_ns(self) -> int | None:
        return self._pending[0].deadline_ns if self._pending else None

    def _acknowledge(self, feedback: UnacknowledgedFeedback) -> None:
        feedback.missing = -1
        message = Acknowledged(feedback.id, tuple(feedback.statuses), feedback.reason, feedback.retry_after_ns)
        self._post(Out(feedback.frontend, message))
