"""Clockwork's strategies (appendix B): for every batch size a required start time, and the earliest goes next.

Larger batches have the earlier required start, so they win where they fit, possibly at the expense of an unfortunately
timed request before them. One addition to the appendix: a batch that is smaller than it might have been, because the
time for a larger one has passed, goes after all others (docs/adr/0010).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.core.scheduling.scheduling_policy import SchedulingPolicy
from horologe_controller.core.scheduling.strategy import Rank, Strategy

if TYPE_CHECKING:
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue


class Clockwork(SchedulingPolicy):
    """The earliest required start goes next; shrunken batches go last."""

    def best_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Return Clockwork's strategy: the largest batch size that enough requests still make their deadlines in.

        Its rank counts the larger, cheaper sizes that the queue could have filled and is too late for.
        """
        if not queue.rows or (estimate := share.estimates.get(queue.model)) is None:
            return None
        budget_ns, missed = queue.newest_budget_ns(), 0
        for size in queue.batch_sizes():
            expected_ns = estimate.predict(now_ns, size)
            place = queue.first_in_time(start_ns + expected_ns, size)
            if count := queue.count_filling(place, size):
                first = queue[place]
                rank = Rank(missed, first.deadline_ns - expected_ns, first.id)
                return Strategy(rank, queue, size, range(place, place + count), expected_ns)
            if expected_ns <= budget_ns:
                missed += size in estimate.efficient_sizes
        return None
