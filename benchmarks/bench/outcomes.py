"""Outcome of each request of a run with faults: one right answer, or an error that says why not."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from horologe_common.wire import PEER_HEADER_LIMIT, Answer
from horologe_common.wire.frames import unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe import AsyncClient

IN_A_ROW = 20
"""Requests that must succeed one after the other before service counts as resumed."""


class Outcomes:
    """Outcome of each request, by its number."""

    def __init__(self) -> None:
        self.begin_s = time.monotonic()
        self.sent = 0
        self.statuses: dict[int, str] = {}
        self.sent_s: dict[int, float] = {}
        self.answers: Counter[tuple[int, int]] = Counter()
        """Answers that have arrived, by client and id of the request."""
        self.wrong: list[str] = []
        self.reasons: Counter[str] = Counter()

    def now_s(self) -> float:
        return time.monotonic() - self.begin_s

    def count_answers(self, number: int, client: AsyncClient) -> None:
        """Count all answers that arrive at the client, before its session drops those that it does not wait for."""
        session = client._session
        receive = session.receive

        def count_and_receive(now_ns: int, frames: Sequence[Any]) -> None:
            for _, _, message, _ in unpack(frames, PEER_HEADER_LIMIT):
                if isinstance(message, Answer):
                    self.answers[number, message.id] += 1
            receive(now_ns, frames)

        session.receive = count_and_receive  # type: ignore[method-assign]

    def violations(self) -> dict[str, int]:
        """Return the number of violations of each promise about answers."""
        return {
            "wrong": len(self.wrong),
            "twice": sum(count > 1 for count in self.answers.values()),
            "unanswered": self.sent - len(self.statuses),
        }

    def resume_time_s(self, end_s: float) -> float:
        """Return the time from `end_s` until requests succeed in a row."""
        later = [number for number in sorted(self.sent_s) if self.sent_s[number] >= end_s]
        for at in range(len(later) - IN_A_ROW):
            if all(self.statuses.get(number) == "OK" for number in later[at : at + IN_A_ROW]):
                return self.sent_s[later[at]] - end_s
        return self.now_s() - end_s
