"""The ledger: what arrived, started and was lost lately, and how busy shares were, by model and by share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS, ms, s
from horologe_controller.core.scheduling.device_price import DevicePrice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.models import ModelSpec
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.strategy import Strategy

MEMORY_NS = ms(400)
"""Time after which a request or a batch counts 1/e. With less, sums of few requests and long batches are noise; with
more, decisions follow an overload late."""
SERVED_MEMORY = 1 - 1 / 256
"""Decay of the parts that are served, and of the mean duration of batches, with each request or batch."""
FAIR_POWER = 1.5
"""A model of which less than the mean part is served counts more, by this power of what is missing: at half of the mean
part 2.8 times. A higher power costs more of all requests (experiments/results/schedulers.md)."""
LEAST_BUDGET = 2
"""Budget, in times of a request alone, from which on fairness counts a request: those with less are mostly lost
whatever they count, and would cost the others their time."""
STARVED_WEIGHT: float = 4.0**FAIR_POWER
"""Weight of a model that gets a quarter of a fair part. With half, LOADs cost as many requests as they serve."""
GUARANTEED_WEIGHT, GUARANTEED_NS = 1e6, s(1)
"""What a request counts that its model is guaranteed; time for which a guaranteed rate is saved up (token bucket)."""
COUNTED = 20
"""Recent requests from which on the served part of a model says something."""
SMOOTHING_GAPS = 4
"""Samples over which inter-arrival times are smoothed. Clients of a closed loop whose requests were in one batch send
the next ones at once: the mean of few inter-arrival times shows that."""
FORGOTTEN_NS = s(60)
"""Time without requests after which a model is forgotten, once the number of models has doubled."""


class DecayingSum:
    """A sum of which each amount counts 1/e after `MEMORY_NS`."""

    __slots__ = ("_sum", "last_ns")

    def __init__(self) -> None:
        self._sum = 0.0
        self.last_ns = 0
        """When the last amount was added."""

    def add(self, at_ns: int, amount: float) -> None:
        self._sum = self.at(at_ns) + amount
        self.last_ns = at_ns

    def at(self, now_ns: int) -> float:
        """Return the sum now."""
        return self._sum * math.exp(min(0, self.last_ns - now_ns) / MEMORY_NS) if self._sum else 0.0


class ModelTraffic:
    """Requests for a model, and the part of them that is served."""

    __slots__ = ("arrived", "asked", "budget_ns", "gap_ns", "guaranteed", "last_ns", "lost", "served", "work_ns")

    def __init__(self, last_ns: int) -> None:
        self.gap_ns, self.last_ns = 0.0, last_ns
        """Mean inter-arrival time, last arrival. The first requests count as if they had come at once."""
        self.arrived, self.served = 0.0, 0.0
        """Requests with deadlines that arrived, and that batches were formed of, decayed with each arrival."""
        self.guaranteed = 0.0
        """Requests that may be served at the guaranteed rate now; below 0 after more than that were served."""
        self.asked, self.lost = DecayingSum(), DecayingSum()
        """Requests, and those of them that were lost for lack of time."""
        self.work_ns = DecayingSum()
        """Durations of its batches with deadlines, from their planned starts."""
        self.budget_ns = NEVER_NS
        """Time between arrival and deadline of the last request that was not best effort."""

    def save_guaranteed(self, rate: float, since_ns: int) -> None:
        """Add the requests that are guaranteed between `since_ns` and the last arrival."""
        most = max(1.0, rate * GUARANTEED_NS / s(1))
        saved = self.guaranteed + rate * max(0, self.last_ns - since_ns) / s(1)
        self.guaranteed = min(most, max(-most, saved))


class Traffic:
    """Recent arrivals, batches and losses."""

    def __init__(self) -> None:
        self.batch_ns = float(ms(8))
        """Mean duration of a batch."""
        self.served = 1.0
        """Part of the recent requests with deadlines that was not lost for lack of time."""
        self.lost = DecayingSum()
        """Requests that were lost for lack of time."""
        self.price = DevicePrice()
        self._models: dict[str, ModelTraffic] = {}
        self._most_models = 1
        self._work_ns: dict[Share, DecayingSum] = {}
        """Durations of the batches with deadlines of a share, from their planned starts."""

    def record_arrivals(self, requests: Sequence[Request]) -> None:
        """Count requests for one queue, except those that were queued before."""
        first = requests[0]
        if (traffic := self._models.get(first.model)) is None:
            traffic = self._add_model(first.model, first.arrival_ns)
        since_ns = traffic.last_ns
        new = 0
        for request in requests:
            if not request.admitted:
                gap_ns, traffic.last_ns = request.arrival_ns - traffic.last_ns, request.arrival_ns
                traffic.gap_ns += (gap_ns - traffic.gap_ns) / SMOOTHING_GAPS
                new += 1
        if new:
            traffic.asked.add(traffic.last_ns, new)
        if new and not first.best_effort:
            kept = SERVED_MEMORY**new
            traffic.arrived = kept * traffic.arrived + new
            traffic.served *= kept
            traffic.budget_ns = first.deadline_ns - first.arrival_ns
        if first.spec.guaranteed_rate:
            traffic.save_guaranteed(first.spec.guaranteed_rate, since_ns)

    def record_refused_again(self, now_ns: int, request: Request, count: int) -> None:
        """Count `count` requests with deadlines that have come in equal intervals since the last one, and were lost."""
        if (traffic := self._models.get(request.model)) is None:
            traffic = self._add_model(request.model, now_ns)
        since_ns, traffic.last_ns = traffic.last_ns, max(now_ns, traffic.last_ns)
        gap_ns = (traffic.last_ns - since_ns) / count
        traffic.gap_ns = gap_ns + (traffic.gap_ns - gap_ns) * (1 - 1 / SMOOTHING_GAPS) ** count
        kept = SERVED_MEMORY**count
        traffic.arrived = kept * traffic.arrived + (1 - kept) / (1 - SERVED_MEMORY)
        traffic.served *= kept
        self.served *= kept
        traffic.asked.add(now_ns, count)
        self.lost.add(now_ns, count)
        traffic.lost.add(now_ns, count)
        if request.spec.guaranteed_rate:
            traffic.save_guaranteed(request.spec.guaranteed_rate, since_ns)

    def _add_model(self, model: str, now_ns: int) -> ModelTraffic:
        """Add a model, and drop those that have had no request for long if their number has doubled."""
        if len(self._models) >= self._most_models:
            self._models = {name: kept for name, kept in self._models.items() if kept.last_ns > now_ns - FORGOTTEN_NS}
            self._most_models = 2 * len(self._models) + 1
        traffic = self._models[model] = ModelTraffic(now_ns)
        return traffic

    def record_batch(self, start_ns: int, share: Share, strategy: Strategy) -> None:
        """Count a batch that is to start at `start_ns`, unless it is best effort."""
        queue, places, expected_ns = strategy.queue, strategy.places, strategy.expected_ns
        if queue.best_effort:
            return
        traffic = self.of_model(queue.model)
        traffic.served += len(places)
        traffic.guaranteed -= len(places)
        self.served = 1.0 - (1.0 - self.served) * SERVED_MEMORY ** len(places)
        self.batch_ns += (expected_ns - self.batch_ns) * (1 - SERVED_MEMORY)
        if (work_ns := self._work_ns.get(share)) is None:
            work_ns = self._work_ns[share] = DecayingSum()
        work_ns.add(start_ns, expected_ns)
        traffic.work_ns.add(start_ns, expected_ns)

    def record_loss(self, now_ns: int, model: str) -> None:
        """Count a request that was lost for lack of time."""
        self.served *= SERVED_MEMORY
        self.lost.add(now_ns, 1.0)
        self.of_model(model).lost.add(now_ns, 1.0)

    def discard_share(self, share: Share) -> None:
        self._work_ns.pop(share, None)

    def of_model(self, model: str) -> ModelTraffic:
        """Return the traffic of a model. It may be forgotten while best-effort requests for it are queued."""
        return self._models.get(model) or ModelTraffic(0)

    def weight(self, spec: ModelSpec) -> float:
        """Return what a request of a model counts for fairness: more than 1 if too few of its requests are served.

        Too few are less than the mean part. The largest number of served requests of which each model
        gets such a part is found with a multiplier for each model that gets less (Lagrange). Here it is a power of what
        is missing. While a model gets less than its guaranteed rate, its requests count more than any others.
        """
        traffic = self.of_model(spec.key)
        if traffic.guaranteed >= 1.0:
            return GUARANTEED_WEIGHT
        missing = self.served * (traffic.arrived + 1) / (traffic.served + 1)
        return missing**FAIR_POWER if missing > 1.0 else 1.0

    def served_parts(self) -> dict[str, float]:
        """Return the part that is served of the recent requests of each model that has had `COUNTED` of them."""
        models = self._models.items()
        return {key: min(1.0, one.served / one.arrived) for key, one in models if one.arrived >= COUNTED}

    def excess_losses(self, now_ns: int, model: str) -> float:
        """Return the recent losses of a model, divided by the square of one more than those of all others.

        Where all models lose requests, this is hardly anything.
        """
        if not (total := self.lost.at(now_ns)):
            return 0.0
        lost = self.of_model(model).lost.at(now_ns)
        return lost / (1.0 + max(0.0, total - lost)) ** 2

    def last_start_ns(self, share: Share) -> int:
        """Return the planned start of the share's last batch with deadlines; 0 without any."""
        work_ns = self._work_ns.get(share)
        return 0 if work_ns is None else work_ns.last_ns

    def utilisation(self, now_ns: int, share: Share) -> float:
        """Return the busy part of the share's recent time. It is above 1 if batches are planned ahead."""
        work_ns = self._work_ns.get(share)
        return 0.0 if work_ns is None else work_ns.at(now_ns) / MEMORY_NS
