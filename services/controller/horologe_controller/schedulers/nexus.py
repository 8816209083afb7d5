"""Nexus (SOSP 2019): batch sizes planned from mean times, models of a share in turn, and early drop (section 6.3).

A saturated model runs batches of the largest size that fits its SLO twice: a request waits for one batch at most and is
in the next. When a model's turn comes, requests are dropped until those that follow fill such a batch and, by the mean
time of that size, make their deadlines in it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_controller.core.cluster.estimates import profiled_ns
from horologe_controller.core.scheduling.strategies import Strategy
from horologe_controller.core.scheduling.waiting import WHEN_DRY, Waiting, target_size, window

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.scheduler import Batch
    from horologe_controller.settings import ControllerSettings


class Nexus(Waiting):
    """The model whose last turn on the share was the longest ago goes next."""

    drops_heads = True

    def __init__(self, settings: ControllerSettings) -> None:
        super().__init__(settings)
        self._measured: dict[Share, dict[tuple[str, int], tuple[int, int, int]]] = {}
        """(model, batch size) -> (measurements, sum of their durations, sum of the squares)."""
        self._turns: dict[Share, dict[str, int]] = {}

    def lost(self, share: Share) -> None:
        self._measured.pop(share, None)
        self._turns.pop(share, None)

    def planned(self, share: Share, model: str) -> Callable[[int], int]:
        """By size, the mean of all that was ever measured, the profile being the first measurement; and deviations."""
        seed_ns, measured = share.estimates[model].seed_ns, self._measured.get(share, {})

        def planned_ns(size: int) -> int:
            first_ns = profiled_ns(seed_ns, size)
            count, total_ns, squares = measured.get((model, size), (0, 0, 0))
            mean_ns = (first_ns + total_ns) / (1 + count)
            variance = max(0.0, (first_ns**2 + squares) / (1 + count) - mean_ns**2)
            return int(mean_ns + self.settings.nexus_deviations * math.sqrt(variance))

        return planned_ns

    def least_ns(self, now_ns: int, request: Request, cluster: Cluster) -> int:
        """As planned, too, where the model is resident."""
        model, size = request.model, request.spec.compiled_batch_size(request.rows)
        holders = [share for share in cluster.holders.of.get(model, ()) if model in share.estimates]
        if not holders:
            return super().least_ns(now_ns, request, cluster)
        return min(self.planned(share, model)(size) for share in holders)

    def propose(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """The window of the planned size, or of a smaller one if the queue has not as many."""
        if not queue or queue.model not in share.estimates:
            return None
        planned_ns = self.planned(share, queue.model)
        found = window(queue, start_ns, target_size(queue, self.settings.nexus_slo_part, planned_ns), planned_ns)
        if found is None:
            return None
        rank = WHEN_DRY, self._turns.get(share, {}).get(queue.model, 0), queue[0].id
        return Strategy(
            rank, queue, found.size, range(found.place, found.place + found.requests), planned_ns(found.size)
        )

    def observe(self, now_ns: int, action: Action, took_ns: int) -> None:
        if action.kind == "infer":
            measured, key = self._measured.setdefault(action.share, {}), (action.model, action.batch_size)
            count, total_ns, squares = measured.get(key, (0, 0, 0))
            measured[key] = count + 1, total_ns + took_ns, squares + took_ns**2
        super().observe(now_ns, action, took_ns)

    def _batch(self, now_ns: int, free_ns: int, share: Share, cluster: Cluster, strategy: Strategy) -> Batch:
        if not strategy.queue.best_effort:
            self._turns.setdefault(share, {})[strategy.queue.model] = free_ns
        return super()._batch(now_ns, free_ns, share, cluster, strategy)
