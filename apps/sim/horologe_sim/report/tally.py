"""What clients count: every request once, however it ended."""

from __future__ import annotations

from array import array
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from horologe_common.status import Status

if TYPE_CHECKING:
    from horologe_common.wire import Answer
    from horologe_sim.scenario.workload import PlannedRequest


class OpenRequest(msgspec.Struct):
    """A request without an answer, at its client. `deadline_ns` 0: it has none."""

    id: int
    ask: PlannedRequest
    sent_ns: int
    deadline_ns: int
    cold: bool = False


class RequestCounts(msgspec.Struct):
    """The ends of one group of requests; latencies in ns, of those answered in time and of refusals."""

    sent: int = 0
    cold: int = 0
    """Sent while no device had the model loaded."""
    statuses: Counter[str] = msgspec.field(default_factory=Counter)
    latencies_ns: array[int] = msgspec.field(default_factory=lambda: array("q"))
    refusal_latencies_ns: array[int] = msgspec.field(default_factory=lambda: array("q"))


class AnswerQuality(msgspec.Struct):
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
        self.counts: dict[str, RequestCounts] = {}
        self.qualities: dict[str, AnswerQuality] = {}
        self.sent_total = 0
        self.ended_total = 0
        self.overdue_ns = 0
        """The latest that any answer came after its deadline."""
        self.strays: list[tuple[int, str]] = []
        """Answers to requests that had had theirs: (request id, status name)."""
        self.swapped: list[int] = []
        """Requests whose outputs were not made of their inputs."""

    def count_sent(self, request: OpenRequest) -> None:
        self.sent_total += 1
        if request.sent_ns >= self.from_ns:
            line = self._counts_of(request.ask.name)
            line.sent += 1
            line.cold += request.cold

    def count_end(self, now_ns: int, request: OpenRequest, status: int) -> None:
        """The one answer to a request (or its client's own word, when it has waited long enough)."""
        self.ended_total += 1
        deadline_ns = request.deadline_ns
        if deadline_ns and now_ns > deadline_ns and status != Status.CANCELLED:
            self.overdue_ns = max(self.overdue_ns, now_ns - deadline_ns)
            status = Status.LATE if status == Status.OK else status
        if request.sent_ns < self.from_ns:
            return
        line = self._counts_of(request.ask.name)
        line.statuses[Status(status).name] += 1
        if status == Status.OK:
            line.latencies_ns.append(now_ns - request.sent_ns)
        elif status == Status.REFUSED:
            line.refusal_latencies_ns.append(now_ns - request.sent_ns)

    def count_quality(self, request: OpenRequest, answer: Answer, right: int | None) -> None:
        """An answer of an application, with how many of its rows are true, if that can be known."""
        if request.sent_ns < self.from_ns:
            return
        judged = self.qualities.setdefault(request.ask.application, AnswerQuality())
        if right is not None:
            judged.rows += request.ask.rows
            judged.right += right
        judged.defaulted += answer.defaulted
        if asked := len(answer.models) + len(answer.missing):
            judged.missing.append(len(answer.missing) / asked)

    def count_stray(self, request_id: int, status: int) -> None:
        """An answer nobody waits for."""
        self.strays.append((request_id, Status(status).name))

    def count(self, *statuses: str) -> int:
        """How many requests ended in one of these ways."""
        return sum(line.statuses[status] for line in self.counts.values() for status in statuses)

    def _counts_of(self, model: str) -> RequestCounts:
        line = self.counts.get(model)
        if line is None:
            line = self.counts[model] = RequestCounts()
        return line
