"""The ledger of simulated clients, which get real answers: counts by name, and the quality of answers."""

from __future__ import annotations

from array import array
from collections import defaultdict
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from horologe_common.status import Status
from horologe_sim.engine.ledger import RequestCounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from horologe_common.wire import Answer
    from horologe_sim.scenario.workload import PlannedRequest


class OpenRequest(msgspec.Struct):
    """A request of a client that is still open. `deadline_ns`: 0 for no deadline."""

    id: int
    ask: PlannedRequest
    sent_ns: int
    deadline_ns: int
    cold: bool = False


class ClientCounts(RequestCounts):
    """Requests of one model, application or client, with the latencies of answers in time and of refusals."""

    __slots__ = ("refusal_times", "times")

    def __init__(self) -> None:
        super().__init__()
        self.times, self.refusal_times = array("q"), array("q")


class AnswerQuality(msgspec.Struct):
    """Quality of the answers of an application. `right` and `rows` count rows with a known truth only."""

    rows: int = 0
    right: int = 0
    defaulted: int = 0
    missing: array[float] = msgspec.field(default_factory=lambda: array("d"))
    """For each answer, the share of the queried models that did not answer in time."""


class Tally:
    """Counts by model or application. Requests sent before `from_ns` (warm-up) count in the totals only."""

    def __init__(self, from_ns: int = 0) -> None:
        self.from_ns = from_ns
        self.counts = defaultdict[str, ClientCounts](ClientCounts)
        self.clients = defaultdict[str, ClientCounts](ClientCounts)
        """Requests by `PlannedRequest.client`, if it is not empty."""
        self.qualities = defaultdict[str, AnswerQuality](AnswerQuality)
        self.sent_total = 0
        self.ended_total = 0
        self.overdue_ns = 0
        """Longest time between a deadline and its answer."""
        self.strays: list[tuple[int, str]] = []
        """Answers to requests that had an answer already: (request id, status name)."""
        self.swapped: list[int] = []
        """Ids of requests with the outputs of another request."""

    def count_sent(self, request: OpenRequest) -> None:
        self.sent_total += 1
        if request.sent_ns >= self.from_ns:
            for counts in self._counts_of(request):
                counts.sent += 1
                counts.cold += request.cold

    def count_end(self, now_ns: int, request: OpenRequest, status: int) -> None:
        """Count the end of a request: its answer, or the timeout of its client."""
        self.ended_total += 1
        deadline_ns = request.deadline_ns
        if deadline_ns and now_ns > deadline_ns and status != Status.CANCELLED:
            self.overdue_ns = max(self.overdue_ns, now_ns - deadline_ns)
            status = Status.LATE if status == Status.OK else status
        if request.sent_ns < self.from_ns:
            return
        for counts in self._counts_of(request):
            counts.statuses[Status(status).name] += 1
            if status == Status.OK:
                counts.times.append(now_ns - request.sent_ns)
            elif status == Status.REFUSED:
                counts.refusal_times.append(now_ns - request.sent_ns)

    def _counts_of(self, request: OpenRequest) -> Iterator[ClientCounts]:
        yield self.counts[request.ask.name]
        if request.ask.client:
            yield self.clients[request.ask.client]

    def count_quality(self, request: OpenRequest, answer: Answer, right: int | None) -> None:
        """Count an answer of an application. `right`: rows with the true label; None if the truth is unknown."""
        if request.sent_ns < self.from_ns:
            return
        quality = self.qualities[request.ask.application]
        if right is not None:
            quality.rows += request.ask.rows
            quality.right += right
        quality.defaulted += answer.defaulted
        if queried := len(answer.models) + len(answer.missing):
            quality.missing.append(len(answer.missing) / queried)

    def count_stray(self, request_id: int, status: int) -> None:
        """Count an answer to a request that is not open."""
        self.strays.append((request_id, Status(status).name))

    def count(self, *statuses: str) -> int:
        """Return the number of requests that ended with one of these statuses."""
        return sum(counts.statuses[status] for counts in self.counts.values() for status in statuses)


def quantiles_ms(parts: Iterable[array[int]], quantiles: Sequence[float]) -> list[float]:
    """Return exact quantiles of the durations of all parts, which are in nanoseconds; 0 if there are no durations."""
    samples = np.concatenate([np.empty(0, np.int64), *(np.asarray(part, np.int64) for part in parts)])
    if not samples.size:
        return [0.0] * len(quantiles)
    return [float(value) / 1e6 for value in np.quantile(samples, quantiles, method="inverted_cdf")]
