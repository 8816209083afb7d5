"""Earliest deadline first: the request with the least time left goes next, with as many of its model as still fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.core.scheduling.scheduling_policy import SchedulingPolicy
from horologe_controller.core.scheduling.strategy import Rank, Strategy

if TYPE_CHECKING:
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue


class Edf(SchedulingPolicy):
    """Batches in the order of the first deadline that can still be made."""

    def best_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Return the largest batch in which its first request, and so all others, are in time."""
        if not queue or (estimate := share.estimates.get(queue.model)) is None:
            return None
        smallest_ns = estimate.predict(now_ns, queue.spec.batch_sizes[0])
        for place in range(queue.first_in_time(start_ns + smallest_ns, queue.spec.max_batch), len(queue)):
            first = queue[place]
            for size in queue.batch_sizes():
                expected_ns = estimate.predict(now_ns, size)
                if start_ns + expected_ns <= first.deadline_ns and (count := queue.count_filling(place, size)):
                    rank = Rank(0, first.deadline_ns, first.id)
                    return Strategy(rank, queue, size, range(place, place + count), expected_ns)
        return None
