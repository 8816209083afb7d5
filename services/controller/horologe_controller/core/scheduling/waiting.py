"""What schedulers of other systems do beyond the look-ahead: let a queue wait, and drop its head for a larger batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_common.clock import NEVER_NS
from horologe_common.core.timers import Timers
from horologe_controller.core.scheduling.planner import LookAhead
from horologe_controller.core.scheduling.scheduler import Refusal
from horologe_controller.core.scheduling.strategies import Strategy, oldest

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.scheduler import Batch, Plan
    from horologe_controller.settings import ControllerSettings

WHEN_DRY = 1
"""First place of the rank: such a batch is decided on when its share is about to run dry, as by an executor that takes
its next batch when it has done the last."""


class Window(NamedTuple):
    """A batch of `size`: so many requests of a queue, from `place` on."""

    size: int
    place: int
    requests: int


class Waiting(LookAhead):
    """A scheduler but for `propose`, which may call `wait`."""

    drops_heads = False
    """Refuses the requests before a batch that could not have made their deadlines in it."""

    def __init__(self, settings: ControllerSettings) -> None:
        super().__init__(settings)
        self._waits = Timers()
        self._waiting: dict[int, tuple[int, ModelQueue]] = {}
        """By the id of its first request, until when a queue waits."""
        self._dropped: list[Refusal] = []

    def wait(self, queue: ModelQueue, until_ns: int) -> None:
        """To be called where `propose` says None: the queue is looked at again at `until_ns`, if not sooner."""
        key = queue[0].id
        if key not in self._waiting or until_ns < self._waiting[key][0]:
            self._waiting[key] = until_ns, queue
            self._waits.arm(key, until_ns)

    def leftover(
        self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue, until_ns: int = NEVER_NS
    ) -> Strategy | None:
        """Best effort only as far as it has ended when a batch that waits wants its share."""
        wait_ns = self.next_wait_ns()
        if wait_ns is None:
            return oldest(now_ns, start_ns, share, queue, until_ns)
        strategy = oldest(now_ns, start_ns, share, queue, min(wait_ns, until_ns))
        if strategy is None and queue:
            self.wait(queue, wait_ns)
        return strategy

    def next_wait_ns(self) -> int | None:
        """When a queue has waited long enough."""
        return self._waits.next_ns()

    def lost(self, share: Share) -> None:
        """Forget what is known of a share: it is gone."""

    def plan(self, now_ns: int, cluster: Cluster) -> Plan:
        for share in cluster.changes.shares:
            if share.gone:
                self.lost(share)
        for key in self._waits.pop_expired(now_ns):
            self._queue_changed(self._waiting.pop(key)[1], cluster)
        plan = super().plan(now_ns, cluster)
        plan.refuse += self._dropped
        self._dropped = []
        next_ns = self.next_wait_ns()
        if next_ns is not None and (plan.wake_ns is None or next_ns < plan.wake_ns):
            plan.wake_ns = next_ns
        return plan

    def _dequeued(self, now_ns: int, requests: list[Request], queue: ModelQueue, cluster: Cluster) -> None:
        for request in requests:
            if self._waiting.pop(request.id, None):
                self._waits.cancel(request.id)
        super()._dequeued(now_ns, requests, queue, cluster)

    def _batch(self, now_ns: int, free_ns: int, share: Share, cluster: Cluster, strategy: Strategy) -> Batch:
        batch = super()._batch(now_ns, free_ns, share, cluster, strategy)
        queue, end_ns = strategy.queue, free_ns + strategy.expected_ns
        if self.drops_heads and not queue.best_effort and (late := queue.surviving(end_ns, queue.spec.max_batch)):
            self._drop(now_ns, queue, late, cluster)
        return batch

    def _drop(self, now_ns: int, queue: ModelQueue, count: int, cluster: Cluster) -> None:
        """Refuse the first `count` requests of a queue."""
        heads = self.backlog.take(queue, range(count))
        self._dequeued(now_ns, heads, queue, cluster)
        for request in heads:
            late_ns = now_ns + self.least_ns(now_ns, request, cluster) - request.deadline_ns
            self._dropped.append(Refusal(request, "too late for the batch that was formed", late_ns))

    def check(self) -> None:
        super().check()
        self._waits.check()
        assert len(self._waits) == len(self._waiting)
        assert not self._dropped


def window(queue: ModelQueue, start_ns: int, target: int, expect_ns: Callable[[int], int]) -> Window | None:
    """The first requests that fill a batch of `target` and survive it, started at `start_ns`; if too few do, a smaller.

    Nexus section 6.3 (early drop): who comes before does not hold up a batch that those behind can fill.
    """
    target = max(target, queue.spec.compiled_batch_size(queue[0].rows))
    for size in queue.sizes():
        if size <= target:
            place = queue.surviving(start_ns + expect_ns(size), size)
            if count := queue.filling(place, size):
                return Window(size, place, count)
    return None


def target_size(queue: ModelQueue, part: float, expect_ns: Callable[[int], int]) -> int:
    """The largest batch that takes at most `part` of what the first request of the queue was given; the smallest if
    none does."""
    first, sizes = queue[0], queue.spec.batch_sizes
    limit_ns = part * (first.deadline_ns - first.arrival_ns)
    return next((size for size in reversed(sizes) if expect_ns(size) <= limit_ns), sizes[0])
