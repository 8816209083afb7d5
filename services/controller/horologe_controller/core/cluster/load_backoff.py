"""Backoff of LOADs that workers refuse, and of models whose process has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS, ms, s
from horologe_common.core.indexed_heap import IndexedHeap

if TYPE_CHECKING:
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share


class LoadBackoff:
    """Exponential backoff of LOADs by share and model.

    A worker refuses a LOAD for reasons that pass: too many pending actions, no free pages yet, a missed window. It
    unloads a model whose process has ended: the model may end the next process as well. A successful INFER of the model
    or the worker's next Register resets the backoff. LOADs that fail are not retried: see
    `ModelCatalogue.mark_load_failed`.
    """

    def __init__(self, first_ns: int = ms(10), max_ns: int = s(5)) -> None:
        """Pause for `first_ns`, doubled with each further pause up to `max_ns`."""
        self._first_ns = first_ns
        self._max_ns = max_ns
        self._retries: IndexedHeap[tuple[Share, str], int] = IndexedHeap()
        """Retry times; valid while `Share.load_retry_ns` has the same."""
        self.due_ns: int | None = None
        """When `end_expired` is to be called next; None if no share is in backoff."""

    def postpone_load(self, now_ns: int, share: Share, model: str, cluster: Cluster) -> None:
        """Start a backoff. If no share can load the model now, its queued requests are checked again."""
        pauses = share.load_pauses[model] = share.load_pauses.get(model, 0) + 1
        pause_ns = min(self._first_ns << min(pauses - 1, 62), self._max_ns)
        retry_ns = share.load_retry_ns[model] = now_ns + pause_ns
        self._retries.push((share, model), retry_ns)
        self.due_ns = self._retries.smallest_priority()
        if cluster.load_retry_ns(model):
            cluster.changes.mark_revised(model)

    def end_expired(self, now_ns: int, cluster: Cluster) -> None:
        """End the backoffs whose time has passed, so that the scheduler considers their shares again."""
        for share, model in self._retries.pop_up_to(now_ns):
            if share.load_retry_ns.get(model, NEVER_NS) <= now_ns:  # not reset by a successful LOAD or a Register
                del share.load_retry_ns[model]
                cluster.changes.mark_reconfigured(share)
        self.due_ns = self._retries.smallest_priority()
