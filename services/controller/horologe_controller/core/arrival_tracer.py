"""Recent requests for rehearsals: collected per turn, sent to the tuner with the events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.wire import RequestTrace, TracedRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_controller.core.requests.request import Request

MAX_REQUESTS = 5000
"""Limit of the requests in one message: 50,000 per second at a message every 100 ms. A row costs about 1 us."""


class ArrivalTracer:
    """The requests that have arrived since the last message. A turn costs one append for each model."""

    def __init__(self) -> None:
        self._groups: list[Sequence[Request]] = []
        self._count = self._left_out = 0

    def add(self, requests: Sequence[Request]) -> None:
        """Add the requests of a model that have arrived in this turn."""
        if self._count + len(requests) > MAX_REQUESTS:
            self._left_out += len(requests)
            return
        self._count += len(requests)
        self._groups.append(requests)

    def pop(self) -> RequestTrace:
        """Return the requests since the last call."""
        groups, self._groups, left_out = self._groups, [], self._left_out
        self._count = self._left_out = 0
        numbers: dict[str, int] = {}
        rows: list[TracedRequest] = []
        for group in groups:
            model = numbers.setdefault(group[0].model, len(numbers))
            rows += [
                TracedRequest(
                    model,
                    request.arrival_ns,
                    request.budget_ns,
                    request.rows,
                    request.length,
                    request.application,
                    request.best_effort,
                )
                for request in group
            ]
        return RequestTrace(tuple(numbers), tuple(rows), left_out)
