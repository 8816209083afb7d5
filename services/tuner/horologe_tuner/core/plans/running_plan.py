"""An applied plan: the replicas that run of it, the traffic since it was applied, and the decisions to scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.wire import PlannedModel
from horologe_planning.envelope import SlidingEnvelope
from horologe_planning.plan import MAX_REPLICAS, Plan
from horologe_tuner.core.scaling.recent_arrivals import ArrivalCounts, RecentArrivals
from horologe_tuner.core.scaling.scaling_rules import (
    DOWN_SPAN_NS,
    DOWN_WINDOW_NS,
    Decision,
    RecentPeak,
    ScalingRules,
    ScalingState,
    decide,
    find_demand,
)
from horologe_tuner.core.standby.running_stage import ShareSteps, StageStatus, StageTarget, check_steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_common.wire import Events
    from horologe_planning.plan import Placement

    Running = Iterable[tuple[Plan, Mapping[str, int]]]
    """Plans with the replicas of their stages that follow the traffic."""


class AppliedPlan(msgspec.Struct, frozen=True):
    """A plan as the state file keeps it."""

    plan: Plan
    replicas: dict[str, int]
    """What runs of the placements without a device, by stage."""
    serving: tuple[ShareSteps, ...] = ()
    """The shares that serve. Empty: as planned."""
    dry_run: bool = False

    def validate(self) -> None:
        """Raise ValueError that names the first invalid field of the plan, or the stage that nothing serves."""
        self.plan.validate()
        stages = [placement.stage for placement in self.plan.counted]
        counts = self.replicas.values()
        if sorted(self.replicas) != sorted(stages) or not all(1 <= count <= MAX_REPLICAS for count in counts):
            wanted = f"1 to {MAX_REPLICAS} of each of {', '.join(stages)}"
            raise ValueError(f"replicas: got {self.replicas}, wanted {wanted}")
        if self.serving:
            check_steps(self.serving, tuple(dict.fromkeys(placement.stage for placement in self.plan.shares)))


class PlanStatus(msgspec.Struct, frozen=True):
    """State of a plan for operators. Rates are in queries per second, by window of the envelope."""

    name: str
    dry_run: bool
    replicas: dict[str, int]
    """Of the stages whose replicas follow the traffic."""
    planned_replicas: dict[str, int]
    windows_ns: tuple[int, ...]
    rates: tuple[float, ...]
    planned_rates: tuple[float, ...]
    demand: float
    """Rate to provision for. 0: the present traffic is within the envelope of the running replicas."""
    observed_ns: int
    """Time for which arrivals have been observed without a gap."""
    stages: tuple[StageStatus, ...]
    """Of the stages on shares."""


class RunningPlan:
    """A plan, its replicas, and the envelope of its traffic. `now_ns` of the applying turn starts the settling time."""

    def __init__(self, now_ns: int, applied: AppliedPlan) -> None:
        self.plan = applied.plan
        self.dry_run = applied.dry_run
        self.state = ScalingState(dict(applied.replicas), now_ns)
        self._windows_ns = self.plan.envelope.windows_ns if self.plan.envelope else ()
        self._planned_rates = self.plan.envelope.rates() if self.plan.envelope else ()
        self._rates = (0.0,) * len(self._windows_ns)
        self.reset_traffic()

    def targets(self, only_reports: bool) -> list[StageTarget]:
        """Return what each stage on shares is served by, as planned."""
        shares: dict[str, list[Placement]] = {}
        for placement in self.plan.shares:
            shares.setdefault(placement.stage, []).append(placement)
        return [
            StageTarget(tuple(placed), self.plan.rate * sum(share.scale_factor for share in placed), only_reports)
            for placed in shares.values()
        ]

    def reset_traffic(self) -> None:
        """Discard the arrivals, because some were not observed. Nothing is removed before 30 s have been observed."""
        self._clock_ns = 0
        """Time of the controller since the reset."""
        self._envelope = SlidingEnvelope(self._windows_ns) if self._windows_ns else None
        self._recent = RecentArrivals()
        self._peak = RecentPeak()
        self._counts_queries = False
        """True if the controller reports the queries of this pipeline. If not, calls of the entry stage are counted."""
        if self._envelope:
            self._envelope.advance(0)

    def record_events(self, events: Events) -> None:
        """Count the queries that have arrived, or the calls of the entry stage until the first query is reported."""
        start_ns = self._clock_ns
        self._clock_ns += events.span_ns
        for arrivals in self._arrivals_of(events):
            for age, count in reversed(arrivals):
                at_ns = max(start_ns, self._clock_ns - age * events.bin_ns)
                self._recent.add(at_ns, events.bin_ns, count)
                if self._envelope:
                    self._envelope.add(at_ns, count)
        if self._envelope:
            self._envelope.advance(self._clock_ns)

    def _arrivals_of(self, events: Events) -> list[tuple[tuple[int, int], ...]]:
        """Return the bins of this pipeline's queries, or of its entry stage."""
        queries = [pipeline.arrivals for pipeline in events.pipelines if pipeline.pipeline == self.plan.name]
        self._counts_queries |= bool(queries)
        if self._counts_queries:
            return queries
        entry = self.plan.entry_placement.model
        return [model.arrivals for model in events.models if entry in (model.model, model.model.partition("/")[0])]

    @property
    def _calls_per_query(self) -> float:
        entry = self.plan.entry_placement.stage
        placed = [placement.scale_factor for placement in self.plan.placements if placement.stage == entry]
        return 1.0 if self._counts_queries else sum(placed)

    def decide(self, now_ns: int, rules: ScalingRules) -> Decision | None:
        """Return the change that the traffic since the last call needs, and adopt it."""
        if self._envelope is None or not self.state.replicas:
            return None
        calls = self._calls_per_query
        self._rates = rates = tuple(rate / calls for rate in self._envelope.pop_rates())
        recent_rate = None
        peak = self._peak.add(now_ns, rates, self._planned_rates, rules.settle_ns)
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

    def describe(self, rules: ScalingRules, stages: tuple[StageStatus, ...]) -> PlanStatus:
        """Return the state for operators. `stages`: those on shares."""
        plan, replicas = self.plan, self.state.replicas
        demand = find_demand(plan, replicas, self._rates, rules).rate if replicas else 0.0
        return PlanStatus(
            plan.name,
            self.dry_run,
            dict(replicas),
            planned_replicas(plan),
            self._windows_ns,
            self._rates,
            self._planned_rates,
            demand,
            self._envelope.observed_ns if self._envelope else self._clock_ns,
            stages,
        )


