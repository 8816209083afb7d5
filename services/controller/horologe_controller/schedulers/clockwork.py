"""Clockwork's strategies (appendix B): for every batch size a required start time; the earliest one goes next.

Larger batches have the earlier required start, so they win where they fit, possibly at the expense of an
unfortunately timed request before them. One thing goes beyond the appendix: a batch smaller than it might have been,
because the time for a larger one has passed, goes after all others. See decision 10.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.lookahead import LookAhead
from horologe_controller.strategies import Strategy

if TYPE_CHECKING:
    from horologe_controller.queues import ModelQueue
    from horologe_controller.share import Share


PAYS = 0.9
"""A larger batch is better only if, by the profile, a row takes less than this part of what it takes in a smaller."""


class Clockwork(LookAhead):
    """A queue has one eligible strategy at a time: that of the first request to survive the largest batch there is."""

    def propose(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Skipped: sizes with too few requests that survive them, and sizes smaller than need be.

        Where a larger batch is no better, a smaller one that loses fewer requests goes before it.
        """
        if not queue or (estimate := share.estimates.get(queue.model)) is None:
            return None
        found: Strategy | None = None
        budget_ns = queue.newest_budget_ns()
        larger: list[float] = []
        for size in queue.sizes():
            expected_ns = estimate.predict(now_ns, size)
            place = queue.surviving(start_ns + expected_ns)
            row_ns = estimate.seed_ns[size] / size
            if (found is None or place < found.start) and (count := queue.filling(place, size)):
                if found is not None and estimate.seed_ns[found.size] / found.size < PAYS * row_ns:
                    break
                first = queue[place]
                smaller = sum(other_ns < PAYS * row_ns for other_ns in larger)
                rank = smaller, first.deadline_ns - expected_ns, first.id
                found = Strategy(rank, queue, size, place, count, expected_ns)
            if found is not None and not found.start:
                break
            if found is None and expected_ns <= budget_ns:
                larger.append(row_ns)
        return found
