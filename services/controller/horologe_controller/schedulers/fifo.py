"""First come, first served, with a batch limit per model that Clipper's AIMD finds (its section 4.3): a plain baseline.

No request is refused for being late, and late requests run all the same, as in systems that only queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.core.scheduling.batch_window import head_window
from horologe_controller.core.scheduling.scheduling_policy import SchedulingPolicy
from horologe_controller.core.scheduling.strategy import Rank, Strategy
from horologe_controller.schedulers.clipper import ClipperParameters

if TYPE_CHECKING:
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.settings import ControllerSettings


class Fifo(SchedulingPolicy):
    """The oldest request goes next, with as many of its model behind it as the limit allows."""

    deadline_rule = "ignore"

    def __init__(self, settings: ControllerSettings, cluster: Cluster) -> None:
        super().__init__(settings, cluster)
        self._steps = ClipperParameters()
        self._limits: dict[str, float] = {}
        """Model -> rows."""

    def best_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Return the largest batch within the limit, at least the smallest size."""
        if not queue or (estimate := share.estimates.get(queue.model)) is None:
            return None
        if (window := head_window(queue, self._limits.get(queue.model, 1.0))) is None:
            return None
        rank, expected_ns = Rank(0, queue[0].arrival_ns, queue[0].id), estimate.predict(now_ns, window.size)
        return Strategy(rank, queue, window.size, window.places, expected_ns)

    def on_result(self, action: Action, took_ns: int) -> None:
        """Adapt the limit of the model to the batch's duration, against the budget of its first request."""
        first, limit = action.requests[0], self._limits.get(action.model, 1.0)
        if first.best_effort:
            return
        if took_ns > first.deadline_ns - first.arrival_ns:
            self._limits[action.model] = max(1.0, limit * self._steps.backoff)
        else:
            self._limits[action.model] = min(limit + self._steps.increase, float(first.spec.max_batch))
