"""Requests that shares have lost recently because they had no time for them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_common.clock import s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_controller.core.cluster.share import Share

MEMORY_NS = s(1)
"""Time after which a loss counts 1/e. Not tuned: a LOAD takes about 10 ms, and shows its effect within an SLO."""


class RecentLosses:
    """Number of lost requests of each share and of all together, as exponential averages."""

    def __init__(self) -> None:
        self._losses: dict[Share, tuple[int, float]] = {}
        """Share -> (time of the last loss, number of losses then)."""
        self._total = 0, 0.0
        """The same of all shares."""

    def record(self, now_ns: int, shares: Iterable[Share]) -> None:
        """Count a request that any of these shares could have run, and none had time for."""
        for share in shares:
            self._losses[share] = now_ns, _recent(now_ns, self._losses.get(share, (now_ns, 0.0))) + 1.0
            self._total = now_ns, _recent(now_ns, self._total) + 1.0

    def discard_share(self, share: Share) -> None:
        self._losses.pop(share, None)

    def excess(self, now_ns: int, share: Share) -> float:
        """Return the losses of a share, divided by the square of one more than those of all others.

        Where all shares lose requests, none has time for the models of the others.
        """
        if share not in self._losses:
            return 0.0
        own = _recent(now_ns, self._losses[share])
        others = max(0.0, _recent(now_ns, self._total) - own)
        return own / (1.0 + others) ** 2


def _recent(now_ns: int, losses: tuple[int, float]) -> float:
    at_ns, count = losses
    return count * math.exp((at_ns - now_ns) / MEMORY_NS)