def planned_replicas(plan: Plan) -> dict[str, int]:
    """Return the replicas of the placements without a device, by stage."""
    return {placement.stage: placement.replicas for placement in plan.counted}


def planned_models(running: Running) -> tuple[PlannedModel, ...]:
    """Return the resources of each model by hardware type: its stages' replicas, the smallest of their batches.

    The replicas of stages and of plans add up. In a pooled plan, stages that call one model share its devices.
    """
    models: dict[tuple[str, str], PlannedModel] = {}
    for plan, replicas in running:
        counted: dict[tuple[str, str], bool] = {}
        for placed in plan.counted:
            key, shares, batch = (placed.model, placed.hardware), replicas[placed.stage], placed.max_batch
            if (before := models.get(key)) is not None:
                shares = before.shares + (0 if plan.pooled and key in counted else shares)
                batch = min(batch, before.max_batch)
            models[key], counted[key] = PlannedModel(placed.model, shares, batch, placed.hardware), True
    return tuple(models.values())


def workers_needed(running: Running, limit: int) -> dict[str, int]:
    """Return the number of workers of each hardware type, at most `limit`.

    A replica has a worker of its own. In a pooled plan, stages share the workers of their hardware type.
    """
    workers: dict[str, int] = {}
    for plan, replicas in running:
        needed: dict[str, int] = {}
        for placed in plan.counted:
            count, others = replicas[placed.stage], needed.get(placed.hardware, 0)
            needed[placed.hardware] = max(others, count) if plan.pooled else others + count
        for hardware, count in needed.items():
            workers[hardware] = min(limit, workers.get(hardware, 0) + count)
    return workers
