"""How many times as long as profiled each share takes, kept: demand asks for all holders of a model at every change."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horologe_controller.core.cluster.share import Share


class Slowness:
    """Looked at anew are shares on which something has happened, and all of them once that may be needed.

    Between two looks at all, at most `grace_ns` apart, no action that was given since can come to be overdue by it.
    """

    def __init__(self, grace_ns: int) -> None:
        self._grace_ns = grace_ns
        self.of: dict[Share, float] = {}
        """Share -> at least 1; infinity where it hangs (grey failure, Clockwork section 7)."""
        self._touched: dict[Share, bool] = {}
        self._until_ns = 0
        """Until when those that nothing happens on stay as they are."""

    def touched(self, share: Share) -> None:
        """Something has happened on it."""
        self._touched[share] = True

    def forget(self, share: Share) -> None:
        """It is gone."""
        self._touched.pop(share, None)
        self.of.pop(share, None)

    def update(self, now_ns: int) -> None:
        """Take in what has happened up to now."""
        if now_ns > self._until_ns:
            self._touched |= dict.fromkeys(self.of, True)
            self._until_ns = now_ns + self._grace_ns
        for share in self._touched:
            if share.hangs(now_ns, self._grace_ns):  # until something happens on it
                self.of[share] = math.inf
            else:
                self.of[share] = share.slowness(now_ns)
                self._until_ns = min(self._until_ns, share.steady_until_ns(self._grace_ns))
        self._touched.clear()
