"""How much work each model has outstanding, which shares can be expected to do it, and who most needs a LOAD.

Clockwork appendix B: demand d_m, allocations a_m,g with sum over g = d_m, load l_g = sum over m of a_m,g, and load
priority p_m = d_m - sum over g of a_m,g * capacity / l_g. As there, a model's allocations and priority are brought up
to date when something happens to that model, not whenever a load changes.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from horologe_controller.core.cluster.device_slowness import Slowness

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_common.models import ModelSpec
    from horologe_controller.core.cluster.share import Holders, Share
    from horologe_controller.core.requests.request import Request

CAPACITY_PART = 0.75
"""Work a share as quick as its profiles is taken to do while the demand for a model lasts, as a part of the time that
its requests are given. With 100 ms they count for 88 at most (until a LOAD comes too late): with all of it, no model
would come to a second share before the first is far behind. With half of it, LOADs that help nobody crowd out others.
"""
SWEEP_FROM = 64
NOTHING: dict[Share, int] = {}


class Demand:
    """The estimates of appendix B. A request counts while a LOAD that began now would still help it."""

    def __init__(self, grace_ns: int) -> None:
        self._slowness = Slowness(grace_ns)
        self._total: dict[str, int] = {}
        self._budget_ns: dict[str, int] = {}
        """What the last request of a model was given, best effort aside."""
        self._parts: dict[str, dict[Share, int]] = {}
        self._loads: dict[Share, int] = {}
        """Of every share that something has ever happened on."""
        self._gone: list[Share] = []
        """Whose loads go once the demand for their models has been allocated anew."""
        self._priority: dict[str, int] = {}
        self._heap: list[tuple[int, str]] = []
        self._helped_until: list[tuple[int, int]] = []
        """A heap of (when a LOAD has become too late, request id); only those count that are in `_counted` as well."""
        self._counted: dict[int, tuple[int, str, int]] = {}
        self._stale: dict[str, bool] = {}
        self._left: dict[Share, bool] = {}
        """Shares that hold a model which is not asked for any more, since `take_left`."""

    def __len__(self) -> int:
        """Requests that count."""
        return len(self._counted)

    def __contains__(self, model: str) -> bool:
        return model in self._total

    def add(self, request: Request, until_ns: int) -> None:
        """A request has come whose model, were it to be loaded, would have to be so from `until_ns` on."""
        model = request.model
        self._counted[request.id] = until_ns, model, request.cost_ns
        self._total[model] = self._total.get(model, 0) + request.cost_ns
        if not request.best_effort or model not in self._budget_ns:
            self._budget_ns[model] = request.deadline_ns - request.arrival_ns
        self._stale[model] = True
        heapq.heappush(self._helped_until, (until_ns, request.id))
        if len(self._helped_until) > 2 * len(self._counted) + SWEEP_FROM:
            self._helped_until = [(until_ns, number) for number, (until_ns, *_) in self._counted.items()]
            heapq.heapify(self._helped_until)

    def remove(self, request_id: int) -> None:
        """The request is not outstanding any more, or beyond help."""
        counted = self._counted.pop(request_id, None)
        if counted is None:
            return
        _, model, cost_ns = counted
        left_ns = self._total[model] - cost_ns
        if left_ns > 0:
            self._total[model] = left_ns
        else:
            del self._total[model], self._budget_ns[model]
        self._stale[model] = True

    def changed(self, model: str) -> None:
        """The model has come to a share, or gone."""
        if model in self._total or model in self._parts:
            self._stale[model] = True

    def touched(self, share: Share) -> None:
        """Something has happened on it."""
        self._loads.setdefault(share, 0)
        self._slowness.touched(share)

    def forget(self, share: Share) -> None:
        """It is gone, and the models from it."""
        self._slowness.forget(share)
        self._gone.append(share)

    def update(self, now_ns: int, holders: Holders) -> None:
        """Take in what has happened up to now."""
        self._slowness.update(now_ns)
        helped_until = self._helped_until
        while helped_until and helped_until[0][0] < now_ns:
            until_ns, request_id = heapq.heappop(helped_until)
            if request_id in self._counted and self._counted[request_id][0] == until_ns:
                self.remove(request_id)
        if self._stale:
            stale, self._stale = self._stale, {}
            for model in stale:
                self._allocate(model, holders)
        while self._gone:
            self._loads.pop(self._gone.pop(), None)

    def neediest(self, share: Share, specs: Mapping[str, ModelSpec]) -> str | None:
        """The model with the highest positive priority that is served and that the share lacks."""
        heap, kept, found = self._heap, [], None
        while heap:
            entry = heap[0]
            if self._priority.get(entry[1]) != -entry[0]:
                heapq.heappop(heap)
            elif entry[1] in specs and share.lacks(entry[1]):
                found = entry[1]
                break
            else:
                kept.append(heapq.heappop(heap))
        for entry in kept:
            heapq.heappush(heap, entry)
        return found

    def first(self) -> str:
        """The model with the highest positive priority; "" if there is none."""
        heap = self._heap
        while heap and self._priority.get(heap[0][1]) != -heap[0][0]:
            heapq.heappop(heap)
        return heap[0][1] if heap else ""

    def take_left(self) -> list[Share]:
        """Shares that hold a model whose last request has left since the last call."""
        left, self._left = self._left, {}
        return list(left)

    def load_ns(self, share: Share) -> int:
        """l_g: the demand allocated to the share."""
        return self._loads.get(share, 0)

    def _allocate(self, model: str, holders: Holders) -> None:
        """a_m,g inversely proportional to l_g, then p_m."""
        loads = self._loads
        for share, part_ns in self._parts.pop(model, NOTHING).items():
            loads[share] -= part_ns
        total_ns = self._total.get(model, 0)
        if not total_ns:
            self._priority.pop(model, None)
            self._left.update(dict.fromkeys(holders.of.get(model, ()), True))
            return
        priority_ns = total_ns
        if hosts := holders.of.get(model):
            mostly_ns = round(CAPACITY_PART * self._budget_ns[model])
            parts = self._parts[model] = _parts(total_ns, hosts, loads)
            slowness = self._slowness.of
            for share, part_ns in parts.items():
                loads[share] = load_ns = loads[share] + part_ns
                priority_ns -= part_ns * round(mostly_ns / slowness[share]) // (load_ns or 1)
        if self._priority.get(model) != priority_ns:
            self._priority[model] = priority_ns
            if priority_ns > 0:
                heapq.heappush(self._heap, (-priority_ns, model))
                self._sweep()

    def _sweep(self) -> None:
        """Drop entries that do not count any more once they are the majority."""
        if len(self._heap) > 2 * len(self._priority) + SWEEP_FROM:
            self._heap = [(-priority, model) for model, priority in self._priority.items() if priority > 0]
            heapq.heapify(self._heap)

    def check(self) -> None:
        """Allocations add up to the demand and to the loads; nothing is kept of requests that have left."""
        entries = set(self._helped_until)
        assert all((until_ns, number) in entries for number, (until_ns, *_) in self._counted.items())
        by_share: dict[Share, int] = {}
        for model, parts in self._parts.items():
            if model not in self._stale:
                assert sum(parts.values()) == self._total[model]
            for share, part_ns in parts.items():
                by_share[share] = by_share.get(share, 0) + part_ns
        assert {share: load for share, load in self._loads.items() if load} == {
            share: load for share, load in by_share.items() if load
        }
        waiting = {model for model, priority in self._priority.items() if priority > 0}
        assert waiting <= {model for _, model in self._heap}


def _parts(total_ns: int, hosts: Mapping[Share, bool], loads: Mapping[Share, int]) -> dict[Share, int]:
    """The total in whole ns, shared out inversely to the loads."""
    if len(hosts) == 1:
        return dict.fromkeys(hosts, total_ns)
    weights = [1 / (1 + loads[share]) for share in hosts]
    scale = total_ns / sum(weights)
    parts = [int(scale * weight) for weight in weights]
    parts[-1] += total_ns - sum(parts)
    return dict(zip(hosts, parts, strict=True))
