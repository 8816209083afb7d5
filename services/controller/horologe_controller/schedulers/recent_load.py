"""What a policy measures to decide on waits: utilisation of shares, arrivals of models, durations of batches."""

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
FIRST_GAP_NS = s(1)
"""Assumed time before the first request of a model."""


class RecentLoad:
    """Utilisation of shares, inter-arrival times of models and the mean batch duration, as exponential averages."""

    def __init__(self) -> None:
        self.batch_ns = float(ms(8))
        """Mean duration of a batch."""
        self._memory_ns = float(MEMORY_NS)
        """Time constant of the utilisation."""
        self.gap_ns: dict[str, float] = {}
        """Model -> mean inter-arrival time."""
        self._last_ns: dict[str, int] = {}
        """Model -> last arrival."""
        self._queued: dict[str, tuple[float, float]] = {}
        """Model -> (time that the first requests of recent batches were queued, requests that arrived meanwhile)."""
        self._work: dict[Share, tuple[int, float]] = {}
        """Share -> (start of the last batch, decayed sum of batch durations at that time)."""

    def record_arrivals(self, requests: Sequence[Request]) -> None:
        """Count requests of one model, except those that were queued before."""
        model = requests[0].model
        gap_ns = self.gap_ns.get(model, float(FIRST_GAP_NS))
        last_ns = self._last_ns.get(model, requests[0].arrival_ns - FIRST_GAP_NS)
        for request in requests:
            if not request.admitted:
                at_ns = request.arrival_ns
                gap_ns += (at_ns - last_ns - gap_ns) / SMOOTHING_GAPS
                last_ns = at_ns
        self.gap_ns[model], self._last_ns[model] = gap_ns, last_ns

    def record_wait(self, now_ns: int, strategy: Strategy) -> None:
        """Count the requests that have arrived while the first one of a batch was queued."""
        queue, places = strategy.queue, strategy.places
        waited_ns, came = self._queued.get(queue.model, (0.0, 0.0))
        kept = 1 - 1 / SMOOTHING_GAPS
        waited_ns = kept * waited_ns + max(0, now_ns - queue[places[0]].arrival_ns)
        self._queued[queue.model] = waited_ns, kept * came + len(places) - 1

    def next_ns(self, model: str) -> float:
        """Return the expected time until the next request for a model while others are queued.

        In closed loops it is longer than the mean inter-arrival time: clients that wait for answers send nothing.
        """
        waited_ns, came = self._queued.get(model, (0.0, 0.0))
        gap_ns = self.gap_ns[model]
        return max(gap_ns, (waited_ns + gap_ns) / (came + 1))

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
