"""Eviction: which only copies a LOAD may not evict, as it would cost more requests than it serves.

Where models do not fit in memory, LOADs in the order of deadlines alone evict popular models for requests of rare ones,
and those again for the popular ones. Devices then wait for LOADs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.core.cluster.model_profiles import LOAD_SIZE
from horologe_controller.core.traffic import MEMORY_NS

if TYPE_CHECKING:
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.loading.demand import Demand
    from horologe_controller.core.traffic import Traffic


class Eviction:
    """A LOAD of a model on a share, and the only copies there that are worth more than it.

    A further copy never evicts the only copy of a model that is asked for at least as often. A first copy does if the
    LOAD serves more requests than it costs. It serves a batch of the queued requests that it would help, as
    far as the share has time for them. It costs the difference of how often both are asked for, times the time until
    the evicted one is back, as far as this exceeds the budget of its requests, `MEMORY_NS` at most. It is back after a
    batch of the model and a LOAD. Requests count by their weights.
    """

    def __init__(
        self,
        now_ns: int,
        share: Share,
        model: str,
        cluster: Cluster,
        demand: Demand,
        traffic: Traffic,
        wait_ns: int,
    ) -> None:
        """`wait_ns`: how long a LOAD waits behind others, and then its EXEC."""
        self._now_ns, self._share, self._model = now_ns, share, model
        self._cluster, self._demand, self._traffic, self._wait_ns = cluster, demand, traffic, wait_ns
        self._is_more = model in cluster.residency.shares_of
        self._needs: tuple[int, int, int] | None = None
        """Requests that the LOAD serves, and the times in ns of the LOAD and of their batch."""
        self.has_kept = False
        """True if a model was kept."""

    def keeps(self, held: str) -> bool:
        """Return whether the share has to keep a model."""
        cluster = self._cluster
        if len(cluster.residency.shares_of[held]) > 1 or held not in cluster.specs:
            return False
        more = self._asked(held) - self._asked(self._model)
        kept = more >= 0 and (self._is_more or self._costs_more(held, more))
        self.has_kept |= kept
        return kept

    def _asked(self, model: str) -> float:
        """Return the weight of the recent requests for a model."""
        return self._cluster.specs[model].weight * self._traffic.of_model(model).asked.at(self._now_ns)

    def _costs_more(self, held: str, more: float) -> bool:
        """Return whether the LOAD costs more than it serves. `more`: by how much more the other model is asked for."""
        helped, load_ns, exec_ns = self._needs = self._needs or self._find_needs()
        idle, reload_ns = self._idle_without(held), self._share.predict(self._now_ns, held, LOAD_SIZE)
        run_ns = load_ns + exec_ns / idle + self._cluster.latency.round_trip_ns
        back_ns = run_ns + reload_ns + self._exec_ns(held) / idle
        lost_ns = min(MEMORY_NS, back_ns - self._traffic.of_model(held).budget_ns)
        worth = self._cluster.specs[self._model].weight * helped * idle
        return lost_ns > 0 and more * lost_ns / MEMORY_NS >= worth

    def _idle_without(self, held: str) -> float:
        """Return the idle part of the share, once the other model has gone.

        What it used becomes free while device time costs nothing. Otherwise requests of other models wait for it.
        """
        now_ns, traffic = self._now_ns, self._traffic
        busy = traffic.utilisation(now_ns, self._share)
        if not traffic.price.rate:
            busy -= traffic.of_model(held).work_ns.at(now_ns) / MEMORY_NS
        return min(1.0, max(0.01, 1.0 - busy))  # it can be divided by

    def _find_needs(self) -> tuple[int, int, int]:
        now_ns, model, spec = self._now_ns, self._model, self._cluster.specs[self._model]
        load_ns = self._share.predict(now_ns, model, LOAD_SIZE)
        helped = self._demand.count_until(model, now_ns + self._wait_ns + load_ns + self._exec_ns(model))
        helped = min(helped, spec.max_batch)
        return helped, load_ns, self._exec_ns(model, spec.compiled_batch_size(max(1, helped)))

    def _exec_ns(self, model: str, size: int = 0) -> int:
        """Return what a batch takes on the fastest share. `size` 0: the smallest one."""
        return self._cluster.cached_exec_ns(self._now_ns, model, size or self._cluster.specs[model].batch_sizes[0])[0]
