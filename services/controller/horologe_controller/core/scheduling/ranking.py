"""Which batch goes next on a share: the best strategy of each queue, in the order of their ranks (Clockwork app. B)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import NEVER_NS, ms, s
from horologe_common.core.indexed_heap import IndexedHeap
from horologe_controller.core.cluster.estimates import PAYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue

    BatchChooser = Callable[[int, int, Share, ModelQueue], "Strategy | None"]
    """(now_ns, start_ns, share, queue) -> the best batch of the queue that could start at `start_ns` on the share."""
    RankBound = Callable[[ModelQueue], "Rank | None"]
    """See `SchedulingPolicy.rank_bound`."""
    Rank = tuple[int, int, int]
    """(0 or reason to start late, order of the policy in ns, id of the first request). See `Strategy.rank`."""
    RankingPair = tuple["Ranking", "Ranking"]
    """Rankings of one share: requests with deadlines, best effort."""

SOLO_WINDOW_NS = ms(100)
"""Window of a solo request: a share must not wait longer for inputs that a lost or hung profiler does not ship."""
UNLIMITED_WINDOW_NS = s(3600)
"""Window of a batch whose policy does not predict deadlines."""
MOST_LOST, NONE_LOST = 8.0, 1.05
"""Most that 1 over the square of the part that is served may be: if 0.65 of all requests are lost, or more. Below
`NONE_LOST` (0.024 lost) it counts as 1."""
NO_RANKINGS: dict[Share, RankingPair] = {}


class Strategy(msgspec.Struct, frozen=True):
    """A batch of `size` from the requests at these `places` of a queue. The lowest `rank` goes first.

    `latest_ns` is the last start that leaves one of them a chance; None: `expected_ns` before the first deadline.
    """

    rank: Rank
    """The first element is 0 if a share can be given the batch at once. Otherwise the share gets it only just before it
    runs dry (`SchedulingPolicy.decision_lead_ns`), since a better batch may come. Best-effort batches have 1. Clockwork
    counts the larger, cheaper sizes that are too late. Example: 8 requests are queued, and batches of 8 and 4 would
    end too late. Then a batch of 2 has 2."""
    queue: ModelQueue
    size: int
    places: range | tuple[int, ...]
    expected_ns: int
    latest_ns: int | None = None
    in_time: float | None = None
    """Number of its requests that are expected to be in time, if most are not."""

    def latest_start_ns(self, free_ns: int, deadline_ns: int | None, window_ns: int) -> int:
        """Return the end of the batch's window, if it can start at `free_ns`. `window_ns`: longest window; 0: any.

        `deadline_ns` None: the batch runs whenever its turn comes.
        """
        if deadline_ns is None:
            return free_ns + UNLIMITED_WINDOW_NS
        latest_ns = deadline_ns - self.expected_ns if self.latest_ns is None else self.latest_ns
        return min(latest_ns, free_ns + window_ns) if window_ns else latest_ns


class Advance:
    """Time by which a batch goes earlier for what it serves, as a number of mean batches (parameter `advance`).

    While requests are lost, cheap models go earlier: the advance for their cost is divided by the square of the part of
    all requests that is served. Between batches of models that cost as much alone, losses change nothing.
    """

    def __init__(self, batches: float, batch_ns: float) -> None:
        self._batches = batches
        self._batch_ns = batch_ns
        self._losses = 1.0
        """1 over the square of the part of the recent requests that is served, when last updated."""
        self.version = 1
        """Changes with what `ns` returns."""

    def ns(self, rate: float, alone_ns: float) -> int:
        """Return the time for a batch that serves `rate` requests per ns. One request of the model takes `alone_ns`."""
        cost = (self._losses - 1.0) * math.log(max(1.0, alone_ns)) if self._losses > 1.0 else 0.0
        return int(self._batches * self._batch_ns * (math.log(rate) - cost))

    def update(self, batch_ns: float, served: float) -> bool:
        """Adopt the mean duration of batches and the part of all requests that is served. Return whether `ns` changes.

        `ns` follows a change by a factor of two, and the end of losses: all ranks change with it.
        """
        losses = min(MOST_LOST, served**-2)
        losses = losses if losses > NONE_LOST else 1.0
        if is_off := not self._batch_ns / 2 < batch_ns < self._batch_ns * 2:
            self._batch_ns = batch_ns
        if not self._losses / 2 < losses < self._losses * 2 or losses == 1.0 < self._losses:
            self._losses, is_off = losses, True
        self.version += is_off
        return is_off


class Ranking:
    """Strategies of one share, lowest rank first. A queue costs O(log queues) when it has changed or comes first.

    While a queue and the estimates stay the same, its rank only grows with the start time. So an old rank is a lower
    bound, and is recomputed only when it comes first. Queues in `changed` are recomputed at the next call. If a start
    is earlier than the last one, all queues are. So is a queue with requests of several rows at every call: once a
    request is too late, others may fill a batch better. Any other queue whose rank may fall has a `rank_bound`. It is
    ranked by this bound, and gets its own rank only for the calls in which the bound comes first.
    """

    def __init__(self, choose_batch: BatchChooser, rank_bound: RankBound | None = None) -> None:
        self._choose_batch = choose_batch
        self._rank_bound = rank_bound
        self._ranks: IndexedHeap[ModelQueue, Rank] = IndexedHeap()
        self._examined: dict[ModelQueue, Rank | None] = {}
        """Rank of each queue that a strategy was sought in; None: it has none."""
        self.changed: dict[ModelQueue, bool] = {}
        """Queues to recompute: their requests, their model's residency or its estimates have changed."""
        self._start_ns = 0

    def is_empty(self) -> bool:
        """Return whether there is no queue to seek a strategy in."""
        return not self._examined and not self.changed

    def discard_queue(self, queue: ModelQueue) -> None:
        """Drop a queue that is empty, or whose model has left the share."""
        self.changed.pop(queue, None)
        if self._examined.pop(queue, None) is not None:
            self._ranks.remove(queue)

    def mark_all_changed(self) -> None:
        """Recompute all queues at the next call: old ranks are no lower bounds any more."""
        self.changed |= dict.fromkeys(self._examined, True)

    def best_strategy(self, now_ns: int, start_ns: int, share: Share) -> Strategy | None:
        """Return the strategy with the lowest rank among those that can start at `start_ns` and make every deadline."""
        if start_ns < self._start_ns:
            self.mark_all_changed()
        self._start_ns = start_ns
        fresh: dict[ModelQueue, Strategy | None] = {}
        if self.changed:
            changed, self.changed = self.changed, {}
            rank_bound = self._rank_bound
            for queue in changed:
                bound = None if rank_bound is None or not queue.rows else rank_bound(queue)
                if bound is None and queue.model in share.resident:
                    self._recompute(now_ns, start_ns, share, queue, fresh)
                else:
                    self._store_rank(queue, share, bound)
        while (lowest := self._ranks.peek()) is not None:
            rank, queue = lowest
            if queue not in fresh:
                self._recompute(now_ns, start_ns, share, queue, fresh)
                if self._rank_bound is not None and fresh[queue] is not None and self._rank_bound(queue) is not None:
                    self.changed[queue] = True
            strategy = fresh[queue]
            if strategy is not None and strategy.rank == rank:
                return strategy
        return None

    def _recompute(
        self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue, fresh: dict[ModelQueue, Strategy | None]
    ) -> None:
        """Seek the queue's strategy and add it to `fresh`."""
        strategy = fresh[queue] = self._choose_batch(now_ns, start_ns, share, queue)
        self._store_rank(queue, share, None if strategy is None else strategy.rank)
        if queue.rows > len(queue):
            self.changed[queue] = True

    def _store_rank(self, queue: ModelQueue, share: Share, rank: Rank | None) -> None:
        old_rank = self._examined.get(queue)
        if not queue.rows or queue.model not in share.resident:
            self.discard_queue(queue)
        elif rank is None:
            if old_rank is not None:
                self._ranks.remove(queue)
            self._examined[queue] = None
        elif old_rank != rank:
            self._ranks.push(queue, rank)
            self._examined[queue] = rank

    def check(self) -> None:
        self._ranks.check()
        ranked = {queue: rank for queue, rank in self._examined.items() if rank is not None}
        assert ranked == {queue: self._ranks.priority(queue) for queue in self._ranks}


