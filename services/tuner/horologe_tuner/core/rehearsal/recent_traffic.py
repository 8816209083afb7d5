"""Recent traffic of a controller, in bounded memory: its requests, and what part of them it has served in time."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

import msgspec

from horologe_common.wire import RequestTrace

if TYPE_CHECKING:
    from horologe_common.wire import Events, TracedRequest

MAX_ENTRIES = 2000
"""Messages that are kept: those of more than three minutes at a message every 100 ms."""


class TrafficWindow:
    """The requests of the last `span_ns`, at most the last `limit` of them."""

    def __init__(self, span_ns: int, limit: int) -> None:
        self._span_ns = span_ns
        self._limit = limit
        self._requests: deque[tuple[str, TracedRequest]] = deque(maxlen=limit)

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, trace: RequestTrace) -> None:
        """Add the requests of a message. If it has left some out, the window starts again: the load would be wrong."""
        if trace.left_out:
            self._requests.clear()
            return
        requests = self._requests
        requests.extend((trace.models[request.model], request) for request in trace.requests)
        if requests:
            oldest_ns = requests[-1][1].arrival_ns - self._span_ns
            while requests[0][1].arrival_ns < oldest_ns:
                requests.popleft()

    def clear(self) -> None:
        """Discard all requests."""
        self._requests.clear()

    def span_ns(self) -> int:
        """Return the time between the first request and the last one."""
        return self._requests[-1][1].arrival_ns - self._requests[0][1].arrival_ns if self._requests else 0

    def models(self) -> tuple[str, ...]:
        """Return the keys of the requested models, the most popular first."""
        return tuple(model for model, _ in Counter(model for model, _ in self._requests).most_common())

    def trace(self, models: tuple[str, ...]) -> RequestTrace:
        """Return the requests for these models, in order of arrival."""
        numbers = {model: number for number, model in enumerate(models)}
        rows = [
            msgspec.structs.replace(request, model=numbers[model])
            for model, request in self._requests
            if model in numbers
        ]
        return RequestTrace(models, tuple(sorted(rows, key=lambda request: request.arrival_ns)))


class ServedRecord:
    """Counts of each Events since the last `restart`, by the time of its arrival. A replay is compared with them."""

    def __init__(self) -> None:
        self.since_ns = 0
        self._entries: deque[tuple[int, int, int]] = deque(maxlen=MAX_ENTRIES)

    def restart(self, now_ns: int) -> None:
        """Discard all counts: another scheduler is in use from now on."""
        self.since_ns = now_ns
        self._entries.clear()

    def add(self, now_ns: int, events: Events) -> None:
        """Add the requests that have ended."""
        in_time = sum(model.in_time for model in events.models)
        missed = sum(model.refused + model.late for model in events.models)
        if in_time or missed:
            if len(self._entries) == MAX_ENTRIES:
                self.since_ns = self._entries[0][0]
            self._entries.append((now_ns, in_time, missed))

    def part_in_time(self, from_ns: int, until_ns: int, least: int) -> float | None:
        """Return the part in time of the requests that ended between the two times; None if fewer than `least`."""
        counts = [(in_time, missed) for at_ns, in_time, missed in self._entries if from_ns < at_ns <= until_ns]
        in_time, missed = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
        return in_time / (in_time + missed) if in_time + missed >= max(1, least) else None

    def latest(self, least: int) -> float | None:
        """Return the part in time of the last `least` requests or more; None if fewer have ended since the restart."""
        served = ended = 0
        for _, in_time, missed in reversed(self._entries):
            served += in_time
            ended += in_time + missed
            if ended >= least:
                return served / ended
        return None
