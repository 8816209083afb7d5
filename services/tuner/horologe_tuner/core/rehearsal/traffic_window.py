"""The requests of the last minutes, in bounded memory."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

import msgspec

from horologe_common.wire import RequestTrace

if TYPE_CHECKING:
    from horologe_common.wire import TracedRequest


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
