"""Which batch goes next on a share: the best strategy of each queue, in the order of their ranks (Clockwork app. B)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.indexed_heap import IndexedHeap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.strategy import Rank, Strategy

    BatchChooser = Callable[[int, int, Share, ModelQueue], Strategy | None]
    """(now_ns, start_ns, share, queue) -> the best batch of the queue that could start at `start_ns` on the share."""
    RankBound = Callable[[ModelQueue], Rank | None]
    """See `SchedulingPolicy.rank_bound`."""
    RankingPair = tuple["Ranking", "Ranking"]
    """Rankings of one share: requests with deadlines, best effort."""


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
        holding = self._of_model.get(queue.model, {})
        for share, rankings in holding.items():
            if queue.share is not None and share is not queue.share:
                continue
            if waiting:
                rankings[kind].changed[queue] = True
            else:
                rankings[kind].discard_queue(queue)
        return holding

    def mark_estimates(self, share: Share, queues: Iterable[ModelQueue]) -> None:
        """Recompute the strategies of a model's queues on a share whose estimates of it have changed."""
        rankings = self.of_share[share]
        for queue in queues:
            if queue.share is None or queue.share is share:
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
