"""Symphony's deferred batches (arXiv 2308.07470): a batch waits while a larger one would still make its deadlines.

A batch may start from its first deadline less the duration of the next larger size: until then, more requests may
arrive for that size. It must start before that deadline less its own duration. In between it takes the first free
share. Where several batches wait for a share, the one that must start first goes first. As in Symphony, the head of a
queue does not hold up a batch of the target size (window drop). Durations are Clockwork's estimates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from horologe_common.clock import us
from horologe_controller.core.scheduling.batch_window import BatchWindow, EarlyDrop, find_window, target_size
from horologe_controller.core.scheduling.scheduling_policy import PolicyParameters
from horologe_controller.core.scheduling.strategy import Rank, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue

START_DELAY_NS = us(200)
"""A batch must make its deadlines even if it begins this much late: message latency to an idle device, a turn of the
worker, and late timers, for which Symphony's implementation reserves 100 us."""


class DeferredParameters(PolicyParameters, frozen=True):
    """Parameters of `deferred`."""

    slo_part: Annotated[float, Meta(ge=0, le=1)] = 0.5
    """Late requests do not hold up a batch that others can fill and that takes this part of their SLO. 0: no request is
    dropped for a larger batch."""


class Deferred(EarlyDrop):
    """Batches that wait as long as they can grow. A share may stay idle although requests are queued."""

    Parameters = DeferredParameters
    parameters: DeferredParameters

    def best_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Return the largest batch of the queue once it cannot become larger in time."""
        if not queue or (estimate := share.estimates.get(queue.model)) is None:
            return None
        start_ns += START_DELAY_NS

        def expect_ns(size: int) -> int:
            return estimate.predict(now_ns, size)

        target = target_size(queue, self.parameters.slo_part, expect_ns)
        window = find_window(queue, start_ns, target, expect_ns)
        if window is None:
            return None
        window = _extend_window(queue, start_ns, window, expect_ns)
        first, expected_ns = queue[window.places[0]], expect_ns(window.size)
        larger = next((size for size in queue.spec.batch_sizes if size > window.size), None)
        if larger is not None:
            closes_ns = first.deadline_ns - expect_ns(larger)
            if start_ns < closes_ns:
                self.waits.hold_queue(queue, closes_ns - START_DELAY_NS)
                return None
        rank = Rank(1, first.deadline_ns - expected_ns, first.id)
        return Strategy(rank, queue, window.size, window.places, expected_ns)


def _extend_window(
    queue: ModelQueue, start_ns: int, window: BatchWindow, expect_ns: Callable[[int], int]
) -> BatchWindow:
    """Extend a window to the largest size in which its first request is still in time."""
    first = window.places[0]
    for size in queue.batch_sizes():
        if size <= window.size:
            break
        in_time = start_ns + expect_ns(size) <= queue[first].deadline_ns
        if in_time and (count := queue.count_filling(first, size)):
            return BatchWindow(size, range(first, first + count))
    return window
