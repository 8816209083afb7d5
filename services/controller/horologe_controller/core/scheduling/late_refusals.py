"""Refusals of queued requests: too late for any batch, or too late for the batch that was formed behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.core.scheduling.decisions import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import ModelQueue, RequestQueues
    from horologe_controller.core.scheduling.scheduling_policy import SchedulingPolicy


class LateRefusals:
    """Removes late requests from their queues. `on_dequeued` gets the requests that have left a queue."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        queues: RequestQueues,
        on_dequeued: Callable[[list[Request], ModelQueue], None],
    ) -> None:
        self._policy = policy
        self._queues = queues
        self._on_dequeued = on_dequeued

    def refuse_overdue(self, now_ns: int, cluster: Cluster) -> Iterator[Refusal]:
        """Refuse queued requests that are too late by the policy's deadline rule: with workers, or without any."""
        policy, expires = self._policy, self._policy.deadline_rule == "expire"
        reason = Reason.EXPIRED if expires else Reason.OVERDUE
        for request in self._queues.pop_overdue(now_ns):
            exec_ns = 1 if expires else policy.shortest_exec_ns(now_ns, request, cluster)
            if exec_ns and now_ns + exec_ns <= request.deadline_ns:
                self._queues.check_after(request, request.deadline_ns - exec_ns)
                continue
            queue = self._queues.dequeue(request)
            self._on_dequeued([request], queue)
            if not request.best_effort and request.model in cluster.capable:
                queue.record_loss(now_ns)
                policy.on_request_late(now_ns, request, cluster)
            if expires:
                exec_ns = policy.shortest_exec_ns(now_ns, request, cluster)
            if request.model in cluster.capable:
                yield Refusal(request, reason, now_ns + exec_ns - request.deadline_ns)
            else:
                yield Refusal(request, Reason.NO_WORKER)

    def drop_heads(self, now_ns: int, queue: ModelQueue, count: int, cluster: Cluster) -> Iterator[Refusal]:
        """Refuse the first `count` requests of a queue."""
        heads = self._queues.pop_batch(queue, range(count), starts=False)
        self._on_dequeued(heads, queue)
        for request in heads:
            late_ns = now_ns + self._policy.shortest_exec_ns(now_ns, request, cluster) - request.deadline_ns
            yield Refusal(request, Reason.BATCH_FORMED, late_ns)
