"""Which batch goes next on a share: the best strategy of every queue, in order (Clockwork appendix B)."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

from horologe_common.clock import NEVER_NS, ms

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue

    Propose = Callable[[int, int, Share, ModelQueue], "Strategy | None"]
    """(now_ns, start_ns, share, queue): the best batch of the queue that could start at `start_ns` on the share."""
    Rank = tuple[int, int, int]
    """How many sizes smaller the batch is than it might have been, what the scheduler orders by (ns), and the id of
    the first request."""

SOLO_WINDOW_NS = ms(100)
"""A solo request that has not begun so long after its turn is given up: a share must not wait for what a profiler that
died or hangs does not ship. Its inputs are small (`frontend.sample_bytes`)."""
NOWHERE = (0, None)
SWEEP_FROM = 64


class Strategy(NamedTuple):
    """Run the requests at these `places` of a queue, in order, as a batch of `size`. The lowest `rank` goes first."""

    rank: Rank
    queue: ModelQueue
    size: int
    places: range | tuple[int, ...]
    expected_ns: int
    latest_ns: int | None = None
    """The last start that leaves every request a chance; None: `expected_ns` before the first deadline."""
    settled: bool = True
    """Whether, while queue and estimates stay as they are, its rank cannot fall as time goes on."""


class Ranking:
    """The strategies of one share, best first; O(log n) for each queue that has changed or was looked at in vain.

    Relies on this: while a queue and the estimates stay as they are, its rank only grows, with the start time. So what
    was found before is a lower bound: it is looked at again when it comes first, and not sooner. Other queues are put
    into `changed`, and stay there while their strategies are not settled; if a start is earlier than the last, all are
    looked at.
    """

    def __init__(self, propose: Propose) -> None:
        self._propose = propose
        self._heap: list[tuple[Rank, int, ModelQueue]] = []
        self._known: dict[ModelQueue, tuple[int, Rank | None]] = {}
        """Queues that were proposed from: the number and the rank of the entry in the heap that counts, if any."""
        self.changed: dict[ModelQueue, bool] = {}
        """Queues to look at: requests have come or gone, or the model has, or its estimates are others."""
        self._start_ns = 0
        self._entries = 0

    def forget(self, queue: ModelQueue) -> None:
        """It is empty: its successor is another."""
        self.changed.pop(queue, None)
        self._known.pop(queue, None)

    def again(self) -> None:
        """Look at all: what was found before is no bound any more."""
        self.changed |= dict.fromkeys(self._known, True)

    def best(self, now_ns: int, start_ns: int, share: Share) -> Strategy | None:
        """The strategy with the lowest rank among those that can start at `start_ns` and make every deadline."""
        if start_ns < self._start_ns:
            self.again()
        self._start_ns = start_ns
        heap, known, fresh = self._heap, self._known, None
        if self.changed:
            unsettled: dict[ModelQueue, bool] = {}
            for queue in self.changed:
                fresh = self._propose(now_ns, start_ns, share, queue) if queue.model in share.resident else None
                self._look_at(queue, share, fresh)
                if fresh is not None and not fresh.settled:
                    unsettled[queue] = True
            self.changed = unsettled
        while heap:
            rank, entry, queue = heap[0]
            if known.get(queue, NOWHERE)[0] != entry:
                heapq.heappop(heap)
                continue
            if fresh is not None and fresh.rank == rank:
                return fresh
            strategy = self._propose(now_ns, start_ns, share, queue)
            if strategy is not None and strategy.rank == rank:
                return strategy
            heapq.heappop(heap)
            known[queue] = NOWHERE
            self._look_at(queue, share, strategy)
        return None

    def _look_at(self, queue: ModelQueue, share: Share, strategy: Strategy | None) -> None:
        """Enter what has been found for a queue."""
        if not queue or queue.model not in share.resident:
            self._known.pop(queue, None)
        elif strategy is None:
            self._known[queue] = NOWHERE
        elif self._known.get(queue, NOWHERE)[1] != strategy.rank:
            self._entries += 1
            self._known[queue] = self._entries, strategy.rank
            heapq.heappush(self._heap, (strategy.rank, self._entries, queue))
            self._sweep()

    def _sweep(self) -> None:
        """Forget, in place, what does not count any more once it is the majority."""
        heap, known = self._heap, self._known
        if len(heap) > 2 * len(known) + SWEEP_FROM:
            heap[:] = [one for one in heap if known.get(one[2], NOWHERE)[0] == one[1]]
            heapq.heapify(heap)

    def check(self) -> None:
        """Every queue that was found a strategy for is in the heap with it."""
        entries = {entry: (queue, rank) for rank, entry, queue in self._heap}
        assert all(entries[entry] == (queue, rank) for queue, (entry, rank) in self._known.items() if entry)


def oldest(now_ns: int, start_ns: int, share: Share, queue: ModelQueue, until_ns: int = NEVER_NS) -> Strategy | None:
    """Best effort: the longest waiting request first, in a batch that ends by `until_ns`."""
    if not queue:
        return None
    for size in queue.sizes():
        expected_ns = share.predict(now_ns, queue.model, size)
        if start_ns + expected_ns > until_ns:
            continue
        place = queue.surviving(start_ns + expected_ns, size)
        if count := queue.filling(place, size):
            first = queue[place]
            rank = 1, first.arrival_ns, first.id
            latest_ns = start_ns + SOLO_WINDOW_NS if first.solo else None
            return Strategy(rank, queue, size, range(place, place + count), expected_ns, latest_ns)
    return None
