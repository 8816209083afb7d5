"""LOAD lanes: which shares can be given a LOAD now, and when others can."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.indexed_heap import IndexedHeap
from horologe_controller.core.cluster.lane import BESIDE_NS
from horologe_controller.core.cluster.model_profiles import LOAD_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share


class LoadLanes:
    """Shares by when their LOAD lane will be free within the look-ahead. A share that hangs is in none of the parts."""

    def __init__(self, lookahead_ns: int, cluster: Cluster) -> None:
        self._lookahead_ns = lookahead_ns
        self._cluster = cluster
        self.free: dict[Share, bool] = {}
        """Shares whose lane is free within the look-ahead."""
        self._changed: dict[Share, bool] = {}
        """Shares whose lane may be free by now, or not any more."""
        self._free_later: IndexedHeap[Share, int] = IndexedHeap()
        """Other shares, by when their lane will be free within the look-ahead."""
        self._wakes: IndexedHeap[Share, int] = IndexedHeap()
        """The same, for shares with one pending LOAD. With several, the first Result comes before the lane runs dry."""

    def discard_share(self, share: Share) -> None:
        self.free.pop(share, None)
        self._changed.pop(share, None)
        self._free_later.remove(share)
        self._wakes.remove(share)

    def mark_shares(self, shares: Mapping[Share, bool]) -> None:
        """Examine these shares at the next update: something happened on them."""
        self._changed.update(shares)

    def next_ns(self) -> int | None:
        """Return when the next lane will be free within the look-ahead without a Result before."""
        return self._wakes.smallest_priority()

    def update(self, now_ns: int) -> None:
        """Update which lanes are free."""
        later = self._free_later
        for share in later.pop_up_to(now_ns - 1):
            self._changed[share] = True
        for share in self._changed:
            self.free.pop(share, None)
            later.remove(share)
            self._wakes.remove(share)
            if not self._cluster.workers[share.worker].reachable or share.hangs(now_ns):
                continue  # until something happens on it
            at_ns = share.loads_free_at(now_ns) - self._lookahead_ns
            if at_ns < now_ns or not (share.load.pending or share.beside.pending):
                self.free[share] = True
            else:
                self._set_free_later(share, at_ns, len(share.load.pending) or 1)
        self._changed.clear()

    def reserve(self, now_ns: int, share: Share, model: str) -> None:
        """Record whether the share's lane has work for the look-ahead with a LOAD of the model."""
        load_ns = share.predict(now_ns, model, LOAD_SIZE)
        if self._cluster.specs[model].loads_beside:
            load_ns = min(load_ns, BESIDE_NS)
        end_ns = share.loads_free_at(now_ns) + load_ns
        if (at_ns := end_ns - self._lookahead_ns) >= now_ns:
            del self.free[share]
            self._set_free_later(share, at_ns, len(share.load.pending) + 1)

    def _set_free_later(self, share: Share, at_ns: int, pending: int) -> None:
        self._free_later.push(share, at_ns)
        if pending == 1:
            self._wakes.push(share, at_ns)
