"""Feedback that waits for its acknowledgement: a status for each observation, then one answer, in time in any case."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Acknowledged

if TYPE_CHECKING:
    from horologe_selector.core.predictions.prediction_log import Remembered


class Pending(msgspec.Struct, eq=False):
    """A Feedback under way. `left`: items that have no status yet; -1 when it has been answered."""

    frontend: str
    id: int
    until_ns: int
    left: int
    statuses: list[int]
    reason: str = ""
    retry_after_ns: int = 0


class Item:
    """One observation on its way to the store. `others`: it was sent again meanwhile.

    No Struct: what is remembered refers to it too, and a Struct cannot be part of a cycle in a snapshot.
    """

    __slots__ = ("at", "others", "pending", "remembered")

    def __init__(self, pending: Pending, at: int, remembered: Remembered | None) -> None:
        self.pending = pending
        self.at = at
        self.remembered = remembered
        self.others: list[tuple[Pending, int]] | None = None


class Acknowledgements:
    """Law: what is begun is answered once, at `until_ns` at the latest, then LOST where nothing is known."""

    def __init__(self) -> None:
        self._waiting: deque[Pending] = deque()
        self._out: list[Out] = []

    def __len__(self) -> int:
        return sum(pending.left > 0 for pending in self._waiting)

    def begin(self, frontend: str, number: int, until_ns: int, count: int) -> Pending:
        """`until_ns` never decreases from one to the next."""
        pending = Pending(frontend, number, until_ns, count, [int(Status.LOST)] * count)
        if count:
            self._waiting.append(pending)
        else:
            self._answer(pending)
        return pending

    def settle(self, pending: Pending, at: int, status: int, reason: str = "", retry_after_ns: int = 0) -> None:
        """How one observation has ended. The first reason is told."""
        if pending.left <= 0:
            return
        pending.statuses[at] = status
        pending.left -= 1
        pending.reason = pending.reason or reason
        pending.retry_after_ns = pending.retry_after_ns or retry_after_ns
        if not pending.left:
            self._answer(pending)

    def tick(self, now_ns: int) -> None:
        """Answer those whose time has come."""
        waiting = self._waiting
        while waiting and (waiting[0].left <= 0 or waiting[0].until_ns <= now_ns):
            pending = waiting.popleft()
            if pending.left > 0:
                pending.reason = pending.reason or "not saved in time; it may be later"
                self._answer(pending)

    def next_ns(self) -> int | None:
        return self._waiting[0].until_ns if self._waiting else None

    def take(self) -> list[Out]:
        """Acknowledgements."""
        out, self._out = self._out, []
        return out

    def _answer(self, pending: Pending) -> None:
        pending.left = -1
        message = Acknowledged(pending.id, tuple(pending.statuses), pending.reason, pending.retry_after_ns)
        self._out.append(Out(pending.frontend, message))
