"""Demand for models: queued work, its allocation to shares, and which model needs a LOAD most (Clockwork appendix B).

Demand d_m of a model, allocations a_m,g to shares with sum over g = d_m, load l_g = sum over m of a_m,g, and load
priority p_m = d_m - sum over g of a_m,g * capacity / l_g. As in the paper, the allocations and the priority of a model
are updated when something happens to that model, not whenever a load changes.

Among models with a positive priority, a LOAD goes to the one with the earliest deadline, not to the highest p_m as in
the appendix: a model with one short request waited until its deadline while others with longer requests kept coming.

The capacity for a model that loses requests while others do not is divided by one more than `Traffic.excess_losses`.
Its queue may be short nevertheless, as the requests of other models pass its own. In the Azure trace on twelve devices,
all lost requests were for popular models that one device held (experiments/results/clockwork.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_common.core.indexed_heap import IndexedHeap
from horologe_controller.core.cluster.lane import ACTION_GRACE_NS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.models import ModelSpec
    from horologe_controller.core.cluster.share import ModelResidency, Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import RequestQueues
    from horologe_controller.core.traffic import Traffic

CAPACITY_PART = 0.75
"""Capacity of a share that matches its profiles, as a part of its requests' budget. Requests with 100 ms count for 88
ms at most (until a LOAD comes too late). With all of the budget, no model would get a second share before the first is
far behind. With half of it, LOADs that help no request crowd out others."""


class DeviceSlowness:
    """Slowness of each share, cached: demand reads it for all shares of a model at every change.

    A share is recomputed after something happened on it. All shares are recomputed once their values may have
    expired, and every `ACTION_GRACE_NS` at least: within that time no action sent since can become overdue.
    """

    def __init__(self) -> None:
        self.factors: dict[Share, float] = {}
        """Share -> recent durations as a multiple of its profiles, at least 1; infinity where it hangs (grey failure,
        Clockwork section 7)."""
        self.changed: dict[Share, bool] = {}
        """Shares to recompute at the next update."""
        self._valid_until_ns = 0

    def discard_share(self, share: Share) -> None:
        self.changed.pop(share, None)
        self.factors.pop(share, None)

    def update(self, now_ns: int) -> None:
        """Recompute the shares that need it."""
        if now_ns > self._valid_until_ns:
            self.changed |= dict.fromkeys(self.factors, True)
            self._valid_until_ns = now_ns + ACTION_GRACE_NS
        for share in self.changed:
            if share.hangs(now_ns):  # until something happens on it
                self.factors[share] = math.inf
            else:
                self.factors[share] = share.slowness(now_ns)
                self._valid_until_ns = min(self._valid_until_ns, share.steady_until_ns())
        self.changed.clear()


class Demand:
    """Demand, allocations and load priorities. A request counts while a LOAD that began now would still help it."""

    def __init__(self, queues: RequestQueues, traffic: Traffic | None = None) -> None:
        """`traffic`: None if a model that loses requests counts like others."""
        self._traffic = traffic
        self._slowness = DeviceSlowness()
        self._queues = queues
        self._total: dict[str, int] = {}
        self._budget_ns: dict[str, int] = {}
        """Model -> budget of its last request; best-effort requests count only if there is no other."""
        self._parts: dict[str, dict[Share, int]] = {}
        """Model -> share -> a_m,g."""
        self._loads: dict[Share, int] = {}
        """Share -> l_g, for shares that have executed at least one action or held a model."""
        self._lost: list[Share] = []
        """Lost shares. Their loads are dropped after the demand for their models was allocated again."""
        self._priority: dict[str, int] = {}
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
        return model in self._total

    def add_request(self, request: Request, until_ns: int) -> None:
        """Count a request. A LOAD of its model has to begin by `until_ns` to help it."""
        model = request.model
        self._total[model] = self._total.get(model, 0) + request.cost_ns
        budget_ns = request.deadline_ns - request.arrival_ns
        if not request.best_effort or model not in self._budget_ns:
            self._budget_ns[model] = budget_ns
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
        rest_ns = self._total[model] - cost_ns
        if rest_ns > 0:
            self._total[model] = rest_ns
        else:
            del self._total[model], self._budget_ns[model]
        self._stale[model] = True

    def mark_model(self, model: str) -> None:
        """Allocate the model's demand again: its residency or its first deadline has changed."""
        if model in self._total or model in self._parts:
            self._stale[model] = True

    def mark_shares(self, shares: dict[Share, bool]) -> None:
        """Recompute these shares at the next update: something happened on them."""
        for share in shares:
            self._loads.setdefault(share, 0)
        self._slowness.changed |= shares

    def discard_share(self, share: Share) -> None:
        self._slowness.discard_share(share)
        if share in self._loads:
            self._lost.append(share)

    def update(self, now_ns: int, residency: ModelResidency) -> None:
        """Bring allocations and priorities up to date."""
        self._slowness.update(now_ns)
        for request in self._counted.pop_up_to(now_ns - 1):
            self._subtract_cost(request.model, request.cost_ns)
        if self._stale:
            stale, self._stale = self._stale, {}
            for model in stale:
                self._allocate(now_ns, model, residency)
        while self._lost:
            self._loads.pop(self._lost.pop(), None)

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

    def most_urgent_anywhere(self) -> str:
        """Return the model with the earliest deadline; "" if no priority is positive."""
        entry = self._positive.peek()
        return entry[1] if entry else ""

    def needs_load(self) -> bool:
        """Return whether a priority is positive."""
        return self._positive.peek() is not None

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
        return self._loads.get(share, 0)

    def _allocate(self, now_ns: int, model: str, residency: ModelResidency) -> None:
        """Divide a_m,g in inverse proportion to l_g, then compute p_m."""
        loads = self._loads
        for share, part_ns in self._parts.pop(model, {}).items():
            loads[share] -= part_ns
        total_ns = self._total.get(model, 0)
        shares = residency.shares_of.get(model)
        if not total_ns:
            self._priority.pop(model, None)
            self._positive.remove(model)
            self._relieved.update(dict.fromkeys(shares or (), True))
            return
        priority_ns = total_ns
        if shares:
            lost = 0.0 if self._traffic is None else self._traffic.excess_losses(now_ns, model)
            capacity_ns = round(CAPACITY_PART * self._budget_ns[model] / (1.0 + lost))
            alone = len(shares) == 1
            parts = self._parts[model] = dict.fromkeys(shares, total_ns) if alone else _divide(total_ns, shares, loads)
            slowness = self._slowness.factors
            for share, part_ns in parts.items():
                loads[share] = load_ns = loads[share] + part_ns
                priority_ns -= part_ns * round(capacity_ns / slowness[share]) // (load_ns or 1)
        self._priority[model] = priority_ns
        if priority_ns > 0:
            deadline_ns = self._queues.first_deadline_ns(model)
            if self._positive.priority(model) != deadline_ns:
                self._positive.push(model, deadline_ns)
        else:
            self._positive.remove(model)

    def check(self) -> None:
        """Assert that allocations add up to demands and to loads, and that requests that left are not counted."""
        self._counted.check()
        by_share: dict[Share, int] = {}
        for model, parts in self._parts.items():
            if model not in self._stale:
                assert sum(parts.values()) == self._total[model]
            for share, part_ns in parts.items():
                by_share[share] = by_share.get(share, 0) + part_ns
        assert {share: load for share, load in self._loads.items() if load} == {
            share: load for share, load in by_share.items() if load
        }
        assert set(self._positive) == {model for model, priority in self._priority.items() if priority > 0}


def _divide(total_ns: int, shares: Mapping[Share, bool], loads: Mapping[Share, int]) -> dict[Share, int]:
    """Divide the total, in whole ns, in inverse proportion to the loads."""
    weights = [1 / (1 + loads[share]) for share in shares]
    scale = total_ns / sum(weights, 0.0)
    parts = [int(scale * weight) for weight in weights]
    parts[-1] += total_ns - sum(parts)
    return dict(zip(shares, parts, strict=True))
