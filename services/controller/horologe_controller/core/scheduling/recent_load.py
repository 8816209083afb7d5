"""Recent load: how busy shares are, how often models are asked for, and how long batches take."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_common.clock import ms, s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.ranking import Strategy

MEMORY_NS = ms(200)
"""Time constant of a share's utilisation: work this long ago counts 1/e. Not tuned."""
MEMORY_BATCHES = 8
"""Smallest time constant, in mean batches: with long batches, 200 ms would hold too few of them. Not tuned."""
SMOOTHING_GAPS, SMOOTHING_BATCHES = 16, 64
"""Samples over which the means of inter-arrival times and of batch durations are smoothed. Not tuned."""
BURST_PARTS = 8
"""A request that comes sooner than an eighth of the mean inter-arrival time belongs to a burst: a ninth of those of a
Poisson process does. With a twentieth, `fig5` at 25 ms serves up to 0.010 less."""
FIRST_GAP_NS = s(1)
"""Assumed time before the first request of a model."""
MOST_MODELS, FORGOTTEN_NS = 256, s(60)
"""Models that are kept without a look at their age, and the time without requests after which one is forgotten."""


class ModelArrivals:
    """Inter-arrival times of a model's requests, as exponential averages."""

    __slots__ = ("_burst", "_came", "_mean_burst", "_waited_ns", "gap_ns", "last_ns")

    def __init__(self, last_ns: int) -> None:
        self.gap_ns, self.last_ns = float(FIRST_GAP_NS), last_ns
        """Mean inter-arrival time, last arrival."""
        self._burst, self._mean_burst = 0, 1.0
        """Requests in the present burst, mean number in earlier ones."""
        self._waited_ns, self._came = 0.0, 0.0
        """Time that the first requests of recent batches were queued, requests that arrived meanwhile."""

    def record(self, arrival_ns: int) -> None:
        """Count a request."""
        gap_ns, self.last_ns = arrival_ns - self.last_ns, arrival_ns
        if BURST_PARTS * gap_ns < self.gap_ns:
            self._burst += 1
        else:
            burst, self._burst = self._burst, 1
            self._mean_burst += (burst - self._mean_burst) * min(1.0, burst / SMOOTHING_GAPS)
        self.gap_ns += (gap_ns - self.gap_ns) / SMOOTHING_GAPS

    def record_batch(self, waited_ns: int, count: int) -> None:
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


class RecentLoad:
    """Utilisation of shares, arrivals of models and the mean batch duration."""

    def __init__(self) -> None:
        self.batch_ns = float(ms(8))
        """Mean duration of a batch."""
        self._memory_ns = float(MEMORY_NS)
        """Time constant of the utilisation."""
        self._models: dict[str, ModelArrivals] = {}
        self._most_models = MOST_MODELS
        self._work: dict[Share, tuple[int, float]] = {}
        """Share -> (start of the last batch, decayed sum of batch durations at that time)."""

    def record_arrivals(self, requests: Sequence[Request]) -> None:
        """Count requests of one model, except those that were queued before."""
        if (arrivals := self._models.get(requests[0].model)) is None:
            arrivals = self._add_model(requests[0].model, requests[0].arrival_ns)
        for request in requests:
            if not request.admitted:
                arrivals.record(request.arrival_ns)

    def _add_model(self, model: str, now_ns: int) -> ModelArrivals:
        """Add a model, and drop those that have had no request for long if there are many."""
        if len(self._models) >= self._most_models:
            self._models = {name: kept for name, kept in self._models.items() if kept.last_ns > now_ns - FORGOTTEN_NS}
            self._most_models = max(MOST_MODELS, 2 * len(self._models))
        arrivals = self._models[model] = ModelArrivals(now_ns - FIRST_GAP_NS)
        return arrivals

    def record_wait(self, now_ns: int, strategy: Strategy) -> None:
        """Count the requests of a batch that have arrived while the first one of it was queued."""
        queue, places = strategy.queue, strategy.places
        self.arrivals(queue.model).record_batch(now_ns - queue[places[0]].arrival_ns, len(places))

    def arrivals(self, model: str) -> ModelArrivals:
        """Return the arrivals of a model. It may be forgotten while best-effort requests for it are queued."""
        return self._models.get(model) or ModelArrivals(0)

    def record_batch(self, start_ns: int, share: Share, expected_ns: int) -> None:
        self.batch_ns += (expected_ns - self.batch_ns) / SMOOTHING_BATCHES
        self._memory_ns = max(MEMORY_NS, MEMORY_BATCHES * self.batch_ns)
        self._work[share] = start_ns, self._decayed_work_ns(start_ns, share) + expected_ns

    def discard_share(self, share: Share) -> None:
        self._work.pop(share, None)

    def utilisation(self, now_ns: int, share: Share) -> float:
        """Return the busy part of the share's recent time. It is above 1 if batches are planned ahead."""
        return self._decayed_work_ns(now_ns, share) / self._memory_ns

    def _decayed_work_ns(self, now_ns: int, share: Share) -> float:
        at_ns, work_ns = self._work.get(share, (now_ns, 0.0))
        return work_ns * math.exp(-max(0, now_ns - at_ns) / self._memory_ns)
