"""An applied plan: what runs of it, the traffic since it was applied, and the decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_planning.envelope import SlidingEnvelope
from horologe_planning.tuning_plan import MAX_REPLICAS, TuningPlan
from horologe_tuner.core.pipeline_tuning.provisioning_levels import RecentPeak
from horologe_tuner.core.pipeline_tuning.recent_arrivals import ArrivalCounts, RecentArrivals
from horologe_tuner.core.pipeline_tuning.scaling_rules import (
    DOWN_SPAN_NS,
    DOWN_WINDOW_NS,
    Decision,
    ScalingRules,
    ScalingState,
    decide,
    find_demand,
)

if TYPE_CHECKING:
    from horologe_common.wire import Events


class AppliedPlan(msgspec.Struct, frozen=True):
    """A plan as the state file keeps it. `replicas`: what runs, by stage."""

    plan: TuningPlan
    replicas: dict[str, int]
    dry_run: bool = False

    def validate(self) -> None:
        """Raise ValueError that names the first invalid field of the plan, or the stage without valid replicas."""
        self.plan.validate()
        stages = [stage.stage for stage in self.plan.stages]
        counts = self.replicas.values()
        if sorted(self.replicas) != sorted(stages) or not all(1 <= count <= MAX_REPLICAS for count in counts):
            wanted = f"1 to {MAX_REPLICAS} of each of {', '.join(stages)}"
            raise ValueError(f"replicas: got {self.replicas}, wanted {wanted}")


class PipelineStatus(msgspec.Struct, frozen=True):
    """State of a pipeline for operators. Rates are in queries per second, by window of the envelope."""

    pipeline: str
    dry_run: bool
    replicas: dict[str, int]
    planned_replicas: dict[str, int]
    windows_ns: tuple[int, ...]
    rates: tuple[float, ...]
    planned_rates: tuple[float, ...]
    demand: float
    """Rate to provision for. 0: the present traffic is within the envelope of the running replicas."""
    observed_ns: int
    """Time for which arrivals have been observed without a gap."""


class RunningPlan:
    """A plan, its replicas, and the envelope of its traffic. `now_ns` of the applying turn starts the settling time."""

    def __init__(self, now_ns: int, applied: AppliedPlan) -> None:
        self.plan = applied.plan
        self.dry_run = applied.dry_run
        self.state = ScalingState(dict(applied.replicas), now_ns)
        self._rates = (0.0,) * len(self.plan.envelope.windows_ns)
        self.reset_traffic()

    def applied(self) -> AppliedPlan:
        """Return what the state file keeps."""
        return AppliedPlan(self.plan, dict(self.state.replicas), self.dry_run)

    def reset_traffic(self) -> None:
        """Discard the arrivals, because some were not observed. Nothing is removed before 30 s have been observed."""
        self._clock_ns = 0
        """Time of the controller since the reset."""
        self._envelope = SlidingEnvelope(self.plan.envelope.windows_ns)
        self._envelope.advance(0)
        self._recent = RecentArrivals()
        self._peak = RecentPeak()
        self._counts_queries = False
        """True if the controller reports the queries of this pipeline. If not, calls of the entry stage are counted."""

    def record_events(self, events: Events) -> None:
        """Count the queries that have arrived, or the calls of the entry stage until the first query is reported."""
        start_ns = self._clock_ns
        self._clock_ns += events.span_ns
        for arrivals in self._arrivals_of(events):
            for age, count in reversed(arrivals):
                at_ns = max(start_ns, self._clock_ns - age * events.bin_ns)
                self._envelope.add(at_ns, count)
                self._recent.add(at_ns, events.bin_ns, count)
        self._envelope.advance(self._clock_ns)

    def _arrivals_of(self, events: Events) -> list[tuple[tuple[int, int], ...]]:
        """Return the bins of this pipeline's queries, or of its entry stage."""
        queries = [pipeline.arrivals for pipeline in events.pipelines if pipeline.pipeline == self.plan.pipeline]
        self._counts_queries |= bool(queries)
        if self._counts_queries:
            return queries
        entry = self.plan.entry_stage.model
        return [model.arrivals for model in events.models if entry in (model.model, model.model.partition("/")[0])]

    @property
    def _calls_per_query(self) -> float:
        return 1.0 if self._counts_queries else self.plan.entry_stage.scale_factor

    def decide(self, now_ns: int, rules: ScalingRules) -> Decision | None:
        """Return the change that the traffic since the last call needs, and adopt it."""
        calls = self._calls_per_query
        self._rates = rates = tuple(rate / calls for rate in self._envelope.pop_rates())
        recent_rate = None
        peak = self._peak.add(now_ns, rates, self.plan.envelope.rates())
        if self._envelope.observed_ns >= DOWN_SPAN_NS and now_ns >= self.state.changed_ns + rules.settle_ns:
            recent_rate = self._envelope.max_rate(DOWN_WINDOW_NS, DOWN_SPAN_NS) / calls
            if self.plan.levels:
                recent_rate = self.plan.rate * peak
        decision = decide(now_ns, self.plan, self.state, rates, recent_rate, rules)
        if decision:
            self.state = ScalingState(decision.after, now_ns)
        return decision

    def recent_arrivals(self) -> ArrivalCounts:
        """Return the arrivals that a new plan can be made from."""
        return self._recent.counts(self._calls_per_query)

    def describe(self, rules: ScalingRules) -> PipelineStatus:
        """Return the state for operators."""
        plan, replicas = self.plan, self.state.replicas
        return PipelineStatus(
            plan.pipeline, self.dry_run, dict(replicas), _planned(plan), plan.envelope.windows_ns, self._rates,
            plan.envelope.rates(), find_demand(plan, replicas, self._rates, rules).rate, self._envelope.observed_ns,
        )  # fmt: skip


def _planned(plan: TuningPlan) -> dict[str, int]:
    return {stage.stage: stage.replicas for stage in plan.stages}
