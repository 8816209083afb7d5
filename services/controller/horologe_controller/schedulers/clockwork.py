"""Clockwork's strategies (appendix B): for every batch size a required start time, and the earliest goes next.

Larger batches have the earlier required start, so they win where they fit, possibly at the expense of an unfortunately
timed request before them. One addition to the appendix: a batch that is smaller than it might have been, because the
time for a larger one has passed, goes after all others (docs/adr/0010).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.core.scheduling.ranking import Strategy, largest_strategy
from horologe_controller.core.scheduling.scheduling_policy import SchedulingPolicy

if TYPE_CHECKING:
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue


class Clockwork(SchedulingPolicy):
    """The earliest required start goes next; shrunken batches go last."""

    def best_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """See `SchedulingPolicy.best_batch`."""
        return largest_strategy(now_ns, start_ns, share, queue)
