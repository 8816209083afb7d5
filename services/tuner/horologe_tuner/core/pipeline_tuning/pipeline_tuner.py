"""Carries out plans of pipelines for the tuner core: applies them, follows the traffic, and reports every decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.status import Status
from horologe_planning.tuning_plan import NAME_LIMIT, parse_plan
from horologe_tuner.core.pipeline_tuning.running_plan import AppliedPlan, RunningPlan
from horologe_tuner.core.pipeline_tuning.scaling_rules import ScalingRules
from horologe_tuner.core.resources import check_plan, planned_models, workers_needed

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from horologe_common.core.instruments import Stats
    from horologe_common.wire import Events, PlannedModel
    from horologe_planning.tuning_plan import TuningPlan
    from horologe_tuner.core.pipeline_tuning.recent_arrivals import ArrivalCounts
    from horologe_tuner.core.pipeline_tuning.running_plan import PipelineStatus
    from horologe_tuner.core.pipeline_tuning.scaling_rules import Decision
    from horologe_tuner.core.tuner_status import JournalEvent, Note
    from horologe_tuner.settings import TunerSettings

DECISIONS = "horologe_tuner_decisions_total"


class PipelineTuner:
    """The applied plans by pipeline. `note` writes a journal entry."""

    def __init__(self, settings: TunerSettings, stats: Stats, note: Note) -> None:
        self.plans: dict[str, RunningPlan] = {}
        self._settings = settings
        self._stats = stats
        self._note = note
        self._rules = ScalingRules(settings.demand, settings.settle_ns, settings.headroom)

    def __bool__(self) -> bool:
        return bool(self.plans)

    def restore(self, now_ns: int, applied: Iterable[AppliedPlan]) -> list[str]:
        """Continue with the plans and replicas of an earlier incarnation. Return those that are not valid, and why."""
        dropped: list[str] = []
        for saved in applied:
            reason = f"pipeline: got {saved.plan.pipeline!r} twice" if saved.plan.pipeline in self.plans else ""
            if reason := reason or self._check(saved, None, (), {})[1]:
                dropped.append(f"plan of pipeline {saved.plan.pipeline[:NAME_LIMIT]!r}: {reason}")
            else:
                self.plans[saved.plan.pipeline] = RunningPlan(now_ns, saved)
        return dropped

    def applied(self) -> tuple[AppliedPlan, ...]:
        """Return what the state file keeps."""
        return tuple(running.applied() for running in self.plans.values())

    def models(self) -> set[str]:
        """Return the models of all stages."""
        return {stage.model for running in self.plans.values() for stage in running.plan.stages}

    def apply(
        self, now_ns: int, document: bytes, dry_run: bool, served: Container[str] | None, hardware: Iterable[str],
        shared: Mapping[str, str],
    ) -> tuple[Status, str]:  # fmt: skip
        """Apply a plan. Return (OK, ""), or why it cannot be applied. For the last three see `check_plan`."""
        try:
            plan = parse_plan(document)
        except ValueError as error:
            return Status.INVALID_INPUT, str(error)
        replicas = {stage.stage: stage.replicas for stage in plan.stages}
        applied = AppliedPlan(plan, replicas, dry_run)
        status, reason = self._check(applied, served, hardware, shared)
        if status != Status.OK:
            return status, reason
        running = self.plans[plan.pipeline] = RunningPlan(now_ns, applied)
        counts = ", ".join(f"{stage} {count}" for stage, count in replicas.items())
        self._note(now_ns, "applied", plan.pipeline, f"replicas: {counts}", self._only_reports(running))
        return Status.OK, ""

    def _check(
        self, applied: AppliedPlan, served: Container[str] | None, hardware: Iterable[str], shared: Mapping[str, str]
    ) -> tuple[Status, str]:
        """Return (OK, ""), or why an arrived or stored plan cannot be carried out beside the others."""
        try:
            applied.validate()
        except ValueError as error:
            return Status.INVALID_INPUT, str(error)
        others = [running.plan for name, running in self.plans.items() if name != applied.plan.pipeline]
        return check_plan(applied.plan, others, served, hardware, shared)

    def withdraw(self, now_ns: int, pipeline: str) -> None:
        """Withdraw an applied plan."""
        del self.plans[pipeline]
        self._note(now_ns, "withdrawn", pipeline, "its workers keep running, for any model", False)

    def recent_arrivals(self, pipeline: str) -> ArrivalCounts:
        """Return the recent arrivals of an applied plan."""
        return self.plans[pipeline].recent_arrivals()

    def reset_traffic(self) -> None:
        """Discard the arrivals, because some were not observed."""
        for running in self.plans.values():
            running.reset_traffic()

    def on_events(self, now_ns: int, events: Events) -> bool:
        """Record arrivals and adopt what they demand. Return whether a decision must be carried out."""
        changed = False
        for running in self.plans.values():
            running.record_events(events)
            if decision := running.decide(now_ns, self._rules):
                self._report_decision(now_ns, running, decision)
                changed |= not self._only_reports(running)
        return changed

    def _report_decision(self, now_ns: int, running: RunningPlan, decision: Decision) -> None:
        dry_run, pipeline = self._only_reports(running), running.plan.pipeline
        mode = "dry_run" if dry_run else "applied"
        self._stats.count(DECISIONS, pipeline, decision.direction, mode)
        event: JournalEvent = "scaled up" if decision.direction == "up" else "scaled down"
        self._note(now_ns, event, pipeline, decision.describe(), dry_run)

    def _only_reports(self, running: RunningPlan) -> bool:
        return running.dry_run or self._settings.dry_run

    def _effective(self) -> list[tuple[TuningPlan, dict[str, int]]]:
        """Return the plans that are carried out, with their replicas."""
        plans = self.plans.values()
        return [(running.plan, running.state.replicas) for running in plans if not self._only_reports(running)]

    def planned_models(self) -> tuple[PlannedModel, ...]:
        """Return the resources of each model, for the controller."""
        return planned_models(self._effective())

    def workers_wanted(self) -> dict[str, int]:
        """Return the number of workers of each hardware type, for the scaler."""
        return workers_needed(self._effective(), self._settings.max_workers)

    def describe(self) -> tuple[PipelineStatus, ...]:
        """Return the state for operators."""
        return tuple(running.describe(self._rules) for running in self.plans.values())

    def refresh_stats(self) -> None:
        """Update the gauges."""
        for gauge in ("horologe_tuner_replicas", "horologe_tuner_rate"):
            self._stats.remove_values(gauge)
        for status in self.describe():
            self._stats.create_counters(DECISIONS, (status.pipeline,), ("up", "down"), ("applied",))
            for stage, count in status.replicas.items():
                self._stats.set("horologe_tuner_replicas", status.pipeline, stage, to=count)
            for window_ns, rate in zip(status.windows_ns, status.rates, strict=True):
                self._stats.set("horologe_tuner_rate", status.pipeline, f"{window_ns / 1e9:g}", to=rate)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken: every stage of a plan has replicas."""
        for name, running in self.plans.items():
            assert name == running.plan.pipeline
            assert set(running.state.replicas) == {stage.stage for stage in running.plan.stages}
            assert all(count >= 1 for count in running.state.replicas.values())
