"""Batches that skip the late heads of a queue (Nexus section 6.3, early drop)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from horologe_controller.core.scheduling.scheduling_policy import SchedulingPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_controller.core.scheduling.queues import ModelQueue


class EarlyDrop(SchedulingPolicy):
    """A policy that refuses the requests at the head of a queue that would have been late in the batch behind them."""

    def count_late_heads(self, queue: ModelQueue, end_ns: int) -> int:
        """Return the number of requests that would have been late in the batch that was formed."""
        return queue.first_in_time(end_ns, queue.spec.max_batch)


class BatchWindow(NamedTuple):
    """A batch of `size` from consecutive requests of a queue, those at `places`."""

    size: int
    places: range


def find_window(queue: ModelQueue, start_ns: int, target: int, expect_ns: Callable[[int], int]) -> BatchWindow | None:
    """Return the first window that fills a batch of `target` in time, or of a smaller size if too few requests can.

    Nexus section 6.3 (early drop): late requests at the head do not hold up a batch that those behind them can fill.
    `expect_ns` predicts the duration by size.
    """
    target = max(target, queue.spec.compiled_batch_size(queue[0].rows))
    for size in queue.batch_sizes():
        if size <= target:
            place = queue.first_in_time(start_ns + expect_ns(size), size)
            if count := queue.count_filling(place, size):
                return BatchWindow(size, range(place, place + count))
    return None


def target_size(queue: ModelQueue, part: float, expect_ns: Callable[[int], int]) -> int:
    """Return the largest batch that takes at most `part` of the first request's budget, or else the smallest size."""
    first, sizes = queue[0], queue.spec.batch_sizes
    limit_ns = part * (first.deadline_ns - first.arrival_ns)
    return next((size for size in reversed(sizes) if expect_ns(size) <= limit_ns), sizes[0])


def head_window(queue: ModelQueue, most: float) -> BatchWindow | None:
    """Return the largest batch of at most `most` rows that the head of a queue fills; more if its first request has."""
    most = max(most, queue.spec.compiled_batch_size(queue[0].rows))
    for size in queue.batch_sizes():
        if size <= most and (count := queue.count_filling(0, size)):
            return BatchWindow(size, range(count))
    return None
