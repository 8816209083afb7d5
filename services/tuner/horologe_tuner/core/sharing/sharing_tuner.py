"""Carries out a sharing plan for the tuner core: applies it, follows the events, and reports every decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.status import Status
from horologe_common.wanted_shares import WantedShare
from horologe_common.wire import PlannedModel
from horologe_tuner.core.sharing.running_sharing import RunningSharing
from horologe_tuner.core.sharing.shadow_rules import CALM_NS, ShadowRules
from horologe_tuner.core.sharing.targets import check_elsewhere, parse_targets

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from horologe_common.core.instruments import Stats
    from horologe_common.wire import DeviceState, Events
    from horologe_tuner.core.sharing.decisions import Reason, SharingDecision
    from horologe_tuner.core.sharing.running_workload import AppliedWorkload, WorkloadStatus
    from horologe_tuner.core.tuner_status import JournalEvent, Note
    from horologe_tuner.settings import TunerSettings

SWITCHES = "horologe_tuner_switches_total"
SHARING = "sharing"
"""Name by which the sharing plan is withdrawn."""
EVENT_OF: dict[Reason, JournalEvent] = {
    "violation": "switched up", "calm": "switched back", "worker lost": "failed over", "plan": "moved",
}  # fmt: skip


def is_sharing_plan(document: bytes) -> bool:
    """Return whether a plan in JSON is one of shares: an object with `gpus`."""
    try:
        plan = msgspec.json.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return isinstance(plan, dict) and "gpus" in plan


class SharingTuner:
    """The sharing plan in force, if any. `note` writes a journal entry."""

    def __init__(self, settings: TunerSettings, stats: Stats, note: Note, calm_ns: int = CALM_NS) -> None:
        self._settings = settings
        self._stats = stats
        self._note = note
        self._rules = ShadowRules(extra_percent=settings.shadow_percent, calm_ns=calm_ns)
        self._running = RunningSharing(self._rules)
        self._dry_run = False
        self._devices: tuple[DeviceState, ...] = ()
        self._reported: dict[str, str] = {}
        """Workloads whose violation is not repaired, as reported."""
        self._remaining: tuple[WantedShare, ...] | None = None
        """Shares that keep running after a withdrawal."""

    def __bool__(self) -> bool:
        return bool(self._running.workloads)

    def restore(
        self, now_ns: int, applied: Iterable[AppliedWorkload], dry_run: bool, elsewhere: Container[str]
    ) -> list[str]:
        """Continue with the workloads of an earlier incarnation. Return those that are not valid, and why."""
        self._replace_running(dry_run)
        return self._running.restore(now_ns, applied, elsewhere)

    def applied(self) -> tuple[tuple[AppliedWorkload, ...], bool]:
        """Return what the state file keeps: workloads, and whether decisions are only reported."""
        return self._running.applied(), self._dry_run

    def models(self) -> dict[str, str]:
        """Return the workload of each planned model."""
        return {workload.target.model: name for name, workload in self._running.workloads.items()}

    def apply(
        self, now_ns: int, document: bytes, dry_run: bool, elsewhere: Container[str], served: Container[str] | None
    ) -> tuple[Status, str]:
        """Apply a plan in place of the one in force. Return (OK, ""), or why it cannot be applied.

        `elsewhere`: models of pipelines. `served`: names and keys of the served models, None if they are not known.
        """
        try:
            targets = parse_targets(document)
            for target in targets.values():
                check_elsewhere(target, elsewhere)
        except ValueError as error:
            return Status.INVALID_INPUT, str(error)
        for target in targets.values():
            if self._settings.scaler == "none" and served is not None and target.model not in served:
                return Status.UNKNOWN_MODEL, f"workload {target.name!r}: model {target.model!r}: not served"
        if dry_run != self._dry_run or not self:
            self._replace_running(dry_run)
        self._running.apply_targets(now_ns, targets)
        shares = sum(len(target.shares) for target in targets.values())
        devices = {share.device for target in targets.values() for share in target.shares}
        text = f"{len(targets)} workloads, {shares} shares of {len(devices)} devices"
        self._note(now_ns, "applied", SHARING, text, self._only_reports())
        return Status.OK, ""

    def withdraw(self, now_ns: int) -> None:
        """Withdraw the plan. The workers that serve keep running, standby workers are stopped."""
        if not self._only_reports():
            self._remaining = tuple(share for share in self.wanted_shares() or () if not share.standby_for)
        self._replace_running(dry_run=False)
        self._note(now_ns, "withdrawn", SHARING, "the workers that serve keep running", False)

    def reset_traffic(self, now_ns: int) -> None:
        """Discard all latencies, because some were not observed."""
        self._running.reset_traffic(now_ns)

    def forget_devices(self) -> None:
        """Discard the workers: the controller has disconnected."""
        self._devices = ()
        self._running.forget_devices()

    def on_events(self, now_ns: int, events: Events) -> bool:
        """Record events and make the switches that they demand. Return whether one must be carried out."""
        if events.devices is not None:
            self._devices = events.devices
            self._running.record_devices(events.devices)
        if not self:
            return False
        self._running.record_events(now_ns, events)
        decisions = list(self._running.decide(now_ns))
        for decision in decisions:
            self._report(now_ns, decision)
        unrepaired = self._running.unrepaired()
        for workload, reason in unrepaired.items():
            if self._reported.get(workload) != reason:
                self._note(now_ns, "not repaired", workload, reason, self._only_reports())
        self._reported = unrepaired
        return bool(decisions) and not self._only_reports()

    def planned_models(self) -> Iterator[PlannedModel]:
        """Yield an entry of the controller's plan for each share that serves, with its standby workers."""
        shadows = self._running.shadows()
        for workload in self._running.workloads.values() if not self._only_reports() else ():
            target = workload.target
            moving_to = target.shares if workload.is_moving else ()
            for steps in workload.serving:
                active = steps.active
                standby = [share for share in (shadows.get(active), steps.below, *moving_to) if share is not None]
                yield PlannedModel(
                    target.model, 1, target.max_batch, active.hardware, (active.worker,),
                    target.exec_ns.get(active.device, {}) if active in target.shares else {},
                    tuple(share.worker for share in standby if share != active), target.slo_ns,
                )  # fmt: skip
                moving_to = ()

    def wanted_shares(self) -> tuple[WantedShare, ...] | None:
        """Return the shares that must have a worker. None: leave all as they are."""
        if not self or self._only_reports():
            return self._remaining
        models = {name: (workload.target.model,) for name, workload in self._running.workloads.items()}
        return tuple(
            WantedShare(
                share.worker, share.device, share.hardware, share.percent,
                models=models[share.workload], standby_for=standby_for,
            )
            for share, standby_for in self._running.wanted().items()
        )  # fmt: skip

    def describe(self, now_ns: int) -> tuple[WorkloadStatus, ...]:
        """Return the state for operators."""
        return self._running.describe(now_ns)

    def refresh_stats(self, now_ns: int) -> None:
        """Update the gauges."""
        for gauge in ("horologe_tuner_share_percent", "horologe_tuner_beyond_slo"):
            self._stats.remove_values(gauge)
        for status in self.describe(now_ns):
            self._stats.create_counters(SWITCHES, (status.workload,), EVENT_OF, ("applied",))
            for share in status.shares:
                self._stats.set("horologe_tuner_share_percent", status.workload, share.device, to=share.percent)
            beyond = status.beyond / max(1, status.requests)
            self._stats.set("horologe_tuner_beyond_slo", status.workload, to=beyond)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken."""
        self._running.check()

    def _replace_running(self, dry_run: bool) -> None:
        self._dry_run = dry_run
        self._running = RunningSharing(self._rules, assume_ready=self._only_reports())
        self._running.record_devices(self._devices)

    def _only_reports(self) -> bool:
        return self._dry_run or self._settings.dry_run

    def _report(self, now_ns: int, decision: SharingDecision) -> None:
        dry_run = self._only_reports()
        mode = "dry_run" if dry_run else "applied"
        self._stats.count(SWITCHES, decision.workload, decision.reason, mode)
        self._note(now_ns, EVENT_OF[decision.reason], decision.workload, decision.describe(), dry_run)
