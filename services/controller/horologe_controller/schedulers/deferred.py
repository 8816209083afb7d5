"""Symphony's deferred batches (arXiv 2308.07470): a batch waits while a larger one would still make its deadlines.

A batch may start from the first deadline in it less the time of the next larger size: until then, more may come for
that. It has to start before that deadline less its own time. In between it takes the first share that is free; where
several wait for one, the batch that must start first goes. As there, the head of a queue does not hold up a batch of
the target size (window drop). Durations are the estimates that Clockwork goes by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import us
from horologe_controller.core.scheduling.strategies import Strategy
from horologe_controller.core.scheduling.waiting import WHEN_DRY, Waiting, Window, target_size, window

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue

WAY_NS = us(200)
"""A batch is to make its deadlines even if it begins this much later than told: the way to an idle device and its turn,
and timers that are late. Symphony's implementation keeps 100 us for the latter."""


class Deferred(Waiting):
    """A share may stay idle although requests wait."""

    drops_heads = True

    def propose(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """The largest batch of the queue, once it can become no larger."""
        if not queue or (estimate := share.estimates.get(queue.model)) is None:
            return None
        start_ns += WAY_NS

        def expect_ns(size: int) -> int:
            return estimate.predict(now_ns, size)

        found = window(queue, start_ns, target_size(queue, self.settings.deferred_slo_part, expect_ns), expect_ns)
        if found is None:
            return None
        found = _grown(queue, start_ns, found, expect_ns)
        first, expected_ns = queue[found.place], expect_ns(found.size)
        larger = next((size for size in queue.spec.batch_sizes if size > found.size), None)
        if larger is not None:
            closed_ns = first.deadline_ns - expect_ns(larger) - self.settings.deferred_slack_ns
            if start_ns < closed_ns:
                self.wait(queue, closed_ns - WAY_NS)
                return None
        rank = WHEN_DRY, first.deadline_ns - expected_ns, first.id
        return Strategy(rank, queue, found.size, range(found.place, found.place + found.requests), expected_ns)


def _grown(queue: ModelQueue, start_ns: int, found: Window, expect_ns: Callable[[int], int]) -> Window:
    """With more behind it, as long as its first request survives that."""
    deadline_ns = queue[found.place].deadline_ns
    for size in queue.sizes():
        if size <= found.size:
            break
        if start_ns + expect_ns(size) <= deadline_ns and (count := queue.filling(found.place, size)):
            return Window(size, found.place, count)
    return found
