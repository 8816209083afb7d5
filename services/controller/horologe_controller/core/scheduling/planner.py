"""The planner: queues, admission, look-ahead and placement, around a policy that chooses the batches.

Planning never iterates over all models or requests. What has changed is examined, and what comes first in a heap. The
shares that hold a model are visited when its queues or its demand change.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS
from horologe_common.core.indexed_heap import IndexedHeap
from horologe_controller.core.cluster.message_latency import LookAhead, look_ahead
from horologe_controller.core.scheduling.admission import Admission, LateRefusals, count_cost
from horologe_controller.core.scheduling.best_effort import BestEffortLimit, urgent_strategy
from horologe_controller.core.scheduling.client_order import share_batch
from horologe_controller.core.scheduling.decisions import Batch, Decisions, Reason, Refusal
from horologe_controller.core.scheduling.loading.load_planner import LoadPlanner
from horologe_controller.core.scheduling.queues import RequestQueues
from horologe_controller.core.scheduling.ranking import ShareRankings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.scheduling_policy import SchedulingPolicy
    from horologe_controller.core.scheduling.strategy import Strategy
    from horologe_controller.settings import ControllerSettings


class Planner:
    """Queues requests, and plans a few milliseconds ahead with a policy.

    Deterministic: no clock, no randomness, no iteration over sets.
    """

    def __init__(self, policy: SchedulingPolicy, settings: ControllerSettings) -> None:
        self.policy = policy
        self.settings = settings
        self.cluster = policy.cluster
        self.queues = RequestQueues()
        self.admission = Admission(settings.admission, self.cluster)
        self.loads = LoadPlanner(settings, self.cluster, self.queues, policy.traffic)
        self.late_refusals = LateRefusals(policy, self.queues, self._on_dequeued)
        self.waits = policy.waits
        self.best_effort = BestEffortLimit(policy.best_effort_batch, self.admission.shortest_wait)
        self.rankings = ShareRankings(policy.best_batch, self.best_effort.best_batch, policy.rank_bound)
        self._idle: dict[Share, bool] = {}
        """Shares that had room for a batch when last examined, and found none."""
        self._reexamined: dict[Share, bool] = {}
        """Shares to examine again: idle ones that hold a model of a queue that has changed, and changed ones."""
        self._wants_work: IndexedHeap[Share, int] = IndexedHeap()
        """Shares that have enough work, by the time when they want more, unless they change first."""

    def __len__(self) -> int:
        """Return the number of queued requests."""
        return self.queues.count

    def add(self, now_ns: int, requests: Sequence[Request]) -> list[Refusal]:
        """Queue requests for one queue: equal in model, shape and best effort. Return refusals of those not queued.

        They are admitted together if none of them is close to a refusal.
        """
        self.policy.on_requests_arrived(requests)
        counted = not (self.policy.uses_distributions and requests[0].model in self.cluster.distributions)
        alike = len(requests) > 1 and counted and len({request.rows for request in requests}) == 1
        if alike:
            by_deadline = sorted(requests, key=lambda request: request.deadline_ns)
            if self._add_alike(now_ns, by_deadline, counted) is None:
                return []
        return self._add_each(now_ns, requests, counted)

    def _add_each(self, now_ns: int, requests: Iterable[Request], counted: bool) -> list[Refusal]:
        """Queue requests one by one. Return refusals of those not queued. `counted`: see `_add_alike`."""
        refusals: list[Refusal] = []
        for request in requests:
            refusal = self._add_alike(now_ns, (request,), counted)
            if refusal is None:
                continue
            if refusal.reason != Reason.WORK_AHEAD:
                refusals.append(refusal)
                continue
            for lost in self._displace(now_ns, request):
                # how much later a displaced request would be is not known: another one was too late
                refusals.append(refusal if lost is request else Refusal(lost, refusal.reason))
                self.policy.on_request_late(now_ns, lost)
        return refusals

    def _displace(self, now_ns: int, arrival: Request) -> Sequence[Request]:
        """Queue an arrival in the place of requests of other clients, which are returned; else return the arrival."""
        if (queue := self.queues.find_queue(arrival)) is None:
            return (arrival,)
        queue.record_loss(now_ns)
        displaced = queue.find_displaced(arrival)
        if not displaced or self._add_alike(now_ns, (arrival,), False) is not None:
            return (arrival,)
        for request in displaced:
            self._on_dequeued([request], self.queues.dequeue(request))
        return displaced

    def _add_alike(self, now_ns: int, requests: Sequence[Request], counted: bool) -> Refusal | None:
        """Queue all requests, which have equal rows, or return a refusal. `counted`: the requests ahead count."""
        first, rule = requests[0], self.policy.deadline_rule
        queue = self.queues.find_queue(first)
        if not (exec_ns := self.policy.shortest_exec_ns(now_ns, first)):
            return Refusal(first, Reason.NO_WORKER)
        if not first.best_effort and rule != "ignore":
            expires = rule == "expire"
            if refusal := self.admission.refuse_on_arrival(now_ns, requests, exec_ns, queue, counted, expires):
                return refusal
        queue = self.queues.enqueue(requests, exec_ns, queue)
        count_cost(now_ns, requests, queue, self.cluster)
        if self.loads.models_missing:
            self.loads.add_requests(now_ns, requests, exec_ns, self.cluster.profiled_load_ns(queue.model))
        self._on_queue_changed(queue)
        if self.policy.on_requests_queued is not None:
            self.policy.on_requests_queued(requests)
        return None

    def _on_queue_changed(self, queue: ModelQueue) -> None:
        """Recompute the queue's strategies, and examine the idle shares that hold its model."""
        for share in self.rankings.mark_queue(queue):
            if share in self._idle:
                self._reexamined[share] = True

    def remove(self, request: Request) -> None:
        """Remove a queued request (cancelled)."""
        self._on_dequeued([request], self.queues.dequeue(request))

    def _on_dequeued(self, requests: list[Request], queue: ModelQueue) -> None:
        """Update what depends on requests that have left their queue."""
        if self.waits.held:
            self.waits.release_requests(requests)
        if self.policy.on_requests_removed is not None:
            self.policy.on_requests_removed(requests, queue)
        self._on_queue_changed(queue)
        if self.loads.models_missing:
            self.loads.demand.remove_requests(requests)

    def record_refused_again(self, now_ns: int, refusal: Refusal, count: int) -> None:
        """Record that `count` requests have come since the last one, and were refused on arrival in the same way."""
        request = refusal.request
        if refusal.reason != Reason.WORK_AHEAD:  # no device time would have served them
            self.policy.on_requests_arrived([request] * count)
            return
        if (queue := self.queues.find_queue(request)) is not None:
            queue.record_loss(now_ns)
        self.policy.on_refused_again(now_ns, request, count)

    def observe(self, now_ns: int, action: Action, took_ns: int) -> None:
        """Take note that an INFER ran for `took_ns`. The estimates have it already."""
        if self.policy.on_result is not None:
            self.policy.on_result(action, took_ns)
        self.rankings.mark_estimates(action.share, self.queues.of_model(action.model))

    def plan(self, now_ns: int, plan: Decisions | None = None) -> Decisions:
        """Decide. Read and clear `cluster.changes`. The requests that the plan starts or refuses are dequeued.

        `plan`: an empty one, which has what was decided before a fault.
        """
        plan, queues = plan or Decisions(), self.queues
        for queue in self.waits.pop_expired(now_ns) if self.waits.held else ():
            self._on_queue_changed(queue)
        expires = self.policy.deadline_rule != "ignore"
        if expires and queues.has_checks_due(now_ns):
            plan.refuse.extend(self.late_refusals.refuse_overdue(now_ns))
        shares = self._adopt_changes(now_ns)
        if not queues.count:
            self._idle |= shares
        elif shares:
            self._fill_shares(now_ns, shares, plan)
        retry_ns = self.loads.plan(now_ns, plan) if self.loads.models_missing else None
        plan.wake_ns = self._next_wake_ns(now_ns, retry_ns, queues.next_overdue_ns() if expires else None)
        return plan

    def _next_wake_ns(self, now_ns: int, *wakes: int | None) -> int | None:
        """Return the earliest of `wakes`, of the times when shares want more work, and of the ends of waits."""
        at_ns = self._wants_work.smallest_priority()
        for wake_ns in wakes:
            if wake_ns is not None and (at_ns is None or wake_ns < at_ns):
                at_ns = wake_ns
        at_ns = None if at_ns is None else max(at_ns, now_ns + 1)
        wait_ns = self.waits.next_ns() if self.waits.held else None
        return wait_ns if at_ns is None or (wait_ns is not None and wait_ns < at_ns) else at_ns

    def _adopt_changes(self, now_ns: int) -> dict[Share, bool]:
        """Update what depends on the cluster. Return the shares that may have room and a batch to start."""
        if self.cluster.changes.shares:
            self._adopt_cluster_changes(now_ns)
        reexamined, self._reexamined = self._reexamined, {}
        for share in self._wants_work.pop_up_to(now_ns):
            reexamined[share] = True
        return reexamined

    def _adopt_cluster_changes(self, now_ns: int) -> None:
        """Update what depends on changed shares, and examine these."""
        changes, changed = self.cluster.changes, {}
        for share, model in changes.resident_models:
            self.loads.demand.mark_model(model)
            self.rankings.update_residency(share, model, self.queues.of_model(model))
        for share, reconfigured in changes.shares.items():
            if share.is_lost:
                self._discard_share(share)
                continue
            changed[share] = True
            if reconfigured:
                self.loads.preloadable[share] = None
        self._reexamined |= changed
        if self.loads.models_missing:
            self.loads.mark_shares(changed)
        if changes.resident_models or any(changes.shares.values()):
            self.loads.update_missing(now_ns, self.queues, self.policy.shortest_exec_ns)
        changes.clear()

    def _discard_share(self, share: Share) -> None:
        self.rankings.discard_share(share)
        self._idle.pop(share, None)
        self._reexamined.pop(share, None)
        self._wants_work.remove(share)
        self.loads.discard_share(share)
        self.best_effort.discard_share(share)
        self.policy.on_share_lost(share)

    def _fill_shares(self, now_ns: int, shares: dict[Share, bool], plan: Decisions) -> None:
        """Give batches to shares by index. What a batch leaves behind may be a good batch for a later idle share."""
        order = list(shares)
        heapq.heapify(order)
        ahead = look_ahead(now_ns, self.cluster.latency, self.settings, self.policy.just_in_time)
        while order:
            share = heapq.heappop(order)
            self._fill_share(now_ns, share, ahead, plan)
            for later in [other for other in self._reexamined if share < other] if self._reexamined else ():
                del self._reexamined[later]
                if later not in shares:
                    shares[later] = True
                    heapq.heappush(order, later)

    def _fill_share(self, now_ns: int, share: Share, ahead: LookAhead, plan: Decisions) -> None:
        """Give batches to one share until it has work for the look-ahead."""
        self._idle.pop(share, None)
        if not self.cluster.workers[share.worker].reachable or share.exec.is_overdue(now_ns):
            return
        self._wants_work.remove(share)
        if self.loads.draining and (until_ns := self.loads.drains_until(now_ns, share)) is not None:
            self._wants_work.push(share, until_ns)
            return
        free_ns, in_flight = share.exec.free_at(now_ns), len(share.exec.pending)
        while in_flight < ahead.in_flight:
            has_more = in_flight >= self.settings.in_flight
            until_ns = ahead.more_until_ns if has_more else ahead.until_ns
            if free_ns > until_ns:
                if has_more:
                    self._idle[share] = True  # look again with each request: `free_ns` moves while a Result is late
                self._wants_work.push(share, free_ns - (until_ns - now_ns))
                return
            start_ns = max(free_ns, ahead.earliest_ns)
            strategy = self._best_strategy(now_ns, start_ns, share, ahead.overrun_ns if in_flight else 0)
            if strategy is not None and strategy.rank.when_dry and free_ns > ahead.lead_until_ns:
                self._wants_work.push(share, free_ns - (ahead.lead_until_ns - now_ns))
                strategy = None
            if strategy is None:
                self._idle[share] = True
                return
            plan.start.append(self._pop_batch(now_ns, start_ns, share, strategy, plan.refuse))
            free_ns = start_ns + strategy.expected_ns
            in_flight += 1

    def _best_strategy(self, now_ns: int, start_ns: int, share: Share, overrun_ns: int) -> Strategy | None:
        """Return the batch that goes next. `overrun_ns`: by how much EXECs ahead of it may end later than predicted."""
        if (rankings := self.rankings.of_share.get(share)) is None:
            return None
        urgent = urgent_strategy(now_ns, start_ns, share, self.queues) if self.queues.urgent else None
        strategy = urgent or rankings[0].best_strategy(now_ns, start_ns + overrun_ns, share)
        if strategy is None:
            strategy = self.best_effort.next_batch(now_ns, start_ns, share, rankings[1])
            if strategy is None and (retry_ns := self.best_effort.retry_ns(share)):
                self._wants_work.push(share, retry_ns)
        return strategy

    def _pop_batch(
        self, now_ns: int, start_ns: int, share: Share, strategy: Strategy, refusals: list[Refusal]
    ) -> Batch:
        """Take the requests of a strategy from their queue. Adds to `refusals` what the policy drops for the batch."""
        if (order := strategy.queue.clients) is not None and strategy.queue.is_losing(now_ns):
            strategy = share_batch(order, strategy, self.cluster.distributions.get(strategy.queue.model))
        queue, expected_ns, policy = strategy.queue, strategy.expected_ns, self.policy
        if policy.on_batch_chosen(start_ns, share, strategy):
            self.rankings.rerank_deadlines()
        self._on_dequeued(requests := self.queues.pop_batch(queue, strategy.places), queue)
        latest_ns = self._latest_start_ns(start_ns, requests[0], strategy)
        if queue.best_effort:
            self.best_effort.charge(now_ns, share, expected_ns)
        elif policy.count_late_heads and (late_heads := policy.count_late_heads(queue, start_ns + expected_ns)):
            refusals += self.late_refusals.drop_heads(now_ns, queue, late_heads)
        return Batch(share, queue.model, strategy.size, requests, start_ns, latest_ns, expected_ns)

    def _latest_start_ns(self, free_ns: int, first: Request, strategy: Strategy) -> int:
        """Return the end of the window of a batch that can start at `free_ns`."""
        if self.policy.deadline_rule != "predict":
            return NEVER_NS
        latest_ns = first.deadline_ns - strategy.expected_ns if strategy.latest_ns is None else strategy.latest_ns
        window_ns = self.policy.parameters.window_ns
        return min(latest_ns, free_ns + window_ns) if window_ns else latest_ns

    def check(self) -> None:
        """Assert the invariants of the queues."""
        for part in (self.queues, self.loads.demand, self.rankings, self._wants_work, self.waits):
            part.check()
        self.policy.check(self.queues)
