"""What clients count: every request once, however it ended."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from horologe_common.status import Status

if TYPE_CHECKING:
    from horologe_common.wire import Answer
    from horologe_sim.scenario.workload import Ask


class Open(msgspec.Struct):
    """A request without an answer, at its client. `deadline_ns` 0: it has none."""

    id: int
    ask: Ask
    sent_ns: int
    deadline_ns: int
    cold: bool = False


class Line(msgspec.Struct):
    """The ends of one group of requests; latencies in ns, of those answered in time and of refusals."""

    sent: int = 0
    cold: int = 0
    """Sent while no device had the model loaded."""
    ended: Counter[str] = msgspec.field(default_factory=Counter)
    took_ns: array[int] = msgspec.field(default_factory=lambda: array("q"))
    refused_ns: array[int] = msgspec.field(default_factory=lambda: array("q"))


class Judged(msgspec.Struct):
    """What the answers of an application were made of. `right` of `rows`: where the truth is known."""

    rows: int = 0
    right: int = 0
    defaulted: int = 0
    missing: array[float] = msgspec.field(default_factory=lambda: array("d"))
    """Of each answer, the share of the models asked that were not there in time."""


class Tally:
    """Ends by model. Requests sent before `from_ns` (warming up) are followed, but not counted in the lines."""

    def __init__(self, from_ns: int = 0) -> None:
        self.from_ns = from_ns
        self.lines: dict[str, Line] = {}
        self.judgements: dict[str, Judged] = {}
        self.asked = 0
        self.answers = 0
        self.overdue_ns = 0
        """The latest that any answer came after its deadline."""
        self.strays: list[tuple[int, str]] = []
        """Answers to requests that had had theirs: (request id, status name)."""
        self.swapped: list[int] = []
        """Requests whose outputs were not made of their inputs."""

    def sent(self, request: Open) -> None:
        self.asked += 1
        if request.sent_ns >= self.from_ns:
            line = self._line(request.ask.name)
            line.sent += 1
            line.cold += request.cold

    def ended(self, now_ns: int, request: Open, status: int) -> None:
        """The one answer to a request (or its client's own word, when it has waited long enough)."""
        self.answers += 1
        deadline_ns = request.deadline_ns
        if deadline_ns and now_ns > deadline_ns and status != Status.CANCELLED:
            self.overdue_ns = max(self.overdue_ns, now_ns - deadline_ns)
            status = Status.LATE if status == Status.OK else status
        if request.sent_ns < self.from_ns:
            return
        line = self._line(request.ask.name)
        line.ended[Status(status).name] += 1
        if status == Status.OK:
            line.took_ns.append(now_ns - request.sent_ns)
        elif status == Status.REFUSED:
            line.refused_ns.append(now_ns - request.sent_ns)

    def judged(self, request: Open, answer: Answer, right: int | None) -> None:
        """An answer of an application, with how many of its rows are true, if that can be known."""
        if request.sent_ns < self.from_ns:
            return
        judged = self.judgements.setdefault(request.ask.application, Judged())
        if right is not None:
            judged.rows += request.ask.rows
            judged.right += right
        judged.defaulted += answer.defaulted
        if asked := len(answer.models) + len(answer.missing):
            judged.missing.append(len(answer.missing) / asked)

    def stray(self, request_id: int, status: int) -> None:
        """An answer nobody waits for."""
        self.strays.append((request_id, Status(status).name))

    def count(self, *statuses: str) -> int:
        """How many requests ended in one of these ways."""
        return sum(line.ended[status] for line in self.lines.values() for status in statuses)

    def _line(self, model: str) -> Line:
        line = self.lines.get(model)
        if line is None:
            line = self.lines[model] = Line()
        return line
