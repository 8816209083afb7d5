"""InferLine's tuner as a scaling policy of the serving simulation: the service's own envelope and rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import ms
from horologe_tuner.core.envelope import SlidingEnvelope, envelope_of, window_lengths
from horologe_tuner.core.scaling_rules import (
    DOWN_SPAN_NS,
    DOWN_WINDOW_NS,
    ScalingRules,
    ScalingState,
    decide,
    find_demand,
)
from horologe_tuner.core.tuning_plan import StageTarget, TuningPlan

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from horologe_experiments.inferline.scaling_policy import Observation
    from horologe_tuner.core.plans import PipelinePlan


PAPER_RULES = ScalingRules()


def tuning_plan(plan: PipelinePlan, sample_ns: NDArray[np.int64]) -> TuningPlan:
    """Return what the planner gives the tuner: the envelope of the sample trace and the figures of each stage."""
    stages = tuple(
        StageTarget(
            stage.stage, stage.model, stage.hardware, stage.batch, stage.replicas, stage.throughput, stage.scale_factor
        )
        for stage in plan.stages
    )
    envelope = envelope_of(sample_ns, window_lengths(plan.service_ns))
    return TuningPlan(plan.pipeline, plan.slo_ns, plan.rate, envelope, stages)


class InferLineTuner:
    """The tuner, with its own envelope and rules.

    `detections` lists the times at which the traffic exceeded the sample's envelope, with the window that showed it.
    """

    name = "inferline"
    interval_ns = ms(100)

    def __init__(self, plan: TuningPlan, rules: ScalingRules = PAPER_RULES) -> None:
        self.detections: list[tuple[int, int]] = []
        self._plan = plan
        self._rules = rules
        self._envelope = SlidingEnvelope(plan.envelope.windows_ns)
        self._envelope.advance(0)
        self._planned = {stage.stage: stage.replicas for stage in plan.stages}
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
        demand = find_demand(self._plan, self._planned, rates, self._rules)
        if demand.rate:
            self.detections.append((now_ns, demand.window_ns))
        decision = decide(now_ns, self._plan, self._state, rates, recent, self._rules)
        if decision is None:
            return {}
        self._state = ScalingState(dict(decision.after), now_ns)
        return decision.after
