"""Price of device time: what serves too few requests for its time does not start, even on an idle device.

An EXEC cannot be interrupted. Under overload, a long one for a few requests costs those that arrive while it runs.
The best use of a limited capacity serves all that is worth more per time than some price, and nothing else (Dantzig,
Operations Research 1957). The price here is the number of requests per time that lost requests would have been worth.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.strategy import Strategy

STEP = 0.1
"""Part of the way that a lost request moves the price."""
WORTH = 0.5
"""A batch must be worth this part of the price. Below 1, because what is lost cannot always use the time."""
FORGOTTEN = 2.0
"""The price falls by a factor of e while all shares decline batches for as long as this many mean batches take."""


class DevicePrice:
    """The price, and the shares that are idle because of it. Rates are requests per ns."""

    def __init__(self) -> None:
        self.rate = 0.0
        """What a batch should serve per time. 0 until the first request is late."""
        self.declined: dict[Share, int] = {}
        """Share that is idle although it has batches -> until when its idle time has lowered the price."""

    def record_late(self, now_ns: int, request: Request, cluster: Cluster, count: int = 1) -> None:
        """Raise the price towards what the request would have been worth alone, unless no share holds its model.

        `count`: number of equal requests.

        Without a loaded model, a LOAD was missing, not device time. What the request counts more for fairness does not
        raise the price: nothing else would start where a model starves that cannot be helped.
        """
        if request.model not in cluster.residency.shares_of:
            return
        size, distributions = request.spec.compiled_batch_size(request.rows), cluster.distributions.get(request.model)
        known = None if distributions is None else distributions.batch_moments([request], size)[0]
        rate = request.spec.weight / max(1, known or cluster.cached_exec_ns(now_ns, request.model, size)[0])
        if rate > self.rate:
            self.rate = rate - (1 - STEP) ** count * (rate - self.rate)

    def decline(
        self, start_ns: int, share: Share, strategy: Strategy, weight: float, busy: float, batch_ns: float
    ) -> int:
        """Return when to examine a batch again that serves too little for its time; 0 if it may start at `start_ns`.

        A batch of which most requests would be late does not lower the price: its low value says nothing about others.
        Each of its requests counts `weight`. `busy`: utilisation of the share; `batch_ns`: mean duration of a batch.
        """
        model = strategy.queue.model
        memory_ns = FORGOTTEN * batch_ns * max(1, share.residency.count_resident(model))
        if (lowered_ns := self.declined.get(share, start_ns)) < start_ns:
            self.rate *= math.exp((lowered_ns - start_ns) / memory_ns)
            self.declined[share] = start_ns
        value = weight * (len(strategy.places) if strategy.in_time is None else strategy.in_time)
        cost = WORTH * self.rate * min(1.0, busy * busy) * strategy.expected_ns
        if value >= cost:
            return 0
        if strategy.in_time is None:
            self.declined.setdefault(share, start_ns)
        return start_ns + 1 + int(min(batch_ns, memory_ns * math.log(cost / value)))

    def end_idle_time(self, share: Share) -> None:
        """Record that the share runs a batch, or is lost."""
        self.declined.pop(share, None)
