"""Nexus (SOSP 2019): batch sizes planned from mean times, models of a share in turn, and early drop (section 6.3).

A saturated model runs batches of the largest size that fits its SLO twice: a request waits for at most one batch and
runs in the next. When a model's turn comes, requests are dropped until those behind them fill such a batch and make
their deadlines in it, by the mean time of that size.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from horologe_controller.core.cluster.model_profiles import profiled_ns
from horologe_controller.core.scheduling.batch_window import EarlyDrop, find_window, target_size
from horologe_controller.core.scheduling.scheduling_policy import PolicyParameters
from horologe_controller.core.scheduling.strategy import Rank, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.settings import ControllerSettings


class NexusParameters(PolicyParameters, frozen=True):
    """Parameters of `nexus`."""

    slo_part: Annotated[float, Meta(gt=0, le=1)] = 0.5
    """Part of the SLO that a model's batches are planned to take: a request waits for one and runs in the next."""
    deviations: Annotated[float, Meta(ge=0, le=100)] = 0.0
    """Standard deviations added to mean times. The paper plans with one time for each size. Its implementation adds one
    deviation to the mean."""


class Nexus(EarlyDrop):
    """The model whose last turn on the share was the longest ago goes next."""

    Parameters = NexusParameters
    parameters: NexusParameters

    def __init__(self, settings: ControllerSettings, cluster: Cluster) -> None:
        super().__init__(settings, cluster)
        self._measured: dict[Share, dict[tuple[str, int], tuple[int, int, int]]] = {}
        """Share -> (model, batch size) -> (measurements, sum of their durations, sum of the squares)."""
        self._turns: dict[Share, dict[str, int]] = {}
        """Share -> model -> start of its last batch."""

    def planned(self, share: Share, model: str) -> Callable[[int], int]:
        """Return the planned time by batch size: mean of the profile and all measurements, plus deviations."""
        seed_ns, measured = share.estimates[model].seed_ns, self._measured.get(share, {})

        def planned_ns(size: int) -> int:
            profile_ns = profiled_ns(seed_ns, size)
            count, total_ns, squares = measured.get((model, size), (0, 0, 0))
            mean_ns = (profile_ns + total_ns) / (1 + count)
            variance = max(0.0, (profile_ns**2 + squares) / (1 + count) - mean_ns**2)
            return int(mean_ns + self.parameters.deviations * math.sqrt(variance))

        return planned_ns

    def shortest_exec_ns(self, now_ns: int, request: Request) -> int:
        """Return the shortest planned time on a share that holds the model; the estimate if no share does."""
        model, size = request.model, request.spec.compiled_batch_size(request.rows)
        shares = [share for share in self.cluster.residency.shares_of.get(model, ()) if model in share.estimates]
        if not shares:
            return self.cluster.request_exec_ns(now_ns, request)
        return min(self.planned(share, model)(size) for share in shares)

    def best_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Return the window of the planned size, or of a smaller one if the queue holds too few requests."""
        if not queue or queue.model not in share.estimates:
            return None
        planned_ns = self.planned(share, queue.model)
        target = target_size(queue, self.parameters.slo_part, planned_ns)
        window = find_window(queue, start_ns, target, planned_ns)
        if window is None:
            return None
        rank = Rank(1, self._turns.get(share, {}).get(queue.model, 0), queue[0].id)
        return Strategy(rank, queue, window.size, window.places, planned_ns(window.size))

    def on_batch_chosen(self, start_ns: int, share: Share, strategy: Strategy) -> bool:
        """Record the model's turn."""
        if not strategy.queue.best_effort:
            self._turns.setdefault(share, {})[strategy.queue.model] = start_ns
        return False

    def on_result(self, action: Action, took_ns: int) -> None:
        """Add a measurement."""
        measured, key = self._measured.setdefault(action.share, {}), (action.model, action.batch_size)
        count, total_ns, squares = measured.get(key, (0, 0, 0))
        measured[key] = count + 1, total_ns + took_ns, squares + took_ns**2

    def on_share_lost(self, share: Share) -> None:
        """Discard what was measured on the share."""
        self._measured.pop(share, None)
        self._turns.pop(share, None)
