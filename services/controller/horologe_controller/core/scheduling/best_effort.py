"""Best-effort work: how long it may keep a share from requests with deadlines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS
from horologe_controller.core.scheduling.strategy import oldest_strategy

if TYPE_CHECKING:
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.admission import ShortestWait
    from horologe_controller.core.scheduling.queues import ModelQueue, RequestQueues
    from horologe_controller.core.scheduling.ranking import BatchChooser, Ranking
    from horologe_controller.core.scheduling.strategy import Strategy

LONG_PART = 50
"""Runs of the profiler that are too long may use a fiftieth of a share's time. Otherwise models that take longer than
other requests can wait would never be measured. Urgent runs have no limit."""


class BestEffortLimit:
    """Limits each best-effort EXEC to the time that recent requests with deadlines could have waited.

    An EXEC cannot be interrupted: a request that arrives just after its start waits until it ends. Where the smallest
    batch takes too long, requests of users run in it. Solo requests, those of the profiler, are held back.
    """

    def __init__(self, choose_batch: BatchChooser, shortest_wait: ShortestWait) -> None:
        self._choose_batch = choose_batch
        self._shortest_wait = shortest_wait
        self._paid_ns: dict[Share, int] = {}
        """Share -> time from which it may run an EXEC that is too long."""
        self._held_ns: dict[Share, int] = {}
        """Share that has only batches that are too long -> when to examine it again."""

    def next_batch(self, now_ns: int, start_ns: int, share: Share, ranking: Ranking) -> Strategy | None:
        """Return the first best-effort batch of the share that may start. If there is none, see `retry_ns`."""
        if self._held_ns and now_ns >= self._held_ns.get(share, NEVER_NS):
            del self._held_ns[share]
            ranking.mark_all_changed()
        return None if ranking.is_empty() else ranking.best_strategy(now_ns, start_ns, share)

    def retry_ns(self, share: Share) -> int | None:
        """Return when a batch of the share that is too long now may be allowed; None if there is no such batch."""
        return self._held_ns.get(share)

    def best_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Return the policy's batch of the queue, or a smaller one where that would take too long."""
        best, limit_ns = self._choose_batch(now_ns, start_ns, share, queue), self._shortest_wait.at(now_ns)
        if best is None or best.expected_ns <= limit_ns:
            return best
        first = queue[0]
        if not first.solo:
            least_ns = share.predict(now_ns, queue.model, queue.spec.compiled_batch_size(first.rows))
            return oldest_strategy(now_ns, start_ns, share, queue, start_ns + max(limit_ns, least_ns))
        if now_ns >= (paid_ns := self._paid_ns.get(share, 0)):
            return best
        self._held_ns[share] = max(now_ns + 1, min(paid_ns, self._shortest_wait.window_end_ns))
        return None

    def charge(self, now_ns: int, share: Share, expected_ns: int) -> None:
        """Count a best-effort EXEC that begins on the share."""
        if expected_ns > self._shortest_wait.at(now_ns):
            self._paid_ns[share] = now_ns + LONG_PART * expected_ns

    def discard_share(self, share: Share) -> None:
        """Drop a lost share."""
        self._paid_ns.pop(share, None)
        self._held_ns.pop(share, None)


def urgent_strategy(now_ns: int, start_ns: int, share: Share, queues: RequestQueues) -> Strategy | None:
    """Return the first request that has waited until it goes before all others, and whose model is resident."""
    for request, queue in queues.urgent.items():
        if request.urgent_ns is not None and request.urgent_ns <= now_ns and request.model in share.resident:
            return oldest_strategy(now_ns, start_ns, share, queue)
    return None
