"""One policy for static and dynamic models: run what promises most requests in time for the device's time.

Where what requests take is known as distributions, batch_value.py puts the batch together; elsewhere it is Clockwork's
strategy. Between models the one goes first whose batch has the earliest *virtual deadline*: its own first deadline,
earlier the more requests it serves in its time. See docs/scheduling.md.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_controller.core.cluster.arrival_rates import Rates
from horologe_controller.core.scheduling import batch_value
from horologe_controller.core.scheduling.planner import LATEST_NS
from horologe_controller.core.scheduling.scheduler import too_long
from horologe_controller.core.scheduling.strategies import Strategy
from horologe_controller.core.scheduling.waiting import Waiting
from horologe_controller.schedulers.clockwork import largest, pays

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.runtime_distributions import ModelDurations
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.scheduler import Batch, Refusal
    from horologe_controller.settings import ControllerSettings

LOOK_AT = 256
"""Requests of a queue that are looked at, those with the earliest deadlines first."""
IDLE, BUSY = 0.6, 1.2
"""A share busy for less of its time waits for no larger batch; the busier, the longer, up to what deadlines allow."""
LIKELY = 0.4
"""So many of the requests that a larger batch needs are expected to come in time, else it is not waited for."""
SILENCE = 3
"""Nor any longer once nothing has come for so many times as long as that should have taken."""
WAYS = 3
"""From the controller to a worker, back, and a turn of the controller."""
COLLISION = 4.0
"""In mean batches, over the shares with the model: waiting ends so much sooner, for they may have other work then."""


class Horologe(Waiting):
    """Batches of likes with likes, by expected goodput for the device's time."""

    just_in_time = True

    def __init__(self, settings: ControllerSettings) -> None:
        super().__init__(settings)
        self._durations: Mapping[str, ModelDurations] = {}
        self._rates = Rates()
        self._advance_ns = self._rates.batch_ns
        """By so much sooner goes a batch that serves e times as many requests in its time."""

    def add(self, now_ns: int, request: Request, cluster: Cluster) -> Refusal | None:
        self._durations = cluster.durations
        if not request.admitted:  # else it was in a queue before
            self._rates.asked(request.arrival_ns, request.model)
        return super().add(now_ns, request, cluster)

    def propose(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        known = self._durations.get(queue.model)
        if known is None or queue.rows > len(queue) or queue.model not in share.estimates:
            found = largest(now_ns, start_ns, share, queue)
            if found is not None and (until_ns := self._grows_until(now_ns, share, found)) > start_ns:
                self.wait(queue, until_ns)
                return None
        else:
            found = _dynamic(start_ns, queue, known)
        if found is None:
            return None
        gain_ns = self._advance_ns * math.log(len(found.places) / found.expected_ns)
        virtual_ns = queue[found.places[0]].deadline_ns - int(gain_ns)
        return found._replace(rank=(found.rank[0], virtual_ns, found.rank[2]))

    def _grows_until(self, now_ns: int, share: Share, found: Strategy) -> int:
        """Up to when the batch should wait for the next larger size; 0 if it should not.

        The busier the share, the longer: where there is time to spare, small batches cost nothing.
        """
        queue, estimate = found.queue, share.estimates[found.queue.model]
        larger = next((size for size in queue.spec.batch_sizes if size > found.size), None)
        holders = self.rankings.holders(queue.model)
        if not holders or larger is None or not pays(estimate.seed_ns, larger, found.size):
            return 0
        busy = min(1.0, (self._rates.busy(now_ns, share) - IDLE) / (BUSY - IDLE))
        if busy <= 0.0:
            return 0
        first = queue[found.places[0]]
        collision_ns = int(COLLISION * self._rates.batch_ns) // len(holders)
        closes_ns = first.deadline_ns - estimate.predict(now_ns, larger) - collision_ns
        until_ns = first.arrival_ns + int(busy * (closes_ns - first.arrival_ns))
        coming_ns = int((larger - len(found.places)) * self._rates.gap_ns(queue.model))
        if until_ns - now_ns < LIKELY * coming_ns:
            return 0
        return min(until_ns, queue.newest_arrival_ns() + SILENCE * coming_ns)

    def lost(self, share: Share) -> None:
        self._rates.forget(share)

    def _latest_ns(self, now_ns: int, cluster: Cluster) -> int:
        """As long as messages take: there, and back."""
        return min(LATEST_NS, WAYS * (cluster.returns.high_quantile(now_ns) or LATEST_NS))

    def _batch(self, now_ns: int, free_ns: int, share: Share, cluster: Cluster, strategy: Strategy) -> Batch:
        """The advance is what batches lately took, to within a factor of two: all are ranked anew when it changes."""
        if not strategy.queue.best_effort:
            self._rates.given(free_ns, share, strategy.expected_ns)
        mean_ns = self._rates.batch_ns
        if not self._advance_ns / 2 < mean_ns < self._advance_ns * 2:
            self._advance_ns = mean_ns
            self.rankings.again()
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
    prospect = batch_value.best(
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
