"""One policy for static and dynamic models: run what promises most requests in time for the device's time.

Where what requests take is known as distributions, prospects.py puts the batch together; elsewhere it is Clockwork's
strategy. Between models the one goes first whose batch has the earliest *virtual deadline*: its own first deadline,
earlier the more requests it serves in its time. See docs/scheduling.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_common.clock import ms
from horologe_controller import prospects
from horologe_controller.scheduler import too_long
from horologe_controller.schedulers.clockwork import Clockwork
from horologe_controller.strategies import Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_controller.cluster import Cluster
    from horologe_controller.durations import ModelDurations
    from horologe_controller.queues import ModelQueue, Request
    from horologe_controller.scheduler import Batch, Refusal
    from horologe_controller.settings import Settings
    from horologe_controller.share import Share

LOOK_AT = 256
"""Requests of a queue that are looked at, those with the earliest deadlines first."""
SMOOTHING = 64
"""Batches over which their mean duration is taken, about."""


class Horologe(Clockwork):
    """Batches of likes with likes, by expected goodput for the device's time."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._durations: Mapping[str, ModelDurations] = {}
        self._mean_ns = float(ms(8))
        self._patience_ns = ms(8)
        """By so much longer may be waited for a batch that serves e times as many requests in its time."""

    def add(self, now_ns: int, request: Request, cluster: Cluster) -> Refusal | None:
        self._durations = cluster.durations
        return super().add(now_ns, request, cluster)

    def propose(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        known = self._durations.get(queue.model)
        if known is None or queue.rows > len(queue) or queue.model not in share.estimates:
            found = super().propose(now_ns, start_ns, share, queue)
        else:
            found = _dynamic(start_ns, queue, known)
        if found is None:
            return None
        gain_ns = self._patience_ns * math.log(len(found.places) / found.expected_ns)
        virtual_ns = queue[found.places[0]].deadline_ns - int(gain_ns)
        return found._replace(rank=(found.rank[0], virtual_ns, found.rank[2]))

    def _batch(self, now_ns: int, free_ns: int, share: Share, cluster: Cluster, strategy: Strategy) -> Batch:
        """Patience is what batches lately took, to within a factor of two: all are ranked anew when it changes."""
        self._mean_ns += (strategy.expected_ns - self._mean_ns) / SMOOTHING
        if not self._patience_ns / 2 < self._mean_ns < self._patience_ns * 2:
            self._patience_ns = int(self._mean_ns)
            for deadlines, _ in self._rankings.values():
                deadlines.again()
        return super()._batch(now_ns, free_ns, share, cluster, strategy)

    def _refusal(self, now_ns: int, request: Request, exec_ns: int, cluster: Cluster) -> Refusal | None:
        """Who comes later may go first if it is short: what is ahead of a dynamic model's request is not known."""
        if request.model in cluster.durations:
            return too_long(now_ns, request, exec_ns)
        return super()._refusal(now_ns, request, exec_ns, cluster)

    def least_ns(self, now_ns: int, request: Request, cluster: Cluster) -> int:
        known = cluster.durations.get(request.model)
        if known is None:
            return super().least_ns(now_ns, request, cluster)
        return known.least_ns[known.kind(request.application, request.length)]


def _dynamic(start_ns: int, queue: ModelQueue, known: ModelDurations) -> Strategy | None:
    """The best prospect of the queue, ranked by its first deadline."""
    first = queue.surviving(start_ns + known.base_ns, queue.spec.max_batch)
    looked_at = [queue[place] for place in range(first, min(first + LOOK_AT, len(queue)))]
    if not looked_at:
        return None
    prospect = prospects.best(
        start_ns,
        [one.deadline_ns for one in looked_at],
        [known.kind(one.application, one.length) for one in looked_at],
        queue.spec.batch_sizes,
        known,
    )
    if prospect is None:
        return None
    places = tuple(first + place for place in prospect.places)
    earliest = queue[places[0]]
    rank = 0, earliest.deadline_ns, earliest.id
    latest_ns = max(start_ns, earliest.deadline_ns - prospect.least_ns)
    return Strategy(rank, queue, prospect.size, places, prospect.expected_ns, latest_ns, settled=False)
