"""InferLine's tuner as a scaling policy of the serving simulation: the service's own envelope and rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import ms
from horologe_planning.envelope import SlidingEnvelope
from horologe_tuner.core.scaling.scaling_rules import (
    DOWN_SPAN_NS,
    DOWN_WINDOW_NS,
    RecentPeak,
    ScalingRules,
    ScalingState,
    decide,
    find_demand,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_experiments.inferline.scaling_policy import Observation
    from horologe_planning.plan import Plan


RULES = ScalingRules()


class InferLineTuner:
    """The tuner, with its own envelope and rules.

    `detections` lists the demands beyond the sample's envelope: time, queries per second, window that showed it.
    """

    interval_ns = ms(100)

    def __init__(self, plan: Plan, name: str = "inferline") -> None:
        assert plan.envelope is not None
        self.detections: list[tuple[int, float, int]] = []
        self._plan, self._sample_rates = plan, plan.envelope.rates()
        self.name = name
        self._peak = RecentPeak()
        self._envelope = SlidingEnvelope(plan.envelope.windows_ns)
        self._envelope.advance(0)
        self._planned = {stage.stage: stage.replicas for stage in plan.placements}
        self._state = ScalingState(dict(self._planned), 0)
        self._counted = 0

    def replicas(self, observation: Observation) -> Mapping[str, int]:
        """See `ScalingPolicy`."""
        envelope, now_ns = self._envelope, observation.now_ns
        for at_ns in observation.arrivals_ns[self._counted :].tolist():
            envelope.add(at_ns)
        self._counted = len(observation.arrivals_ns)
        envelope.advance(now_ns)
        recent = envelope.max_rate(DOWN_WINDOW_NS, DOWN_SPAN_NS) if envelope.observed_ns >= DOWN_SPAN_NS else None
        rates = envelope.pop_rates()
        peak = self._peak.add(now_ns, rates, self._sample_rates, RULES.settle_ns)
        if self._plan.levels and recent is not None:
            recent = self._plan.rate * peak
        demand = find_demand(self._plan, self._planned, rates, RULES)
        if demand.rate:
            self.detections.append((now_ns, demand.rate, demand.window_ns))
        decision = decide(now_ns, self._plan, self._state, rates, recent, RULES)
        if decision is None:
            return {}
        self._state = ScalingState(dict(decision.after), now_ns)
        return decision.after
