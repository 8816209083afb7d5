"""Provisioning levels: the replicas that the estimator found sufficient for multiples of the sample's rate.

InferLine scales each stage by its provisioning ratio rho_m, as if a stage that the plan loads to 0.1 needed ten times
the replicas for ten times the rate. A plan has such stages whenever one replica is more than enough. Levels replace the
ratio where the planner provides them.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_planning.plan import MAX_REPLICAS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_planning.plan import Plan

HOLD_NS = s(60)
"""Scaling down follows the highest factor of this span, the longest window of the envelope."""
HYSTERESIS = 1.1
"""Replicas are changed to those for this multiple of the demand. Without it, the next peak of the same traffic, which
exceeds the last one every second time, would scale up again."""


def level_replicas(plan: Plan, factor: float) -> dict[str, int]:
    """Return the replicas by stage for `factor` times the sample's rate, at most `MAX_REPLICAS`.

    Beyond the last level they grow in proportion. Raises IndexError if the plan has no levels.
    """
    level = next((level for level in plan.levels if level.factor >= factor), plan.levels[-1])
    more = max(1.0, factor / level.factor)
    counts = (math.ceil(min(more * n, MAX_REPLICAS)) for n in level.replicas)
    return {stage.stage: count for stage, count in zip(plan.counted, counts, strict=True)}


def carried_factor(plan: Plan, replicas: Mapping[str, int]) -> float:
    """Return the multiple of the sample's rate that running replicas suffice for. 0 if not even the first level."""
    counts = [replicas[stage.stage] for stage in plan.counted]
    enough = [level.factor for level in plan.levels if all(n >= m for n, m in zip(counts, level.replicas, strict=True))]
    last = plan.levels[-1]
    if enough and enough[-1] == last.factor:
        return last.factor * min(n / m for n, m in zip(counts, last.replicas, strict=True))
    return enough[-1] if enough else 0.0


class RecentPeak:
    """Highest multiple of the sample's rates, over all windows of the envelope, in the last `HOLD_NS`."""

    def __init__(self) -> None:
        self._peaks: deque[tuple[int, float]] = deque()
        """Times and factors. Each factor is lower than those before."""

    def add(self, now_ns: int, rates: Sequence[float], planned: Sequence[float]) -> float:
        """Add the rates since the last call, by window. Return the highest factor."""
        factor = max(rate / sample for rate, sample in zip(rates, planned, strict=True))
        while self._peaks and self._peaks[-1][1] <= factor:
            self._peaks.pop()
        self._peaks.append((now_ns, factor))
        while self._peaks[0][0] <= now_ns - HOLD_NS:
            self._peaks.popleft()
        return self._peaks[0][1]
