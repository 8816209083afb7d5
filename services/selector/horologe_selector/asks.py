"""Feedback that waits for its acknowledgement: a status for each observation, then one answer, in time in any case."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from horologe_common.core import Out
from horologe_common.status import Status
from horologe_common.wire import Acknowledged

if TYPE_CHECKING:
    from horologe_selector.remembered import Remembered


class Ask(msgspec.Struct, eq=False):
    """A Feedback under way. `left`: items that have no status yet; -1 when it has been answered."""

    frontend: str
    id: int
    until_ns: int
    left: int
    statuses: list[int]
    reason: str = ""
    retry_after_ns: int = 0


class Item(msgspec.Struct, eq=False):
    """One observation on its way to the store. `others`: it was sent again meanwhile."""

    ask: Ask
    at: int
    remembered: Remembered | None
    others: list[tuple[Ask, int]] | None = None


class Asks:
    """Law: what is begun is answered once, at `until_ns` at the latest, then LOST where nothing is known."""

    def __init__(self) -> None:
        self._waiting: deque[Ask] = deque()
        self._out: list[Out] = []

    def __len__(self) -> int:
        return sum(ask.left > 0 for ask in self._waiting)

    def begin(self, frontend: str, number: int, until_ns: int, count: int) -> Ask:
        """`until_ns` never decreases from one to the next."""
        ask = Ask(frontend, number, until_ns, count, [int(Status.LOST)] * count)
        if count:
            self._waiting.append(ask)
        else:
            self._answer(ask)
        return ask

    def settle(self, ask: Ask, at: int, status: int, reason: str = "", retry_after_ns: int = 0) -> None:
        """How one observation has ended. The first reason is told."""
        if ask.left <= 0:
            return
        ask.statuses[at] = status
        ask.left -= 1
        ask.reason = ask.reason or reason
        ask.retry_after_ns = ask.retry_after_ns or retry_after_ns
        if not ask.left:
            self._answer(ask)

    def tick(self, now_ns: int) -> None:
        """Answer those whose time has come."""
        waiting = self._waiting
        while waiting and (waiting[0].left <= 0 or waiting[0].until_ns <= now_ns):
            ask = waiting.popleft()
            if ask.left > 0:
                ask.reason = ask.reason or "not saved in time; it may be later"
                self._answer(ask)

    def next_ns(self) -> int | None:
        return self._waiting[0].until_ns if self._waiting else None

    def take(self) -> list[Out]:
        """Acknowledgements."""
        out, self._out = self._out, []
        return out

    def _answer(self, ask: Ask) -> None:
        ask.left = -1
        message = Acknowledged(ask.id, tuple(ask.statuses), ask.reason, ask.retry_after_ns)
        self._out.append(Out(ask.frontend, message))
