"""Carries out plans for the tuner core: applies them, follows events, scales replicas, switches shares, and reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.status import Status
from horologe_common.wanted_shares import WantedShare
from horologe_common.wire import PlannedModel
from horologe_planning.plan import NAME_LIMIT, parse_plans
from horologe_tuner.core.plans.plan_checks import ClusterModels, check_plan, check_share
from horologe_tuner.core.plans.running_plan import (
    AppliedPlan,
    RunningPlan,
    planned_models,
    planned_replicas,
    workers_needed,
)
from horologe_tuner.core.scaling.scaling_rules import ScalingRules
from horologe_tuner.core.standby.running_shares import RunningShares
from horologe_tuner.core.standby.running_stage import initial_steps
from horologe_tuner.core.standby.shadow_rules import ShadowRules
from horologe_tuner.core.standby.share_workers import worker_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from horologe_common.core.instruments import Stats
    from horologe_common.wire import Events
    from horologe_planning.plan import Plan
    from horologe_tuner.core.journal import JournalEvent, Note
    from horologe_tuner.core.plans.running_plan import PlanStatus
    from horologe_tuner.core.scaling.recent_arrivals import ArrivalCounts
    from horologe_tuner.core.scaling.scaling_rules import Decision
    from horologe_tuner.core.standby.running_shares import WantedWorker
    from horologe_tuner.core.standby.running_stage import Reason, SharingDecision
    from horologe_tuner.settings import TunerSettings

DECISIONS = "horologe_tuner_decisions_total"
SWITCHES = "horologe_tuner_switches_total"
EVENT_OF: dict[Reason, JournalEvent] = {
    "violation": "switched up",
    "calm": "switched back",
    "worker lost": "failed over",
    "plan": "moved",
}


class PlanTuner:
    """The applied plans by name. `note` writes a journal entry. `calm_ns`: of the `ShadowRules`."""

    def __init__(self, settings: TunerSettings, stats: Stats, note: Note, calm_ns: int) -> None:
        self.plans: dict[str, RunningPlan] = {}
        self.shares = RunningShares(ShadowRules(extra_percent=settings.shadow_percent, calm_ns=calm_ns))
        self._settings = settings
        self._stats = stats
        self._note = note
        self._rules = ScalingRules(settings.demand, settings.settle_ns, settings.headroom)
        self._reported: dict[str, str] = {}
        """Stages whose violation is not repaired, as reported."""
        self._remaining: dict[str, WantedShare] = {}
        """Shares of withdrawn plans, by worker. They keep running until a plan has their devices."""

    def __bool__(self) -> bool:
        return bool(self.plans)

    def restore(self, now_ns: int, applied: Iterable[AppliedPlan]) -> list[str]:
        """Continue with the plans of an earlier incarnation. Return those that are not valid, and why."""
        dropped: list[str] = []
        for saved in applied:
            name = saved.plan.name
            try:
                saved.validate()
                for share in (size for steps in saved.serving for size in steps.sizes):
                    check_share(share)
                reason = f"name: got {name!r} twice" if name in self.plans else ""
                reason = reason or check_plan(saved.plan, self._plans(), ClusterModels())[1]
            except ValueError as error:
                reason = str(error)
            if reason:
                dropped.append(f"plan {name[:NAME_LIMIT]!r}: {reason}")
                continue
            running = self.plans[name] = RunningPlan(now_ns, saved)
            serving = saved.serving or initial_steps(saved.plan.shares)
            for target in running.targets(self._only_reports(running)):
                own = tuple(steps for steps in serving if steps.planned.stage == target.stage)
                self.shares.restore(now_ns, target, own)
        return dropped

    def applied(self) -> tuple[AppliedPlan, ...]:
        """Return what the state file keeps."""
        return tuple(
            AppliedPlan(
                running.plan,
                dict(running.state.replicas),
                tuple(steps for target in running.targets(False) for steps in self.shares.stages[target.stage].serving),
                running.dry_run,
            )
            for running in self.plans.values()
        )

    def models(self) -> set[str]:
        """Return the models of all plans."""
        return {placement.model for running in self.plans.values() for placement in running.plan.placements}

    def apply(self, now_ns: int, document: bytes, dry_run: bool, cluster: ClusterModels) -> tuple[Status, str]:
        """Apply the plans of a document, each in place of the one of its name. Return (OK, ""), or why none is."""
        try:
            plans = parse_plans(document)
        except ValueError as error:
            return Status.INVALID_INPUT, str(error)
        others = self._plans(without={plan.name for plan in plans})
        for plan in plans:
            status, reason = check_plan(plan, others, cluster)
            if status != Status.OK:
                return status, reason
            others.append(plan)
        for plan in plans:
            self._adopt(now_ns, plan, dry_run)
        self._apply_targets(now_ns)
        return Status.OK, ""

    def _plans(self, without: Iterable[str] = ()) -> list[Plan]:
        return [running.plan for name, running in self.plans.items() if name not in without]

    def _adopt(self, now_ns: int, plan: Plan, dry_run: bool) -> None:
        running = RunningPlan(now_ns, AppliedPlan(plan, planned_replicas(plan), (), dry_run))
        self.plans[plan.name] = running
        counts = [f"{stage} {count}" for stage, count in running.state.replicas.items()]
        counts += [f"{share.stage} {share.percent:g}% of {share.device}" for share in plan.shares]
        only_reports, devices = self._only_reports(running), {share.device for share in plan.shares}
        if not only_reports:
            taken = [worker for worker, share in self._remaining.items() if share.device_id in devices]
            for worker in taken:
                del self._remaining[worker]
        self._note(now_ns, "applied", plan.name, f"replicas: {', '.join(counts)}", only_reports)

    def _apply_targets(self, now_ns: int) -> None:
        plans = self.plans.values()
        self.shares.apply_targets(
            now_ns, [target for running in plans for target in running.targets(self._only_reports(running))]
        )

    def withdraw(self, now_ns: int, name: str) -> None:
        """Withdraw an applied plan. The workers that serve keep running, standby workers are stopped."""
        stages = self.plans[name].plan.stages
        for worker, wanted in self.shares.wanted().items():
            if wanted.share.stage in stages and not wanted.standby_for:
                self._remaining[worker] = _wanted_share(worker, wanted)
        del self.plans[name]
        self._apply_targets(now_ns)
        self._note(now_ns, "withdrawn", name, "its workers keep running", False)

    def recent_arrivals(self, name: str) -> ArrivalCounts:
        """Return the recent arrivals of an applied plan."""
        return self.plans[name].recent_arrivals()

    def reset_traffic(self, now_ns: int) -> None:
        """Discard arrivals and latencies, because some were not observed."""
        self.shares.reset_traffic(now_ns)
        for running in self.plans.values():
            running.reset_traffic()

    def on_events(self, now_ns: int, events: Events) -> bool:
        """Record events and adopt what they demand. Return whether a decision must be carried out."""
        if events.devices is not None:
            self.shares.record_devices(events.devices)
        changed = self._scale_replicas(now_ns, events)
        return self._switch_shares(now_ns, events) or changed

    def _scale_replicas(self, now_ns: int, events: Events) -> bool:
        changed = False
        for name, running in self.plans.items():
            running.record_events(events)
            if decision := running.decide(now_ns, self._rules):
                self._report_scaling(now_ns, name, decision, self._only_reports(running))
                changed |= not self._only_reports(running)
        return changed

    def _switch_shares(self, now_ns: int, events: Events) -> bool:
        self.shares.record_events(now_ns, events)
        changed = False
        for decision in self.shares.decide(now_ns):
            only_reports = self.shares.stages[decision.stage].target.only_reports
            self._report_switch(now_ns, decision, only_reports)
            changed |= not only_reports
        unrepaired = self.shares.unrepaired()
        for stage, reason in unrepaired.items():
            if self._reported.get(stage) != reason:
                self._note(now_ns, "not repaired", stage, reason, self.shares.stages[stage].target.only_reports)
        self._reported = unrepaired
        return changed

    def _report_scaling(self, now_ns: int, name: str, decision: Decision, only_reports: bool) -> None:
        self._stats.count(DECISIONS, name, decision.direction, "dry_run" if only_reports else "applied")
        event: JournalEvent = "scaled up" if decision.direction == "up" else "scaled down"
        self._note(now_ns, event, name, decision.describe(), only_reports)

    def _report_switch(self, now_ns: int, decision: SharingDecision, only_reports: bool) -> None:
        self._stats.count(SWITCHES, decision.stage, decision.reason, "dry_run" if only_reports else "applied")
        self._note(now_ns, EVENT_OF[decision.reason], decision.stage, decision.describe(), only_reports)

    def _only_reports(self, running: RunningPlan) -> bool:
        return running.dry_run or self._settings.dry_run

    def _effective(self) -> list[tuple[Plan, Mapping[str, int]]]:
        """Return the plans that are carried out, with their replicas."""
        plans = self.plans.values()
        return [(running.plan, running.state.replicas) for running in plans if not self._only_reports(running)]

    def planned_models(self) -> tuple[PlannedModel, ...]:
        """Return the resources of each model, for the controller."""
        return (*planned_models(self._effective()), *self._models_on_shares())

    def _models_on_shares(self) -> Iterator[PlannedModel]:
        """Yield an entry for each share that serves, with its standby workers."""
        shadows = self.shares.shadows()
        for stage in self.shares.stages.values():
            target = stage.target
            moving_to = target.shares if stage.is_moving else ()
            for steps in stage.serving if not target.only_reports else ():
                active = steps.active
                standby = [shadows.get(worker_name(active)), steps.below, *moving_to]
                workers = dict.fromkeys(worker_name(share) for share in standby if share is not None)
                yield PlannedModel(
                    target.model,
                    1,
                    max(share.max_batch for share in target.shares),
                    active.hardware,
                    (worker_name(active),),
                    dict(active.exec_ns),
                    tuple(worker for worker in workers if worker != worker_name(active)),
                    target.slo_ns,
                )
                moving_to = ()

    def workers_wanted(self) -> dict[str, int]:
        """Return the number of workers of each hardware type, for the scaler."""
        return workers_needed(self._effective(), self._settings.max_workers)

    def wanted_shares(self) -> tuple[WantedShare, ...] | None:
        """Return the shares that must have a worker. None: leave all as they are."""
        shares = {worker: _wanted_share(worker, wanted) for worker, wanted in self.shares.wanted().items()}
        return tuple((self._remaining | shares).values()) or None

    def describe(self, now_ns: int) -> tuple[PlanStatus, ...]:
        """Return the state for operators."""
        stages = {status.stage: status for status in self.shares.describe(now_ns)}
        return tuple(
            running.describe(
                self._rules, tuple(stages[target.stage] for target in running.targets(self._only_reports(running)))
            )
            for running in self.plans.values()
        )

    def refresh_stats(self, now_ns: int) -> None:
        """Update the gauges."""
        gauges = ("replicas", "rate", "share_percent", "beyond_slo")
        for gauge in gauges:
            self._stats.remove_values(f"horologe_tuner_{gauge}")
        for plan in self.describe(now_ns):
            self._stats.create_counters(DECISIONS, (plan.name,), ("up", "down"), ("applied",))
            for stage, count in plan.replicas.items():
                self._stats.set("horologe_tuner_replicas", plan.name, stage, to=count)
            for window_ns, rate in zip(plan.windows_ns, plan.rates, strict=True):
                self._stats.set("horologe_tuner_rate", plan.name, f"{window_ns / 1e9:g}", to=rate)
            for status in plan.stages:
                self._stats.create_counters(SWITCHES, (status.stage,), EVENT_OF, ("applied",))
                for share in status.shares:
                    self._stats.set("horologe_tuner_share_percent", status.stage, share.device, to=share.percent)
                beyond = status.beyond / max(1, status.requests)
                self._stats.set("horologe_tuner_beyond_slo", status.stage, to=beyond)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken: every stage of a plan has replicas or shares."""
        self.shares.check()
        for name, running in self.plans.items():
            assert name == running.plan.name
            assert set(running.state.replicas) == set(planned_replicas(running.plan))
            assert all(count >= 1 for count in running.state.replicas.values())
            assert {placement.stage for placement in running.plan.shares} <= set(self.shares.stages)


def _wanted_share(worker: str, wanted: WantedWorker) -> WantedShare:
    share = wanted.share
    return WantedShare(
        worker, share.device, share.hardware, share.percent, models=(share.model,), standby_for=wanted.standby_for
    )
