"""Demand for models: queued work, its allocation to shares, and which model needs a LOAD most (Clockwork appendix B).

Demand d_m of a model, allocations a_m,g to shares with sum over g = d_m, load l_g = sum over m of a_m,g, and load
priority p_m = d_m - sum over g of a_m,g * capacity / l_g. As in the paper, the allocations and the priority of a model
are updated when something happens to that model, not whenever a load changes.

The capacity of a share is what it can do from the arrival of a request until a LOAD would be too late for it. With all
of the budget, no other share gets the model before the first one is far behind (experiments/results/clockwork.md).

Among models with a positive priority, a LOAD goes to the one with the earliest deadline, not to the highest p_m as in
the appendix: a model with one short request waited until its deadline while others with longer requests kept coming.

The capacity for a model that loses requests while others do not is divided by one more than `Traffic.excess_losses`.
Its queue may be short nevertheless, as the requests of other models pass its own. In the Azure trace on twelve devices,
all lost requests were for popular models that one device held (experiments/results/clockwork.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.indexed_heap import IndexedHeap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.models import ModelSpec
    from horologe_controller.core.cluster.share import ModelResidency, Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import RequestQueues
    from horologe_controller.core.traffic import Traffic


class ShareLoad:
    """Demand that is allocated to a share."""

    __slots__ = ("share", "total_ns")

    def __init__(self, share: Share) -> None:
        self.share = share
        self.total_ns = 0
        """l_g."""


class ModelDemand:
    """Demand for one model."""

    __slots__ = ("helped_ns", "parts", "priority_ns", "total_ns")

    def __init__(self) -> None:
        self.total_ns = 0
        """d_m."""
        self.helped_ns = 0
        """Time from the arrival of its last request until a LOAD would be too late for it. Best-effort requests count
        only if there is no other."""
        self.parts: list[tuple[ShareLoad, int]] = []
        """a_m,g."""
        self.priority_ns = 0
        """p_m."""


class Demand:
    """Demand, allocations and load priorities. A request counts while a LOAD that began now would still help it."""

    def __init__(self, queues: RequestQueues, traffic: Traffic | None = None) -> None:
        """`traffic`: None if a model that loses requests counts like others."""
        self._traffic = traffic
        self._loads: dict[Share, ShareLoad] = {}
        self._queues = queues
        self._models: dict[str, ModelDemand] = {}
        """Models with demand. Those without are dropped by the next update."""
        self._positive: IndexedHeap[str, int] = IndexedHeap()
        """Models with a positive priority, by the first deadline."""
        self._counted: IndexedHeap[Request, int] = IndexedHeap()
        """Requests that count, by when a LOAD becomes too late for them."""
        self._stale: dict[str, bool] = {}
        """Models to allocate again."""
        self._relieved: dict[Share, bool] = {}
        """Shares that hold a model without demand, since `pop_relieved_shares`."""

    def __len__(self) -> int:
        """Return the number of requests that count."""
        return len(self._counted)

    def __contains__(self, model: str) -> bool:
        demand = self._models.get(model)
        return demand is not None and demand.total_ns > 0

    def add_request(self, request: Request, until_ns: int) -> None:
        """Count a request. A LOAD of its model has to begin by `until_ns` to help it."""
        model = request.model
        if (demand := self._models.get(model)) is None:
            demand = self._models[model] = ModelDemand()
        if not request.best_effort or not demand.total_ns:
            demand.helped_ns = max(1, until_ns - request.arrival_ns)
        demand.total_ns += request.cost_ns
        self._stale[model] = True
        self._counted.push(request, until_ns)

    def remove_requests(self, requests: Sequence[Request]) -> None:
        """Stop counting requests of one model that have left their queue."""
        counted, model = self._counted, requests[0].model
        if cost_ns := sum([request.cost_ns for request in requests if counted.remove(request)]):
            self._subtract_cost(model, cost_ns)
        else:
            self.mark_model(model)  # its first deadline may be another

    def clear(self) -> None:
        """Stop counting all requests."""
        for request in list(self._counted):
            self.remove_requests([request])

    def _subtract_cost(self, model: str, cost_ns: int) -> None:
        self._models[model].total_ns -= cost_ns
        self._stale[model] = True

    def mark_model(self, model: str) -> None:
        """Allocate the model's demand again: its residency or its first deadline has changed."""
        if model in self._models:
            self._stale[model] = True

    def discard_share(self, share: Share) -> None:
        self._loads.pop(share, None)

    def update(self, now_ns: int, residency: ModelResidency) -> None:
        """Bring allocations and priorities up to date."""
        for request in self._counted.pop_up_to(now_ns - 1):
            self._subtract_cost(request.model, request.cost_ns)
        if self._stale:
            stale, self._stale = self._stale, {}
            for model in stale:
                self._allocate(now_ns, model, residency)

    def most_urgent(self, share: Share, specs: Mapping[str, ModelSpec]) -> str | None:
        """Return the served model with the earliest deadline that the share can load."""
        models, skipped, urgent = self._positive, [], None
        while (entry := models.peek()) is not None:
            if entry[1] in specs and share.can_load(entry[1]):
                urgent = entry[1]
                break
            skipped.append(models.pop())
        for priority, model in skipped:
            models.push(model, priority)
        return urgent

    def most_urgent_anywhere(self) -> str | None:
        """Return the model with the earliest deadline; None if no priority is positive."""
        entry = self._positive.peek()
        return entry[1] if entry else None

    def pop_relieved_shares(self) -> list[Share]:
        """Return the shares that hold a model whose last request has left since the previous call."""
        relieved, self._relieved = self._relieved, {}
        return list(relieved)

    def count_until(self, model: str, end_ns: int) -> int:
        """Return how many queued requests of the model have their deadlines at `end_ns` or later."""
        queues = self._queues.of_model(model)
        return sum([len(queue) - queue.first_in_time(end_ns, queue.spec.max_batch) for queue in queues])

    def first_deadline_ns(self, model: str) -> int:
        """Return the earliest deadline of the queued requests of a model."""
        return self._queues.first_deadline_ns(model)

    def load_ns(self, share: Share) -> int:
        """Return l_g: the demand allocated to the share."""
        load = self._loads.get(share)
        return 0 if load is None else load.total_ns

    def _load_of(self, share: Share) -> ShareLoad:
        if (load := self._loads.get(share)) is None:
            load = self._loads[share] = ShareLoad(share)
        return load

    def _allocate(self, now_ns: int, model: str, residency: ModelResidency) -> None:
        """Divide a_m,g in inverse proportion to l_g, then compute p_m."""
        demand = self._models[model]
        for load, part_ns in demand.parts:
            load.total_ns -= part_ns
        shares = residency.shares_of.get(model)
        if not demand.total_ns:
            del self._models[model]
            self._positive.remove(model)
            self._relieved |= shares or {}
            return
        priority_ns = demand.total_ns
        demand.parts = _divide(priority_ns, [self._load_of(share) for share in shares]) if shares else []
        if demand.parts:
            lost = 0.0 if self._traffic is None else self._traffic.excess_losses(now_ns, model)
            capacity_ns = round(demand.helped_ns / (1.0 + lost))
            for load, part_ns in demand.parts:
                load.total_ns += part_ns
                share = load.share
                share_ns = 0 if share.hangs(now_ns) else round(capacity_ns / share.slowness(now_ns))
                priority_ns -= part_ns * share_ns // (load.total_ns or 1)
        demand.priority_ns = priority_ns
        if priority_ns > 0:
            deadline_ns = self._queues.first_deadline_ns(model)
            if self._positive.priority(model) != deadline_ns:
                self._positive.push(model, deadline_ns)
        else:
            self._positive.remove(model)

    def check(self) -> None:
        """Assert that allocations add up to demands and to loads, and that requests that left are not counted."""
        self._counted.check()
        allocated: dict[ShareLoad, int] = {}
        for model, demand in self._models.items():
            if demand.parts and model not in self._stale:
                assert sum([part_ns for _, part_ns in demand.parts]) == demand.total_ns
            for load, part_ns in demand.parts:
                allocated[load] = allocated.get(load, 0) + part_ns
        assert all(load.total_ns == allocated.get(load, 0) for load in (*self._loads.values(), *allocated))
        assert set(self._positive) == {model for model, demand in self._models.items() if demand.priority_ns > 0}


def _divide(total_ns: int, loads: Sequence[ShareLoad]) -> list[tuple[ShareLoad, int]]:
    """Divide the total, in whole ns, in inverse proportion to the loads."""
    if len(loads) == 1:
        return [(loads[0], total_ns)]
    weights = [1 / (1 + load.total_ns) for load in loads]
    scale = total_ns / sum(weights, 0.0)
    parts = [int(scale * weight) for weight in weights]
    parts[-1] += total_ns - sum(parts)
    return list(zip(loads, parts, strict=True))
