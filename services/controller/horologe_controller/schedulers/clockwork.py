"""Clockwork's strategies (appendix B): for every batch size a required start time; the earliest one goes next.

Larger batches have the earlier required start, so they win where they fit, possibly at the expense of an
unfortunately timed request before them. One thing goes beyond the appendix: a batch smaller than it might have been,
because the time for a larger one has passed, goes after all others. See decision 10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.core.scheduling.planner import LookAhead
from horologe_controller.core.scheduling.strategies import Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue


PAYS = 0.9
"""A larger batch is better only if, by the profile, a row takes less than this part of what it takes in a smaller."""


class Clockwork(LookAhead):
    """By required start time, batches smaller than they might have been after all others."""

    def propose(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        return largest(now_ns, start_ns, share, queue)


def largest(now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
    """The one eligible strategy that a queue has: that of the first request to survive the largest batch there is.

    Skipped: sizes with too few requests that survive them, and sizes smaller than need be.
    """
    if not queue or (estimate := share.estimates.get(queue.model)) is None:
        return None
    budget_ns, seed_ns = queue.newest_budget_ns(), estimate.seed_ns
    better: list[float] = []
    late = 0
    for size in queue.sizes():
        expected_ns = estimate.predict(now_ns, size)
        row_ns = PAYS * seed_ns[size] / size
        late = max(late, sum(larger_ns < row_ns for larger_ns in better))
        place = queue.surviving(start_ns + expected_ns, size)
        if count := queue.filling(place, size):
            first = queue[place]
            rank = late, first.deadline_ns - expected_ns, first.id
            return Strategy(rank, queue, size, range(place, place + count), expected_ns)
        if expected_ns <= budget_ns:
            better.append(seed_ns[size] / size)
    return None


def pays(seed_ns: Mapping[int, int], larger: int, smaller: int) -> bool:
    """Whether a row takes a tenth less in the larger batch, by the profile."""
    return seed_ns[larger] / larger < PAYS * seed_ns[smaller] / smaller