class ShareRankings:
    """Rankings of all shares, by share and by resident model."""

    def __init__(
        self, choose_batch: BatchChooser, choose_best_effort: BatchChooser, rank_bound: RankBound | None = None
    ) -> None:
        self._choose_batch = choose_batch
        self._rank_bound = rank_bound
        self._choose_best_effort = choose_best_effort
        self.of_share: dict[Share, RankingPair] = {}
        self._of_model: dict[str, dict[Share, RankingPair]] = {}
        """Rankings of the shares where each model is resident."""

    def mark_queue(self, queue: ModelQueue) -> Iterable[Share]:
        """Recompute the strategies of a queue whose requests have changed. Return the shares that hold its model."""
        waiting, kind = queue.rows > 0, queue.best_effort
        holding = self._of_model.get(queue.model, NO_RANKINGS)
        for rankings in holding.values():
            if waiting:
                rankings[kind].changed[queue] = True
            else:
                rankings[kind].discard_queue(queue)
        return holding

    def mark_estimates(self, share: Share, queues: Iterable[ModelQueue]) -> None:
        """Recompute the strategies of a model's queues on a share whose estimates of it have changed."""
        rankings = self.of_share[share]
        for queue in queues:
            rankings[queue.best_effort].changed[queue] = True

    def update_residency(self, share: Share, model: str, queues: Iterable[ModelQueue]) -> None:
        """Adopt that the model of these queues was placed on the share or removed from it."""
        if share not in self.of_share:
            self.of_share[share] = Ranking(self._choose_batch, self._rank_bound), Ranking(self._choose_best_effort)
        self.mark_estimates(share, queues)
        rankings = self._of_model.setdefault(model, {})
        if model in share.resident:
            rankings[share] = self.of_share[share]
        else:
            rankings.pop(share, None)
            if not rankings:
                del self._of_model[model]

    def discard_share(self, share: Share) -> None:
        self.of_share.pop(share, None)

    def rerank_deadlines(self) -> None:
        """Recompute all strategies for requests with deadlines."""
        for ranking, _ in self.of_share.values():
            ranking.mark_all_changed()

    def check(self) -> None:
        for rankings in self.of_share.values():
            for ranking in rankings:
                ranking.check()


