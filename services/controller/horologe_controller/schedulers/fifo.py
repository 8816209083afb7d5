"""A plain baseline: first come, first served, with a batch limit per model that Clipper's AIMD finds (its section 4.3).

Nothing is refused for being late, and what is late is run all the same, as in systems that only queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_controller.scheduler import Refusal
from horologe_controller.schedulers.edf import Edf

if TYPE_CHECKING:
    from horologe_controller.cluster import Action, Cluster, Share
    from horologe_controller.queues import Request
    from horologe_controller.scheduler import Batch
    from horologe_controller.settings import Settings

STEP, BACKOFF = 1.0, 0.9
"""Clipper: one more row after a batch within the SLO, a tenth fewer after one beyond it."""
WINDOW_NS = s(3600)
"""A batch may begin whenever its turn comes."""


class Fifo(Edf):
    """The oldest request goes next, with as many of its model behind it as the limit allows."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._limits: dict[str, float] = {}

    def add(self, now_ns: int, request: Request, cluster: Cluster) -> Refusal | None:
        """Queue, unless nothing can run it at all."""
        exec_ns = self._exec_ns(now_ns, request.spec.key, request.spec.compiled(request.rows), cluster)
        if exec_ns is None:
            return Refusal(request, "no worker can serve this model")
        self.backlog.add(request, exec_ns)
        return None

    def observe(self, now_ns: int, action: Action, took_ns: int) -> None:
        """Adapt the limit of the model to how its batch took, against the budget of its oldest request."""
        if action.kind != "infer":
            return
        oldest = action.requests[0]
        limit = self._limits.get(action.model, 1.0)
        if took_ns > oldest.deadline_ns - oldest.arrival_ns:
            self._limits[action.model] = max(1.0, limit * BACKOFF)
        else:
            self._limits[action.model] = min(limit + STEP, float(oldest.spec.max_batch))

    def _refusals(self, now_ns: int, cluster: Cluster) -> list[Refusal]:
        return []

    def _pick(self, now_ns: int, free_ns: int, share: Share, ready: dict[str, int]) -> Batch | None:
        queues = [queue for (model, _), queue in self.backlog.queues.items() if model in ready]
        if not queues:
            return None
        queue = min(queues, key=lambda one: one.first().id)
        limit = max(int(self._limits.get(queue.spec.key, 1.0)), queue.first().rows)
        size = max(one for one in queue.spec.batch_sizes if one <= max(limit, queue.spec.compiled(queue.first().rows)))
        requests = queue.batch(min(size, limit), 0)
        expected_ns = share.predict(now_ns, queue.spec.key, queue.spec.compiled(sum(one.rows for one in requests)))
        batch = self._batch(share, requests, free_ns, expected_ns)
        batch.latest_ns = now_ns + WINDOW_NS
        return batch
