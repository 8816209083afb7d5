"""The ledger: what arrived, started and was lost lately, by model and by share.

It is told of arrivals, LOADs, batches, requests that were lost for lack of time (`record_late`), and the shares that
such a request could have run on (`record_loss`). Whoever wants to know how busy a share is, how often a model is asked
for or how much is lost, asks it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS, ms, s

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from horologe_common.models import ModelSpec
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.ranking import Strategy

MEMORY_NS = ms(400)
"""Time after which a request, a loss or a batch counts 1/e. A LOAD takes about 10 ms, and shows its effect within an
SLO. With less, sums of few requests and long batches are noise; with more, prices follow an overload late."""
SERVED_MEMORY = 1 - 1 / 256
"""Decay of the parts that are served with each request."""
FAIR_PART, FAIR_POWER = 0.8, 3
"""A model of which less than 0.8 of the mean part is served counts more, by the cube of what is missing: at half of the
mean part 4 times. Higher values cost more of all requests (experiments/results/schedulers.md)."""
GUARANTEED_WEIGHT, GUARANTEED_NS = 1e6, s(1)
"""What a request counts that its model is guaranteed; time for which a guaranteed rate is saved up (token bucket)."""
COUNTED = 20
"""Recent requests from which on the served part of a model says something."""
SMOOTHING_GAPS, SMOOTHING_BATCHES = 16, 64
"""Samples over which the means of inter-arrival times and of batch durations are smoothed."""
BURST_PARTS = 8
"""A request that comes sooner than an eighth of the mean inter-arrival time belongs to a burst: a ninth of those of a
Poisson process does. With a twentieth, `fig5` at 25 ms serves up to 0.010 less."""
FIRST_GAP_NS = s(1)
"""Assumed time before the first request of a model."""
MOST_MODELS, FORGOTTEN_NS = 256, s(60)
"""Models that are kept without a look at their age, and the time without requests after which one is forgotten."""


class DecayingSum:
    """A sum of which each amount counts 1/e after `MEMORY_NS`."""

    __slots__ = ("_at_ns", "_sum")

    def __init__(self) -> None:
        self._at_ns, self._sum = 0, 0.0

    def add(self, at_ns: int, amount: float) -> None:
        self._sum = self.at(at_ns) + amount
        self._at_ns = at_ns

    def at(self, now_ns: int) -> float:
        """Return the sum now."""
        return self._sum * math.exp(min(0, self._at_ns - now_ns) / MEMORY_NS) if self._sum else 0.0


class ModelTraffic:
    """Requests for a model: their inter-arrival times, as exponential averages, and the part that is served."""

    __slots__ = (
        "_burst",
        "_came",
        "_mean_burst",
        "_waited_ns",
        "arrived",
        "asked",
        "budget_ns",
        "gap_ns",
        "guaranteed",
        "last_ns",
        "loaded_ns",
        "served",
    )

    def __init__(self, last_ns: int) -> None:
        self.gap_ns, self.last_ns = float(FIRST_GAP_NS), last_ns
        """Mean inter-arrival time, last arrival."""
        self._burst, self._mean_burst = 0, 1.0
        """Requests in the present burst, mean number in earlier ones."""
        self._waited_ns, self._came = 0.0, 0.0
        """Time that the first requests of recent batches were queued, requests that arrived meanwhile."""
        self.arrived, self.served = 0.0, 0.0
        """Requests with deadlines that arrived, and that batches were formed of, decayed with each arrival."""
        self.guaranteed = 0.0
        """Requests that may be served at the guaranteed rate now; below 0 after more than that were served."""
        self.asked = DecayingSum()
        """Requests."""
        self.budget_ns = NEVER_NS
        """Time between arrival and deadline of the last request that was not best effort."""
        self.loaded_ns: int | None = None
        """Time of the last LOAD for demand."""

    def record_arrival(self, arrival_ns: int) -> None:
        """Count a request."""
        gap_ns, self.last_ns = arrival_ns - self.last_ns, arrival_ns
        if BURST_PARTS * gap_ns < self.gap_ns:
            self._burst += 1
        else:
            burst, self._burst = self._burst, 1
            self._mean_burst += (burst - self._mean_burst) * min(1.0, burst / SMOOTHING_GAPS)
        self.gap_ns += (gap_ns - self.gap_ns) / SMOOTHING_GAPS

    def record_wait(self, waited_ns: int, count: int) -> None:
        """Count a batch of so many requests, of which the first was queued for `waited_ns`."""
        kept = 1 - 1 / SMOOTHING_GAPS
        self._waited_ns = kept * self._waited_ns + max(0, waited_ns)
        self._came = kept * self._came + count - 1

    def fill_ns(self, requests: float) -> float:
        """Return the expected time until so many requests have arrived, of which the first come in a burst.

        Clients of a closed loop whose requests were in one batch, or were refused at once, send the next ones at once.
        """
        return self.gap_ns * max(0.0, requests + 1 - self._mean_burst)

    def next_ns(self) -> float:
        """Return the expected time until the next request while others are queued.

        In closed loops it is longer than the mean inter-arrival time: clients that wait for answers send nothing.
        """
        return max(self.gap_ns, (self._waited_ns + self.gap_ns) / (self._came + 1))


class ShareTraffic:
    """Batches of a share and losses of the models that it holds."""

    __slots__ = ("losses", "work_ns", "work_of")

    def __init__(self) -> None:
        self.work_ns = DecayingSum()
        """Durations of batches with deadlines, from their planned starts, of all models and by model. Models that the
        share no longer holds are dropped once they are more than the others."""
        self.work_of: dict[str, DecayingSum] = {}
        self.losses = DecayingSum()
        """Requests that the share could have run, and no share had time for."""


class Traffic:
    """Recent arrivals, batches and losses."""

    def __init__(self) -> None:
        self.batch_ns = float(ms(8))
        """Mean duration of a batch."""
        self.lost_ns: int | None = None
        """When a request was last refused because devices had no time for it."""
        self.served = 1.0
        """Part of the recent requests with deadlines that was not lost for lack of time."""
        self.losses = DecayingSum()
        """Sum of the losses of all shares."""
        self._models: dict[str, ModelTraffic] = {}
        self._most_models = MOST_MODELS
        self._shares: dict[Share, ShareTraffic] = {}
        self._begun_ns: int | None = None
        """Start of the first batch."""

    def record_arrivals(self, requests: Sequence[Request]) -> None:
        """Count requests for one queue, except those that were queued before."""
        first = requests[0]
        if (traffic := self._models.get(first.model)) is None:
            traffic = self._add_model(first.model, first.arrival_ns)
        new, since_ns = 0, traffic.last_ns
        for request in requests:
            if not request.admitted:
                traffic.record_arrival(request.arrival_ns)
                new += 1
        if new:
            traffic.asked.add(traffic.last_ns, new)
        if new and not first.best_effort:
            kept = SERVED_MEMORY**new
            traffic.arrived = kept * traffic.arrived + new
            traffic.served *= kept
            traffic.budget_ns = first.deadline_ns - first.arrival_ns
        if rate := first.spec.guaranteed_rate:
            most = max(1.0, rate * GUARANTEED_NS / s(1))
            saved = traffic.guaranteed + rate * max(0, traffic.last_ns - since_ns) / s(1)
            traffic.guaranteed = min(most, max(-most, saved))

    def _add_model(self, model: str, now_ns: int) -> ModelTraffic:
        """Add a model, and drop those that have had no request for long if there are many."""
        if len(self._models) >= self._most_models:
            self._models = {name: kept for name, kept in self._models.items() if kept.last_ns > now_ns - FORGOTTEN_NS}
            self._most_models = max(MOST_MODELS, 2 * len(self._models))
        traffic = self._models[model] = ModelTraffic(now_ns - FIRST_GAP_NS)
        return traffic

    def record_load(self, now_ns: int, model: str) -> None:
        """Count a LOAD for demand."""
        (self._models.get(model) or self._add_model(model, now_ns)).loaded_ns = now_ns

    def record_batch(self, now_ns: int, start_ns: int, share: Share, strategy: Strategy) -> None:
        """Count a batch that is to start at `start_ns`, unless it is best effort."""
        queue, places, expected_ns = strategy.queue, strategy.places, strategy.expected_ns
        if queue.best_effort:
            return
        traffic = self.of_model(queue.model)
        traffic.record_wait(now_ns - queue[places[0]].arrival_ns, len(places))
        traffic.served += len(places)
        traffic.guaranteed -= len(places)
        self.served = 1.0 - (1.0 - self.served) * SERVED_MEMORY ** len(places)
        self.batch_ns += (expected_ns - self.batch_ns) / SMOOTHING_BATCHES
        if self._begun_ns is None:
            self._begun_ns = start_ns
        self._add_work(start_ns, share, queue.model, expected_ns)

    def _add_work(self, start_ns: int, share: Share, model: str, expected_ns: float) -> None:
        traffic = self._of_share(share)
        traffic.work_ns.add(start_ns, expected_ns)
        if (work_ns := traffic.work_of.get(model)) is None:
            if len(traffic.work_of) > 2 * len(share.resident):
                traffic.work_of = {held: traffic.work_of[held] for held in share.resident if held in traffic.work_of}
            work_ns = traffic.work_of[model] = DecayingSum()
        work_ns.add(start_ns, expected_ns)

    def record_late(self, now_ns: int) -> None:
        """Count a request that was lost for lack of time."""
        self.lost_ns = now_ns
        self.served *= SERVED_MEMORY

    def record_loss(self, now_ns: int, shares: Iterable[Share]) -> None:
        """Count a request that any of these shares could have run, and none had time for."""
        for share in shares:
            self._of_share(share).losses.add(now_ns, 1.0)
            self.losses.add(now_ns, 1.0)

    def move_work(self, now_ns: int, share: Share, model: str, holders: Mapping[Share, bool]) -> None:
        """Count the work of the share for a model that it gives up as work of the other shares that hold it loaded."""
        traffic = self._of_share(share)
        if not (work_ns := self.work_ns(now_ns, share, model)):
            return
        others = [other for other, loaded in holders.items() if loaded and other is not share]
        for other in others:
            self._add_work(now_ns, other, model, work_ns / len(others))
        traffic.work_ns.add(now_ns, -work_ns)
        del traffic.work_of[model]

    def discard_share(self, share: Share) -> None:
        self._shares.pop(share, None)

    def of_model(self, model: str) -> ModelTraffic:
        """Return the traffic of a model. It may be forgotten while best-effort requests for it are queued."""
        return self._models.get(model) or ModelTraffic(0)

    def _of_share(self, share: Share) -> ShareTraffic:
        if (traffic := self._shares.get(share)) is None:
            traffic = self._shares[share] = ShareTraffic()
        return traffic

    def weight(self, spec: ModelSpec) -> float:
        """Return what a request of a model counts for fairness: more than 1 if too few of its requests are served.

        Too few are less than `FAIR_PART` of the mean part. The largest number of served requests of which each model
        gets such a part is found with a multiplier for each model that gets less (Lagrange). Here it is a power of what
        is missing. While a model gets less than its guaranteed rate, its requests count more than any others.
        """
        traffic = self.of_model(spec.key)
        if traffic.guaranteed >= 1.0:
            return GUARANTEED_WEIGHT
        missing = FAIR_PART * self.served * (traffic.arrived + 1) / (traffic.served + 1)
        return missing**FAIR_POWER if missing > 1.0 else 1.0

    def served_parts(self) -> dict[str, float]:
        """Return the part that is served of the recent requests of each model that has had `COUNTED` of them."""
        models = self._models.items()
        return {key: min(1.0, one.served / one.arrived) for key, one in models if one.arrived >= COUNTED}

    def utilisation(self, now_ns: int, share: Share) -> float:
        """Return the busy part of the share's recent time. It is above 1 if batches are planned ahead."""
        return self.work_ns(now_ns, share) / MEMORY_NS

    def share_losses(self, now_ns: int, share: Share) -> float:
        """Return the recent losses of a share."""
        traffic = self._shares.get(share)
        return 0.0 if traffic is None else traffic.losses.at(now_ns)

    def work_ns(self, now_ns: int, share: Share, model: str = "") -> float:
        """Return the recent time of batches with deadlines on a share; of one model, if it is given."""
        if (traffic := self._shares.get(share)) is None:
            return 0.0
        work_ns = traffic.work_of.get(model) if model else traffic.work_ns
        return 0.0 if work_ns is None else work_ns.at(now_ns)

    def work_age_ns(self, now_ns: int) -> int:
        """Return for how long work has been counted."""
        return 0 if self._begun_ns is None else now_ns - self._begun_ns