def largest_strategy(now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
    """Return Clockwork's strategy: the largest batch size that enough requests still make their deadlines in.

    Its rank counts the larger, cheaper sizes that the queue could have filled and is too late for.
    """
    if not queue.rows or (estimate := share.estimates.get(queue.model)) is None:
        return None
    budget_ns, seed_ns = queue.newest_budget_ns(), estimate.seed_ns
    missed_row_ns: list[float] = []
    shrunk = 0
    for size in queue.batch_sizes():
        expected_ns = estimate.predict(now_ns, size)
        if missed_row_ns:
            shrunk = max(shrunk, count_cheaper(missed_row_ns, seed_ns[size] / size))
        place = queue.first_in_time(start_ns + expected_ns, size)
        if count := queue.count_filling(place, size):
            first = queue[place]
            rank = shrunk, first.deadline_ns - expected_ns, first.id
            return Strategy(rank, queue, size, range(place, place + count), expected_ns)
        if expected_ns <= budget_ns:
            missed_row_ns.append(seed_ns[size] / size)
    return None


def count_cheaper(missed_row_ns: Sequence[float], row_ns: float) -> int:
    """Return how many of the missed sizes take at least a tenth less for a row."""
    return sum([larger_ns < PAYS * row_ns for larger_ns in missed_row_ns])


def oldest_strategy(
    now_ns: int, start_ns: int, share: Share, queue: ModelQueue, until_ns: int = NEVER_NS
) -> Strategy | None:
    """Return the best-effort strategy: the oldest requests, in the largest batch they fill that ends by `until_ns`."""
    if not queue:
        return None
    for size in queue.batch_sizes():
        expected_ns = share.predict(now_ns, queue.model, size)
        if start_ns + expected_ns > until_ns:
            continue
        place = queue.first_in_time(start_ns + expected_ns, size)
        if count := queue.count_filling(place, size):
            first = queue[place]
            rank = 1, first.arrival_ns, first.id
            latest_ns = start_ns + SOLO_WINDOW_NS if first.solo else None
            return Strategy(rank, queue, size, range(place, place + count), expected_ns, latest_ns)
    return None
