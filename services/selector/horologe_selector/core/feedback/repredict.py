"""Feedback whose predictions are not known any more: its inputs came along, and the models are asked again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_common.wire import Observation, Query
    from horologe_selector.core.applications.active_application import Running
    from horologe_selector.core.feedback.acknowledgements import Item
    from horologe_selector.policy import Selection


class Again(msgspec.Struct, eq=False):
    """An item whose models are asked again. `values`: of those that need not be."""

    item: Item
    application: str
    context: str
    selection: Selection | None
    seen: Observation
    values: dict[str, tuple[float, ...]]


class Wanted(NamedTuple):
    """For the core: predict this again, then call `Feedbacks.joined` with the token."""

    frontend: str
    token: int
    running: Running
    query: Query
    selection: Selection | None
    """What was asked the first time, if that is known."""


class PredictedAgain:
    """By token, those that came first in front."""

    def __init__(self) -> None:
        self.wanted: list[Wanted] = []
        self._again: dict[int, Again] = {}
        self._last_token = 0

    def __len__(self) -> int:
        return len(self._again)

    def want(self, again: Again, running: Running, query: Query) -> None:
        """Have it predicted."""
        self._last_token += 1
        self._again[self._last_token] = again
        self.wanted.append(Wanted(again.item.pending.frontend, self._last_token, running, query, again.selection))

    def pop(self, token: int) -> Again | None:
        """Its predictions are there. None: nobody waits for them."""
        return self._again.pop(token, None)

    def overdue(self, now_ns: int) -> Iterator[Again]:
        """Those that have been answered without them, which is the end of them."""
        while self._again and (first := next(iter(self._again.items())))[1].item.pending.until_ns <= now_ns:
            del self._again[first[0]]
            yield first[1]
