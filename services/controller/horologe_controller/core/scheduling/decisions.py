"""Decisions of a scheduler: what to start, load, unload and refuse."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request


class Batch(msgspec.Struct):
    """Requests of one model to run together on one share. `latest_ns`: the last start at which it is worth running."""

    share: Share
    model: str
    batch_size: int
    requests: list[Request]
    start_ns: int
    latest_ns: int
    expected_ns: int


class Reason(StrEnum):
    """Why the controller refuses a request: label value of `horologe_refused_total`, and sentence for the submitter."""

    EXECUTION_TOO_LONG = "execution_too_long", "its execution alone takes past its deadline"
    WORK_AHEAD = "work_ahead", "the work ahead of it takes past its deadline"
    LOAD_BACKOFF = "load_backoff", "its model is loaded nowhere, and its next LOAD comes too late"
    NO_WORKER = "no_worker", "no connected worker can serve its model"
    OVERDUE = "overdue", "its turn did not come in time"
    EXPIRED = "expired", "its deadline passed in the queue"
    BATCH_FORMED = "batch_formed", "it is too late for the batch that was formed"
    QUEUE_FULL = "queue_full", "the limit of queued requests (controller.max_queued) is reached"

    sentence: str

    def __new__(cls, label: str, sentence: str) -> Reason:
        reason = str.__new__(cls, label)
        reason._value_, reason.sentence = label, sentence
        return reason


class Refusal(msgspec.Struct):
    """A request that is not run. `retry_after_ns`: how much later its deadline would have had to be.

    HTTP sends this time as Retry-After. At most 0: a later deadline would not help.
    """

    request: Request
    reason: Reason
    retry_after_ns: int = 0
    refuses_ns: int = 0
    place_ns: int = 0
    """See `Outcome.refuses_ns` and `Outcome.place_ns`."""

    def describe(self) -> str:
        """Return the sentence for the submitter, with the missing time, rounded up to microseconds, if it is known."""
        sentence = self.reason.sentence
        if self.retry_after_ns <= 0:
            return sentence
        return f"{sentence}: it would end {-(-self.retry_after_ns // 1000) / 1000:g} ms late"


class Decisions(msgspec.Struct):
    """Decisions, to be carried out in this order: refuse, unload, load, start.

    A plan has at most one LOAD. If `replan`, another may follow: `Planner.plan` is called again at once, with the
    LOAD in the mirror.
    """

    start: list[Batch] = []
    load: list[tuple[Share, str]] = []
    unload: list[tuple[Share, str]] = []
    refuse: list[Refusal] = []
    wake_ns: int | None = None
    replan: bool = False
