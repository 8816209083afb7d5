"""Clockwork's strategies (appendix B): for every batch size a required start time; the earliest one goes next.

Large batches have the earlier required start, so they win where they fit, possibly at the expense of an
unfortunately timed request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.schedulers.edf import Edf

if TYPE_CHECKING:
    from horologe_controller.cluster import Share
    from horologe_controller.queues import ModelQueue
    from horologe_controller.scheduler import Batch


class Clockwork(Edf):
    """One strategy a model is eligible at a time: the largest batch that is full and that all in it survive."""

    def _pick(self, now_ns: int, free_ns: int, share: Share, ready: dict[str, int]) -> Batch | None:
        best: tuple[int, Batch] | None = None
        for (model, _), queue in self.backlog.queues.items():
            if model not in ready:
                continue
            batch = self._largest(now_ns, free_ns, share, queue)
            if batch is not None and (best is None or batch.latest_ns < best[0]):
                best = (batch.latest_ns, batch)
        return best[1] if best else None

    def _largest(self, now_ns: int, free_ns: int, share: Share, queue: ModelQueue) -> Batch | None:
        for size in reversed(self._sizes(queue)):
            expected_ns = share.predict(now_ns, queue.spec.key, size)
            requests = queue.batch(size, free_ns + expected_ns)
            if requests and queue.spec.compiled(sum(one.rows for one in requests)) == size:
                return self._batch(share, requests, free_ns, expected_ns)
        return None
