"""How busy shares lately were, and how often models are asked for: what tells whether a batch would grow by waiting."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from horologe_common.clock import ms, s

if TYPE_CHECKING:
    from horologe_controller.core.cluster.share import Share

MEMORY_NS = ms(200)
"""What was so long ago counts 1/e of what is so now."""
MEMORY_BATCHES = 8
"""And at least so many batches are remembered."""
SMOOTHING_GAPS, SMOOTHING_BATCHES = 16, 64
"""Over about so many a mean is taken."""


class Rates:
    """Means that forget."""

    def __init__(self) -> None:
        self.batch_ns = float(ms(8))
        """What a batch takes."""
        self._gaps: dict[str, tuple[int, float]] = {}
        """Model -> when it was last asked for, and how long after the time before that in the mean."""
        self._used: dict[Share, tuple[int, float]] = {}
        """Share -> when it was last given a batch, and what it was given, what is long ago less."""

    def asked(self, at_ns: int, model: str) -> None:
        """A request for the model has come."""
        before_ns, gap_ns = self._gaps.get(model, (at_ns - s(1), float(s(1))))
        self._gaps[model] = at_ns, gap_ns + (at_ns - before_ns - gap_ns) / SMOOTHING_GAPS

    def given(self, start_ns: int, share: Share, took_ns: int) -> None:
        """A batch that takes so long is to begin on the share."""
        self.batch_ns += (took_ns - self.batch_ns) / SMOOTHING_BATCHES
        self._used[share] = start_ns, self._left_ns(start_ns, share) + took_ns

    def forget(self, share: Share) -> None:
        """It is gone."""
        self._used.pop(share, None)

    def busy(self, now_ns: int, share: Share) -> float:
        """The part of its time for which the share has work; 1: all of it."""
        return self._left_ns(now_ns, share) / self._memory_ns()

    def gap_ns(self, model: str) -> float:
        """From one request for the model to the next. Raises KeyError for one that was never asked for."""
        return self._gaps[model][1]

    def _left_ns(self, now_ns: int, share: Share) -> float:
        at_ns, used_ns = self._used.get(share, (now_ns, 0.0))
        return used_ns * math.exp(-max(0, now_ns - at_ns) / self._memory_ns())

    def _memory_ns(self) -> float:
        return max(MEMORY_NS, MEMORY_BATCHES * self.batch_ns)
