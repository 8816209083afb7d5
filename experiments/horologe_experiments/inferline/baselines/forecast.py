"""Forecast-based scaling: Holt-Winters on the rates of past minutes, as the SLA planners of LLM servers use it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_experiments.inferline.scaling_policy import Observation

MINUTE_S = 60.0
LEVEL, TREND, SEASON = 0.5, 0.2, 0.3
"""Weights of the last minute."""


class HoltWinters:
    """Additive Holt-Winters smoothing. Without `period`, there is no season (Holt's linear trend)."""

    def __init__(self, period: int = 0) -> None:
        """`period`: length of a season in steps; 0 for none."""
        self._level: float | None = None
        self._trend = 0.0
        self._season = [0.0] * max(1, period)
        self._period = period
        self._steps = 0

    def add(self, value: float) -> None:
        """Add the value of the next step."""
        at = self._steps % len(self._season)
        if self._level is None:
            self._level = value
        else:
            level = LEVEL * (value - self._season[at]) + (1 - LEVEL) * (self._level + self._trend)
            self._trend = TREND * (level - self._level) + (1 - TREND) * self._trend
            self._level = level
        if self._period:
            self._season[at] = SEASON * (value - self._level) + (1 - SEASON) * self._season[at]
        self._steps += 1

    def forecast(self) -> float:
        """Return the expected value of the next step, at least 0."""
        return max(0.0, (self._level or 0.0) + self._trend + self._season[self._steps % len(self._season)])


class ForecastScaling:
    """Each minute, sets the replicas that serve the forecast of the next minute's rate."""

    name = "forecast"
    interval_ns = 60 * 10**9

    def __init__(
        self,
        scale_factors: Mapping[str, float],
        sustained: Mapping[str, float],
        past_rates: Sequence[float] = (),
        period: int = 0,
    ) -> None:
        """`sustained`: calls per second that a replica serves within the SLO. `past_rates`: by minute, for a start."""
        self._scale_factors = scale_factors
        self._sustained = sustained
        self._smoothing = HoltWinters(period)
        for rate in past_rates:
            self._smoothing.add(rate)

    def replicas(self, observation: Observation) -> Mapping[str, int]:
        """See `ScalingPolicy`."""
        self._smoothing.add(observation.rate(MINUTE_S))
        rate = self._smoothing.forecast()
        return {
            name: max(1, math.ceil(rate * self._scale_factors[name] / self._sustained[name]))
            for name in observation.stages
        }
