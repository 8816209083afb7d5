"""A plain baseline: first come, first served, with a batch limit per model that Clipper's AIMD finds (its section 4.3).

Nothing is refused for being late, and what is late is run all the same, as in systems that only queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_controller.core.scheduling.planner import LookAhead
from horologe_controller.core.scheduling.strategies import Strategy

if TYPE_CHECKING:
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.scheduler import Batch
    from horologe_controller.settings import ControllerSettings

STEP, BACKOFF = 1.0, 0.9
"""Clipper: one more row after a batch within the SLO, a tenth fewer after one beyond it."""
WINDOW_NS = s(3600)
"""A batch may begin whenever its turn comes."""


class Fifo(LookAhead):
    """The oldest request goes next, with as many of its model behind it as the limit allows."""

    keeps_deadlines = False

    def __init__(self, settings: ControllerSettings) -> None:
        super().__init__(settings)
        self._limits: dict[str, float] = {}

    def propose(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """The largest size within the limit, at least the smallest."""
        if not queue or (estimate := share.estimates.get(queue.model)) is None:
            return None
        first, limit = queue[0], self._limits.get(queue.model, 1.0)
        for size in queue.sizes():
            if (size <= limit or size == queue.spec.compiled_batch_size(first.rows)) and (
                count := queue.filling(0, size)
            ):
                rank = 0, first.arrival_ns, first.id
                return Strategy(rank, queue, size, range(count), estimate.predict(now_ns, size))
        return None

    def observe(self, now_ns: int, action: Action, took_ns: int) -> None:
        """Adapt the limit of the model to how its batch took, against the budget of its oldest request."""
        if action.kind == "infer":
            oldest = action.requests[0]
            limit = self._limits.get(action.model, 1.0)
            if took_ns > oldest.deadline_ns - oldest.arrival_ns:
                self._limits[action.model] = max(1.0, limit * BACKOFF)
            else:
                self._limits[action.model] = min(limit + STEP, float(oldest.spec.max_batch))
        super().observe(now_ns, action, took_ns)

    def _batch(self, now_ns: int, free_ns: int, share: Share, cluster: Cluster, strategy: Strategy) -> Batch:
        batch = super()._batch(now_ns, free_ns, share, cluster, strategy)
        batch.latest_ns = free_ns + WINDOW_NS
        return batch
