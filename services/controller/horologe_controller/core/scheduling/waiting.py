"""Components of policies that wait for larger batches: waiting queues, recent load, batches that skip late heads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from horologe_common.clock import ms, s
from horologe_common.core.indexed_heap import Timers

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import ModelQueue

WHEN_DRY = 1
"""First place of the rank of a batch that is decided on when its share is about to run dry. Systems whose executor
takes its next batch after the last one behave like this."""
MEMORY_NS = ms(200)
"""Time constant of a share's utilisation: work this long ago counts 1/e. Not tuned."""
MEMORY_BATCHES = 8
"""Smallest time constant, in mean batches: with long batches, 200 ms would hold too few of them. Not tuned."""
SMOOTHING_GAPS, SMOOTHING_BATCHES = 16, 64
"""Samples over which the means of inter-arrival times and of batch durations are smoothed. Not tuned."""
FIRST_GAP_NS = s(1)
"""Assumed time before the first request of a model."""


class QueueWaits:
    """Queues that wait for more requests, each until a time. A queue is identified by its first request."""

    def __init__(self) -> None:
        self._timers = Timers()
        self._queues: dict[int, ModelQueue] = {}

    def hold_queue(self, queue: ModelQueue, until_ns: int) -> None:
        """Have the queue examined again at `until_ns`, or when it changes. The earliest of several times counts."""
        key = queue[0].id
        held_ns = self._timers.priority(key)
        if held_ns is None or until_ns < held_ns:
            self._queues[key] = queue
            self._timers.arm(key, until_ns)

    def release_requests(self, requests: list[Request]) -> None:
        """End the waits of queues whose first request is among those that have left."""
        for request in requests:
            if self._queues.pop(request.id, None) is not None:
                self._timers.cancel(request.id)

    def pop_expired(self, now_ns: int) -> list[ModelQueue]:
        """Remove and return the queues that have waited long enough."""
        return [self._queues.pop(key) for key in self._timers.pop_expired(now_ns)]

    def next_ns(self) -> int | None:
        """Return when the next wait ends."""
        return self._timers.next_ns()

    def check(self) -> None:
        self._timers.check()
        assert set(self._timers) == set(self._queues)


class RecentLoad:
    """Utilisation of shares, inter-arrival times of models and the mean batch duration, as exponential averages.

    They tell whether a batch is likely to grow by waiting.
    """

    def __init__(self) -> None:
        self.batch_ns = float(ms(8))
        """Mean duration of a batch."""
        self._arrivals: dict[str, tuple[int, float]] = {}
        """Model -> (last arrival, mean inter-arrival time)."""
        self._work: dict[Share, tuple[int, float]] = {}
        """Share -> (start of the last batch, decayed sum of batch durations at that time)."""

    def record_arrival(self, at_ns: int, model: str) -> None:
        last_ns, gap_ns = self._arrivals.get(model, (at_ns - FIRST_GAP_NS, float(FIRST_GAP_NS)))
        self._arrivals[model] = at_ns, gap_ns + (at_ns - last_ns - gap_ns) / SMOOTHING_GAPS

    def record_batch(self, start_ns: int, share: Share, expected_ns: int) -> None:
        self.batch_ns += (expected_ns - self.batch_ns) / SMOOTHING_BATCHES
        self._work[share] = start_ns, self._decayed_work_ns(start_ns, share) + expected_ns

    def discard_share(self, share: Share) -> None:
        self._work.pop(share, None)

    def utilisation(self, now_ns: int, share: Share) -> float:
        """Return the busy part of the share's recent time. It is above 1 if batches are planned ahead."""
        return self._decayed_work_ns(now_ns, share) / self._memory_ns()

    def inter_arrival_ns(self, model: str) -> float:
        """Return the mean time between requests. Raises KeyError for a model without any."""
        return self._arrivals[model][1]

    def _decayed_work_ns(self, now_ns: int, share: Share) -> float:
        at_ns, work_ns = self._work.get(share, (now_ns, 0.0))
        return work_ns * math.exp(-max(0, now_ns - at_ns) / self._memory_ns())

    def _memory_ns(self) -> float:
        return max(MEMORY_NS, MEMORY_BATCHES * self.batch_ns)


class BatchWindow(NamedTuple):
    """A batch of `size` from `requests` consecutive requests of a queue, the first at index `place`."""

    size: int
    place: int
    requests: int


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
                return BatchWindow(size, place, count)
    return None


def target_size(queue: ModelQueue, part: float, expect_ns: Callable[[int], int]) -> int:
    """Return the largest batch that takes at most `part` of the first request's budget, or else the smallest size."""
    first, sizes = queue[0], queue.spec.batch_sizes
    limit_ns = part * (first.deadline_ns - first.arrival_ns)
    return next((size for size in reversed(sizes) if expect_ns(size) <= limit_ns), sizes[0])
