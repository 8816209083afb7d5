"""Tuner core: scales the stages of applied plans as their traffic changes (InferLine section 5).

Events (from the controller) -> envelope of each plan -> decision -> ScaleTo (to the scaler) and Plan (to the
controller). Tune (from an operator, by the frontend) applies and withdraws plans, and asks for the status.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.core.instruments import Stats
from horologe_common.core.message_order import AnnouncementOrder
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected, role
from horologe_common.status import Status
from horologe_common.wire import DeviceState, Events, Models, Plan, Tune, Tuning
from horologe_tuner.core.pipeline_tuning.running_plan import AppliedPlan, RunningPlan
from horologe_tuner.core.pipeline_tuning.scaling_rules import ScalingRules
from horologe_tuner.core.pipeline_tuning.tuning_plan import parse_plan
from horologe_tuner.core.pipeline_tuning.worker_scaling import Scaled, WorkerScaling
from horologe_tuner.core.resources import check_plan, planned_models, workers_needed
from horologe_tuner.core.tuner_status import Journal, JournalEntry, JournalEvent, TunerStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_tuner.core.pipeline_tuning.scaling_rules import Decision
    from horologe_tuner.core.pipeline_tuning.tuning_plan import TuningPlan
    from horologe_tuner.settings import TunerSettings

    Handler = Callable[[int, str, Any, Sequence[Buffer]], None]


class TunerState(msgspec.Struct, frozen=True):
    """What the state file keeps. `number`: of the last Plan message."""

    number: int
    applied: tuple[AppliedPlan, ...]


class Tuner:
    """Core of the tuner.

    Emits ScaleTo for the address `scaler`, TunerState for `store`, and JournalEntry for `journal`.
    """

    def __init__(self, address: str, settings: TunerSettings) -> None:
        self.address = address
        self.scaler, self.store, self.journal = (
            f"{part}/{address.partition('/')[2]}" for part in ("scaler", "store", "journal")
        )
        self.settings = settings
        self.out: list[Out] = []
        self.stats = Stats()
        self.plans: dict[str, RunningPlan] = {}
        """By pipeline."""
        self._rules = ScalingRules(settings.demand, settings.settle_ns, settings.headroom)
        self._number = 0
        self._controller = ""
        self._last_event = 0
        """Number of the last Events; 0: none has come from this controller."""
        self._seen_ns = 0
        """When the last Events came, or the controller connected."""
        self._blind = ""
        self._devices: tuple[DeviceState, ...] = ()
        self._announcements = AnnouncementOrder()
        self._served: dict[str, bool] | None = None
        """Names and keys of the models that are served; None: not known."""
        self._scaling = WorkerScaling(settings.reconcile_ns)
        self._journal = Journal()
        self._handlers: dict[type, Handler] = {
            Events: self._on_events,
            Tune: self._on_tune,
            Scaled: self._on_scaled,
            Models: self._on_models,
            PeerConnected: self._on_peer_connected,
            PeerDisconnected: self._on_peer_disconnected,
        }

    def restore(self, now_ns: int, state: TunerState) -> None:
        """Continue with the plans and replicas of an earlier incarnation."""
        self._number = state.number
        self.plans = {applied.plan.pipeline: RunningPlan(now_ns, applied) for applied in state.applied}
        self._seen_ns = now_ns

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Handle one message of the controller, a frontend, the scaler or the event loop."""
        if handler := self._handlers.get(type(message)):
            handler(now_ns, sender, message, buffers)

    def tick(self, now_ns: int) -> None:
        """Notice missing events, and try a scaling again that has not succeeded."""
        if self.plans and not self._blind and now_ns >= self._seen_ns + self.settings.blind_ns:
            self._become_blind(now_ns, "the controller sends no events" if self._controller else "no controller")
        if self._scaling.retry_ns is not None and now_ns >= self._scaling.retry_ns:
            self._scaling.retry_ns = None
            self._scale()
        self.out.extend(Out(self.journal, entry) for entry in self._journal.unwritten)
        self._journal.unwritten.clear()

    def wakeup_ns(self) -> int | None:
        blind_ns = self._seen_ns + self.settings.blind_ns if self.plans and not self._blind else None
        return min((at_ns for at_ns in (blind_ns, self._scaling.retry_ns) if at_ns is not None), default=None)

    def refresh_stats(self) -> None:
        """Update the gauges that are derived from other state."""
        stats = self.stats
        for gauge in ("horologe_tuner_replicas", "horologe_tuner_rate", "horologe_tuner_workers"):
            stats.remove_values(gauge)
        stats.set("horologe_tuner_blind", to=bool(self._blind))
        for plan in self.plans.values():
            status = plan.describe(self._rules)
            for stage, count in status.replicas.items():
                stats.set("horologe_tuner_replicas", status.pipeline, stage, to=count)
            for window_ns, rate in zip(status.windows_ns, status.rates, strict=True):
                stats.set("horologe_tuner_rate", status.pipeline, f"{window_ns / 1e9:g}", to=rate)
        for hardware, count in self._workers_wanted().items():
            stats.set("horologe_tuner_workers", hardware, "wanted", to=count)
        for hardware, count in self._scaling.last.workers.items():
            stats.set("horologe_tuner_workers", hardware, "running", to=count)

    def check(self) -> None:
        """Raise AssertionError if an invariant is broken: every stage of a plan has replicas."""
        for name, running in self.plans.items():
            assert name == running.plan.pipeline
            assert set(running.state.replicas) == {stage.stage for stage in running.plan.stages}
            assert all(count >= 1 for count in running.state.replicas.values())

    def _on_events(self, now_ns: int, sender: str, events: Events, buffers: Sequence[Buffer]) -> None:
        """Record arrivals, and change what they need changed. A missing message makes the counts useless."""
        if sender != self._controller or events.number <= self._last_event:
            return
        if self._last_event and events.number > self._last_event + 1:
            for running in self.plans.values():
                running.reset_traffic()
        resumed = bool(self._blind) or not self._last_event
        self._last_event, self._seen_ns = events.number, now_ns
        if self._blind:
            self._note(now_ns, "sighted", "", "events of the controller arrive again")
            self._blind = ""
        if events.devices is not None:
            self._devices = events.devices
        changed = False
        for running in self.plans.values():
            running.record_events(events)
            if decision := running.decide(now_ns, self._rules):
                self._report_decision(now_ns, running, decision)
                changed |= not self._only_reports(running)
        if changed:
            self._carry_out()
        elif resumed:
            self._scale()  # workers may have been lost, or a plan been applied meanwhile

    def _report_decision(self, now_ns: int, running: RunningPlan, decision: Decision) -> None:
        dry_run, pipeline = self._only_reports(running), running.plan.pipeline
        mode = "dry_run" if dry_run else "applied"
        self.stats.count("horologe_tuner_decisions_total", pipeline, decision.direction, mode)
        event: JournalEvent = "scaled up" if decision.direction == "up" else "scaled down"
        self._note(now_ns, event, pipeline, decision.describe(), dry_run)

    def _only_reports(self, running: RunningPlan) -> bool:
        return running.dry_run or self.settings.dry_run

    def _effective(self) -> list[tuple[TuningPlan, dict[str, int]]]:
        """Return the plans that are carried out, with their replicas."""
        plans = self.plans.values()
        return [(running.plan, running.state.replicas) for running in plans if not self._only_reports(running)]

    def _workers_wanted(self) -> dict[str, int]:
        return workers_needed(self._effective(), self.settings.max_workers)

    def _carry_out(self) -> None:
        """Store the state first, so that a killed tuner continues with it. Then tell controller and scaler."""
        self._number += 1
        self._save()
        self._send_plan()
        self._scale()

    def _save(self) -> None:
        state = TunerState(self._number, tuple(running.applied() for running in self.plans.values()))
        self.out.append(Out(self.store, state))

    def _send_plan(self) -> None:
        """Send the resources of the models. Without any, only if the controller may have an earlier plan."""
        if self._controller and self._number:
            self.out.append(Out(self._controller, Plan(self._number, planned_models(self._effective()))))

    def _scale(self) -> None:
        """Have the scaler run the wanted workers. Nothing is scaled while arrivals are unseen."""
        if self.settings.scaler != "none" and not self._blind:
            call = self._scaling.start_call(self._workers_wanted())
            if call is not None:
                self.out.append(Out(self.scaler, call))

    def _on_scaled(self, now_ns: int, sender: str, message: Scaled, buffers: Sequence[Buffer]) -> None:
        if message.error:
            self.stats.count("horologe_tuner_scaler_errors_total")
            if message.error != self._scaling.last.error:
                self._note(now_ns, "scaler failed", "", message.error)
        self._scaling.finish_call(now_ns, message, self._workers_wanted())

    def _become_blind(self, now_ns: int, reason: str) -> None:
        """Stop deciding: without arrivals, a missing controller would look like an end of the traffic."""
        self._blind = reason
        self._note(now_ns, "blind", "", f"{reason}: nothing is scaled until events arrive")
        for running in self.plans.values():
            running.reset_traffic()

    def _note(self, now_ns: int, event: JournalEvent, pipeline: str, text: str, dry_run: bool = False) -> None:
        self._journal.add(JournalEntry(now_ns, event, pipeline, text, dry_run))

    def _on_tune(self, now_ns: int, frontend: str, message: Tune, buffers: Sequence[Buffer]) -> None:
        """Apply or withdraw a plan, and answer with the status; or answer with the recent arrivals of a plan."""
        status, reason, answer = Status.OK, "", None
        if message.command == "apply":
            status, reason = self._apply(now_ns, message)
        elif message.command == "withdraw":
            status, reason = self._withdraw(now_ns, message.document.decode(errors="replace"))
        elif message.command == "arrivals":
            pipeline = message.document.decode(errors="replace")
            status, reason = self._check_applied(pipeline)
            answer = None if reason else self.plans[pipeline].recent_arrivals()
        document = msgspec.json.encode(answer or self.describe(now_ns)) if status == Status.OK else b""
        self.out.append(Out(frontend, Tuning(message.id, document, int(status), reason)))

    def _apply(self, now_ns: int, message: Tune) -> tuple[Status, str]:
        try:
            plan = parse_plan(message.document)
        except ValueError as error:
            return Status.INVALID_INPUT, str(error)
        others = [running.plan for name, running in self.plans.items() if name != plan.pipeline]
        hardware = [device.hardware for device in self._devices] if self.settings.scaler == "none" else []
        status, reason = check_plan(plan, others, self._served, hardware)
        if status != Status.OK:
            return status, reason
        replicas = {stage.stage: stage.replicas for stage in plan.stages}
        if not self.plans:
            self._seen_ns = now_ns
        running = self.plans[plan.pipeline] = RunningPlan(now_ns, AppliedPlan(plan, replicas, message.dry_run))
        counts = ", ".join(f"{stage} {count}" for stage, count in replicas.items())
        self._note(now_ns, "applied", plan.pipeline, f"replicas: {counts}", self._only_reports(running))
        self._carry_out()
        return Status.OK, ""

    def _check_applied(self, pipeline: str) -> tuple[Status, str]:
        """Return OK, or why there is no such plan."""
        if pipeline in self.plans:
            return Status.OK, ""
        applied = ", ".join(self.plans) or "none"
        return Status.INVALID_INPUT, f"pipeline: got {pipeline!r}, wanted an applied plan: {applied}"

    def _withdraw(self, now_ns: int, pipeline: str) -> tuple[Status, str]:
        status, reason = self._check_applied(pipeline)
        if reason:
            return status, reason
        del self.plans[pipeline]
        self._note(now_ns, "withdrawn", pipeline, "its workers keep running, for any model")
        self._carry_out()
        return Status.OK, ""

    def describe(self, now_ns: int) -> TunerStatus:
        """Return the state for operators."""
        connected: dict[str, int] = {}
        for device in self._devices:
            connected[device.hardware] = connected.get(device.hardware, 0) + 1
        models = {stage.model for running in self.plans.values() for stage in running.plan.stages}
        unserved = tuple(sorted(models.difference(self._served or models)))
        return TunerStatus(
            self._blind, self.settings.dry_run, self.settings.scaler, self._scaling.last.error,
            self._workers_wanted(), self._scaling.last.workers, connected, unserved,
            tuple(running.describe(self._rules) for running in self.plans.values()),
            tuple(self._journal.recent(now_ns)),
        )  # fmt: skip

    def _on_models(self, now_ns: int, controller: str, message: Models, buffers: Sequence[Buffer]) -> None:
        """Store which models are served, once all workers have registered."""
        if not self._announcements.accept(controller, message.number) or message.incomplete:
            return
        specs = [state.spec for state in message.models if state.state != "UNAVAILABLE"]
        self._served = dict.fromkeys((name for spec in specs for name in (spec.name, spec.key)), True)

    def _on_peer_connected(self, now_ns: int, sender: str, peer: PeerConnected, buffers: Sequence[Buffer]) -> None:
        """Subscribe to a controller's events, and send it the plan in force."""
        if role(peer.address) != "controller":
            return
        self._drop_controller()
        self._controller = peer.address
        self._announcements.connect(peer.address)
        self._seen_ns = now_ns
        self.out.append(Out(self._controller, Plan(0)))
        self._send_plan()

    def _on_peer_disconnected(self, now_ns: int, sender: str, peer: PeerDisconnected, _: Sequence[Buffer]) -> None:
        if peer.address == self._controller:
            self._drop_controller()
            if self.plans and not self._blind:
                self._become_blind(now_ns, "the controller has disconnected")

    def _drop_controller(self) -> None:
        self._announcements.disconnect(self._controller)
        self._controller, self._last_event, self._devices = "", 0, ()
