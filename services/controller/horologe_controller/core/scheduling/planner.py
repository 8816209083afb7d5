"""What schedulers that plan a few milliseconds ahead have in common: queues, admission, the look-ahead, placement.

A subclass says which batch of a queue is best on a share (`propose`). Nothing here looks at every model or request:
what has changed is looked at, and what comes first in a heap. Shares are gone through where residency has changed,
until one is found that lacks a model; those that hold a model, where its queues or the demand for it change.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from horologe_common.clock import us
from horologe_controller.core.cluster.load_backoff import held_up
from horologe_controller.core.scheduling.admission import Admission
from horologe_controller.core.scheduling.demand import Demand
from horologe_controller.core.scheduling.placement import Placement
from horologe_controller.core.scheduling.queues import Backlog
from horologe_controller.core.scheduling.rankings import Rankings
from horologe_controller.core.scheduling.scheduler import Batch, Plan, Refusal, too_long
from horologe_controller.core.scheduling.strategies import Strategy, oldest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.settings import ControllerSettings

LATEST_NS = us(500)
"""A best-effort batch, or one smaller than it might have been, is given only this long before a share runs dry:
something better may come until then. Covers the way there and back; at 300 us and 500 us goodput is the same."""


class LookAhead:
    """A scheduler but for `propose`."""

    keeps_deadlines = True
    """Refuses what cannot be done in time, and plans nothing that would end too late."""
    just_in_time = False
    """Gives no batch sooner than it has to: something better may come until then."""

    def __init__(self, settings: ControllerSettings) -> None:
        self.settings = settings
        self.backlog = Backlog()
        self.admission = Admission()
        self.demand = Demand(settings.action_grace_ns)
        self.placement = Placement(settings)
        self.rankings = Rankings(self.propose, self.leftover)
        self._lacking = False
        """Whether some share lacks a model that it could hold."""
        self._hungry: dict[Share, bool] = {}
        """Shares that had room when last looked at, and nothing they could start."""
        self._due: list[tuple[int, int, Share]] = []
        """When shares that were full want more, unless a Result comes first."""

    def propose(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """The best batch of the queue that could start at `start_ns` on the share and make every deadline in it.

        While queue and estimates stay as they are, its rank must not fall as `start_ns` grows.
        """
        raise NotImplementedError

    def leftover(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """`propose` for best effort, which is asked where that finds nothing."""
        return oldest(now_ns, start_ns, share, queue)

    def __len__(self) -> int:
        return len(self.backlog)

    def add(self, now_ns: int, request: Request, cluster: Cluster) -> Refusal | None:
        exec_ns = self.least_ns(now_ns, request, cluster)
        if not exec_ns:
            return Refusal(request, "no worker can serve this model")
        bound = self.keeps_deadlines and not request.best_effort
        if bound and (refusal := held_up(now_ns, request, exec_ns, cluster)):
            return refusal
        if bound and (refusal := self._refusal(now_ns, request, exec_ns, cluster)):
            return refusal
        request.admitted = True
        queue = self.backlog.add(request, exec_ns)
        self.admission.entered(now_ns, request, queue, cluster)
        last_start_ns = request.deadline_ns - exec_ns
        helped_until_ns = last_start_ns - cluster.load_ns(request.model)
        self.demand.add(request, helped_until_ns if helped_until_ns > now_ns else last_start_ns)
        self._queue_changed(queue, cluster)
        return None

    def least_ns(self, now_ns: int, request: Request, cluster: Cluster) -> int:
        """The shortest time in which the request could be run on its own; 0 if nobody ever could."""
        size = request.spec.batch_sizes[0] if request.rows == 1 else request.spec.compiled_batch_size(request.rows)
        exec_ns, _ = cluster.quick_exec_ns(now_ns, request.model, size)
        if not request.best_effort and (not exec_ns or now_ns + exec_ns > request.deadline_ns):
            within_ns = 0 if request.admitted else request.deadline_ns - now_ns
            exec_ns = cluster.best_exec_ns(now_ns, request.model, size, within_ns)
        return exec_ns

    def _queue_changed(self, queue: ModelQueue, cluster: Cluster) -> None:
        """Its best strategies may be others; shares that had nothing to start may have now."""
        self.rankings.queue_changed(queue)
        holders = self.rankings.holders(queue.model)
        for share in self._hungry:
            if share in holders:
                cluster.changes.share(share)

    def _refusal(self, now_ns: int, request: Request, exec_ns: int, cluster: Cluster) -> Refusal | None:
        if self.settings.admission:
            return self.admission.refusal(now_ns, request, exec_ns, cluster)
        return too_long(now_ns, request, exec_ns)

    def remove(self, now_ns: int, request: Request, cluster: Cluster) -> None:
        self._dequeued(now_ns, [request], self.backlog.remove(request), cluster)

    def _dequeued(self, now_ns: int, requests: list[Request], queue: ModelQueue, cluster: Cluster) -> None:
        """They have left their queue."""
        self._queue_changed(queue, cluster)
        self.admission.left(now_ns, requests, queue, cluster)
        for request in requests:
            self.demand.remove(request.id)

    def observe(self, now_ns: int, action: Action, took_ns: int) -> None:
        """The estimates of its model on its share are others."""
        self.rankings.observed(action.share, self.backlog.of(action.model))

    def plan(self, now_ns: int, cluster: Cluster) -> Plan:
        plan = Plan([], [], [], [], None)
        if self.backlog and self.keeps_deadlines:
            plan.refuse = self._refusals(now_ns, cluster)
        shares = self._changed(now_ns, cluster)
        if self.backlog:
            self._fill_all(now_ns, shares, cluster, plan)
        else:
            self._hungry |= shares
        wakes: list[int | None] = [self._due[0][0] if self._due else None]
        if self._lacking:
            self.demand.update(now_ns, cluster.holders)
            wakes.append(self.placement.plan(now_ns, cluster, self.demand, plan))
        if self.backlog and self.keeps_deadlines:
            wakes.append(self.backlog.next_overdue_ns())
        wake_ns = min([at_ns for at_ns in wakes if at_ns is not None], default=None)
        plan.wake_ns = None if wake_ns is None else max(wake_ns, now_ns + 1)
        return plan

    def _changed(self, now_ns: int, cluster: Cluster) -> dict[Share, bool]:
        """Take in what has changed; the shares that may have room and something to start."""
        changes, shares = cluster.changes, {}
        for share, model in changes.models:
            self.demand.changed(model)
            self.rankings.moved(share, model, self.backlog.of(model))
        for share, deep in changes.shares.items():
            if share.gone:
                self.rankings.forget(share)
                self._hungry.pop(share, None)
                self.placement.forget(share)
                self.demand.forget(share)
                continue
            shares[share] = True
            self.placement.touched(share)
            self.demand.touched(share)
            if deep:
                self.placement.changed(share)
        if changes.models or changes.deep:
            self._lacking = any(share.lacking for share in cluster.shares())
        changes.clear()
        while self._due and self._due[0][0] <= now_ns:
            share = heapq.heappop(self._due)[2]
            if not share.gone:
                shares[share] = True
        return shares

    def _refusals(self, now_ns: int, cluster: Cluster) -> list[Refusal]:
        """Those that not even a batch of their own, started now, would finish in time."""
        refused = []
        for request in self.backlog.overdue(now_ns):
            exec_ns = self.least_ns(now_ns, request, cluster)
            if exec_ns and now_ns + exec_ns <= request.deadline_ns:
                self.backlog.again(request, request.deadline_ns - exec_ns)
                continue
            self.remove(now_ns, request, cluster)
            if not request.best_effort:
                self.admission.in_vain(request, exec_ns)
            refused.append(Refusal(request, "its turn did not come in time", now_ns + exec_ns - request.deadline_ns))
        return refused

    def _fill_all(self, now_ns: int, shares: Iterable[Share], cluster: Cluster, plan: Plan) -> None:
        """In order. A batch may leave requests behind that a hungry share further on can make a good batch of."""
        found = {share.index: share for share in shares}
        order = list(found)
        heapq.heapify(order)
        while order:
            index = heapq.heappop(order)
            self._fill(now_ns, found[index], cluster, plan)
            for share in cluster.changes.shares:
                if share.index > index and share.index not in found:
                    found[share.index] = share
                    heapq.heappush(order, share.index)

    def _fill(self, now_ns: int, share: Share, cluster: Cluster, plan: Plan) -> None:
        """Batches for one share until it has work for the look-ahead."""
        self._hungry.pop(share, None)
        if not cluster.workers[share.worker].reachable or share.exec.overdue(now_ns, self.settings.action_grace_ns):
            return
        rankings, latest_ns = self.rankings.of.get(share), self._latest_ns(now_ns, cluster)
        free_ns, in_flight = share.exec.free_at(now_ns), len(share.exec.pending)
        while in_flight < self.settings.in_flight and free_ns < now_ns + self.settings.lookahead_ns:
            if self.just_in_time and free_ns > now_ns + latest_ns:
                heapq.heappush(self._due, (free_ns - latest_ns, share.index, share))
                return
            strategy = rankings[0].best(now_ns, free_ns, share) if rankings else None
            if strategy is None and rankings:
                strategy = rankings[1].best(now_ns, free_ns, share)
            if strategy is not None and strategy.rank[0] and free_ns > now_ns + latest_ns:
                heapq.heappush(self._due, (free_ns - latest_ns, share.index, share))
                strategy = None
            if strategy is None:
                self._hungry[share] = True
                return
            plan.start.append(self._batch(now_ns, free_ns, share, cluster, strategy))
            free_ns += strategy.expected_ns
            in_flight += 1
        if in_flight < self.settings.in_flight:
            heapq.heappush(self._due, (free_ns - self.settings.lookahead_ns, share.index, share))

    def _latest_ns(self, now_ns: int, cluster: Cluster) -> int:
        """How long before a share runs dry it has to be given more."""
        return LATEST_NS

    def _batch(self, now_ns: int, free_ns: int, share: Share, cluster: Cluster, strategy: Strategy) -> Batch:
        queue, expected_ns = strategy.queue, strategy.expected_ns
        requests = self.backlog.take(queue, strategy.places)
        self._dequeued(now_ns, requests, queue, cluster)
        if not queue.best_effort:
            alone_ns = share.predict(now_ns, queue.model, queue.spec.batch_sizes[0])
            self.admission.ran(queue.model, len(requests), alone_ns)
        latest_ns = requests[0].deadline_ns - expected_ns if strategy.latest_ns is None else strategy.latest_ns
        if self.settings.window_ns:
            latest_ns = min(latest_ns, free_ns + self.settings.window_ns)
        return Batch(share, queue.model, strategy.size, requests, free_ns, latest_ns, expected_ns)

    def check(self) -> None:
        self.backlog.check()
        self.admission.check(self.backlog)
        self.demand.check()
        self.rankings.check()
