"""Earliest deadline first: the request with the least time left goes next, with as many of its model as still fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.core.scheduling.planner import LookAhead
from horologe_controller.core.scheduling.strategies import Strategy

if TYPE_CHECKING:
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue


class Edf(LookAhead):
    """Ordered by the first deadline that can still be made here."""

    def propose(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """The largest batch that its first request and all others in it survive."""
        if not queue or (estimate := share.estimates.get(queue.model)) is None:
            return None
        place = queue.surviving(start_ns + estimate.predict(now_ns, queue.spec.batch_sizes[0]), queue.spec.max_batch)
        for at in range(place, len(queue)):
            first = queue[at]
            for size in queue.sizes():
                expected_ns = estimate.predict(now_ns, size)
                if start_ns + expected_ns <= first.deadline_ns and (count := queue.filling(at, size)):
                    rank = 0, first.deadline_ns, first.id
                    return Strategy(rank, queue, size, range(at, at + count), expected_ns)
        return None
