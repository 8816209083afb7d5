"""Recent requests for rehearsals: collected per turn, sent to the tuner with the events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.wire import RequestTrace, TracedRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.requests.request import Request

MAX_REQUESTS = 5000
"""Limit of the requests in one message: 50,000 per second at `controller.events_ns` 100 ms. A row costs about 1 us."""
RETURN_PART = 3
"""At most 1/4 of a budget is reserved for the return: a third of what is left."""


class RequestTracer:
    """The requests that have arrived since the last message. A turn costs one append for each model."""

    def __init__(self, margin_ns: int) -> None:
        self._margin_ns = margin_ns
        self._groups: list[Sequence[Request]] = []
        self._count = self._left_out = 0

    def add(self, requests: Sequence[Request]) -> None:
        """Add the requests of a model that have arrived in this turn."""
        if self._count + len(requests) > MAX_REQUESTS:
            self._left_out += len(requests)
            return
        self._count += len(requests)
        self._groups.append(requests)

    def pop(self, now_ns: int, cluster: Cluster) -> RequestTrace:
        """Return the requests since the last call. Budgets are those before the return latency was reserved."""
        groups, self._groups, left_out = self._groups, [], self._left_out
        self._count = self._left_out = 0
        reserved_ns = self._margin_ns + (cluster.latency.returns.high_quantile(now_ns) or 0)
        numbers: dict[str, int] = {}
        rows = []
        for group in groups:
            model = numbers.setdefault(group[0].model, len(numbers))
            for request in group:
                budget_ns = request.deadline_ns - request.arrival_ns
                rows.append(
                    TracedRequest(
                        model, request.arrival_ns, budget_ns + min(reserved_ns, budget_ns // RETURN_PART), request.rows,
                        request.length, request.application, request.best_effort,
                    )
                )  # fmt: skip
        return RequestTrace(tuple(numbers), tuple(rows), left_out)
