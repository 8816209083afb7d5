"""Core of the tuner: carries out plans, and keeps them true while the traffic changes.

Events (from the controller) -> envelope of each pipeline, latencies of each stage on shares -> decision -> ScaleTo (to
the scaler) and ResourcePlan (to the controller). Tune (from an operator, by the frontend) applies and withdraws plans,
and asks for the status. Plans in force: `plans/`. Replicas that follow the traffic, InferLine section 5: `scaling/`.
Shares with standby workers, iGniter section 4.2: `standby/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec

from horologe_common.clock import s
from horologe_common.core.instruments import Stats
from horologe_common.core.message_checks import INVALID_MESSAGES, check_sender
from horologe_common.core.message_order import AnnouncementOrder
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected, role
from horologe_common.status import InvalidInput, Status
from horologe_common.wire import DeviceState, Events, Models, ResourcePlan, Tune, Tuning
from horologe_planning.plan import PLAN_VERSION
from horologe_tuner.core.controller_checks import valid_events
from horologe_tuner.core.journal import Journal, JournalEntry, JournalEvent
from horologe_tuner.core.plans.plan_checks import ClusterModels
from horologe_tuner.core.plans.plan_tuner import PlanTuner
from horologe_tuner.core.plans.running_plan import AppliedPlan
from horologe_tuner.core.standby.shadow_rules import CALM_NS
from horologe_tuner.core.tuner_status import TunerStatus
from horologe_tuner.core.worker_scaling import Scaled, WorkerScaling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_tuner.settings import TunerSettings

    Handler = Callable[[int, str, Any, Sequence[Buffer]], None]


BLIND_NS = s(2)
"""Without events of the controller for this time, the tuner changes nothing."""
NUMBER_MAX = 1 << 53
"""Largest number of a ResourcePlan message."""


class TunerState(msgspec.Struct, frozen=True):
    """Content of the state file. `number`: number of the last ResourcePlan message. `version`: that of the plans."""

    version: Literal[1]
    number: int
    applied: tuple[AppliedPlan, ...]


class Tuner:
    """Core of the tuner.

    Emits ScaleTo for the address `scaler`, TunerState for `store`, and JournalEntry for `journal`.
    """

    def __init__(self, address: str, settings: TunerSettings, *, shadow_calm_ns: int = CALM_NS) -> None:
        self.address = address
        self.scaler, self.store, self.journal = (
            f"{part}/{address.partition('/')[2]}" for part in ("scaler", "store", "journal")
        )
        self.settings = settings
        self.out: list[Out] = []
        self.stats = Stats()
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
        self._scaling = WorkerScaling()
        self._journal = Journal()
        self.plans = PlanTuner(settings, self.stats, self._note, shadow_calm_ns)
        self._handlers: dict[type, Handler] = {
            Events: self._on_events,
            Tune: self._on_tune,
            Scaled: self._on_scaled,
            Models: self._on_models,
            PeerConnected: self._on_peer_connected,
            PeerDisconnected: self._on_peer_disconnected,
        }

    def restore(self, now_ns: int, state: TunerState) -> list[str]:
        """Continue with the plans and replicas of an earlier incarnation. Return what is not valid, and why.

        Stored plans are checked like those that arrive.
        """
        dropped = self.plans.restore(now_ns, state.applied)
        if 0 <= state.number <= NUMBER_MAX:
            self._number = state.number
        else:
            dropped.append(f"number: got {state.number}, wanted 0 to {NUMBER_MAX}")
        self._seen_ns = now_ns
        return dropped

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Handle one message of the controller, a frontend, the scaler or the event loop."""
        if handler := self._handlers.get(type(message)):
            try:
                handler(now_ns, sender, message, buffers)
            except InvalidInput:
                self.stats.count(INVALID_MESSAGES, type(message).__name__)

    def tick(self, now_ns: int) -> None:
        """Detect missing events, and retry a scaling that has not succeeded."""
        if self._watches and now_ns >= self._seen_ns + BLIND_NS:
            self._become_blind(now_ns, "the controller sends no events" if self._controller else "no controller")
        if self._scaling.retry_ns is not None and now_ns >= self._scaling.retry_ns:
            self._scaling.retry_ns = None
            self._scale()
        self.out.extend(Out(self.journal, entry) for entry in self._journal.unwritten)
        self._journal.unwritten.clear()

    def wakeup_ns(self) -> int | None:
        blind_ns = self._seen_ns + BLIND_NS if self._watches else None
        wakes = (blind_ns, self._scaling.retry_ns)
        return min((at_ns for at_ns in wakes if at_ns is not None), default=None)

    @property
    def _watches(self) -> bool:
        """True if a plan is applied and arrivals can be seen."""
        return bool(self.plans) and not self._blind

    def refresh_stats(self) -> None:
        """Update the gauges that are derived from other state."""
        stats = self.stats
        stats.remove_values("horologe_tuner_workers")
        stats.set("horologe_tuner_blind", to=bool(self._blind))
        for hardware, count in self.plans.workers_wanted().items():
            stats.set("horologe_tuner_workers", hardware, "wanted", to=count)
        for hardware, count in self._scaling.last.workers.items():
            stats.set("horologe_tuner_workers", hardware, "running", to=count)
        self.plans.refresh_stats(self._seen_ns)

    def check(self) -> None:
        """Raise AssertionError if an invariant of a plan is broken."""
        self.plans.check()

    def _on_events(self, now_ns: int, sender: str, events: Events, buffers: Sequence[Buffer]) -> None:
        """Record arrivals and latencies, and carry out the decisions. A missing message resets the counts."""
        check_sender(sender, "controller")
        checked = valid_events(events)
        if checked is not events:
            self.stats.count(INVALID_MESSAGES, "Events")
            events = checked
        if sender != self._controller or events.number <= self._last_event:
            return
        if self._last_event and events.number > self._last_event + 1:
            self._reset_traffic(now_ns)
        resumed = bool(self._blind) or not self._last_event
        self._last_event, self._seen_ns = events.number, now_ns
        if self._blind:
            self._note(now_ns, "sighted", "", "events of the controller arrive again")
            self._blind = ""
        if events.devices is not None:
            self._devices = events.devices
        if self.plans.on_events(now_ns, events):
            self._carry_out()
        elif resumed:
            self._scale()  # workers may have been lost, or a plan been applied meanwhile

    def _carry_out(self) -> None:
        """Store the state first, so that a killed tuner continues with it. Then send to controller and scaler."""
        self._number += 1
        self._save()
        self._send_plan()
        self._scale()

    def _save(self) -> None:
        self.out.append(Out(self.store, TunerState(PLAN_VERSION, self._number, self.plans.applied())))

    def _send_plan(self) -> None:
        """Send the resources of the models. Without any, only if the controller may have an earlier plan."""
        if self._controller and self._number:
            self.out.append(Out(self._controller, ResourcePlan(self._number, self.plans.planned_models())))

    def _scale(self) -> None:
        """Request the wanted workers from the scaler, except while no arrivals are observed."""
        if self.settings.scaler != "none" and not self._blind:
            call = self._scaling.start_call(self.plans.workers_wanted(), self.plans.wanted_shares())
            if call is not None:
                self.out.append(Out(self.scaler, call))

    def _on_scaled(self, now_ns: int, sender: str, message: Scaled, buffers: Sequence[Buffer]) -> None:
        if message.error:
            self.stats.count("horologe_tuner_scaler_errors_total")
            if message.error != self._scaling.last.error:
                self._note(now_ns, "scaler failed", "", message.error)
        self._scaling.finish_call(now_ns, message, self.plans.workers_wanted(), self.plans.wanted_shares())

    def _become_blind(self, now_ns: int, reason: str) -> None:
        """Stop deciding: without arrivals, a missing controller would look like an end of the traffic."""
        self._blind = reason
        self._note(now_ns, "blind", "", f"{reason}: nothing is scaled until events arrive")
        self._reset_traffic(now_ns)

    def _reset_traffic(self, now_ns: int) -> None:
        self.plans.reset_traffic(now_ns)

    def _note(self, now_ns: int, event: JournalEvent, pipeline: str, text: str, dry_run: bool = False) -> None:
        self._journal.add(JournalEntry(now_ns, event, pipeline, text, dry_run))

    def _on_tune(self, now_ns: int, frontend: str, message: Tune, buffers: Sequence[Buffer]) -> None:
        """Apply or withdraw a plan, and answer with the status; or answer with the recent arrivals of a plan."""
        check_sender(frontend, "frontend")
        status, reason, answer = Status.OK, "", None
        if message.command == "apply":
            status, reason = self._apply(now_ns, message)
            if status == Status.OK:
                self._carry_out()
        elif message.command == "withdraw":
            status, reason = self._withdraw(now_ns, message.document.decode(errors="replace"))
        elif message.command == "arrivals":
            name = message.document.decode(errors="replace")
            status, reason = self._check_applied(name)
            answer = None if reason else self.plans.recent_arrivals(name)
        document = msgspec.json.encode(answer or self.describe(now_ns)) if status == Status.OK else b""
        self.out.append(Out(frontend, Tuning(message.id, document, int(status), reason)))

    def _apply(self, now_ns: int, message: Tune) -> tuple[Status, str]:
        if not self.plans:
            self._seen_ns = now_ns
        starts_workers = self.settings.scaler != "none"
        hardware = [] if starts_workers else [device.hardware for device in self._devices]
        return self.plans.apply(
            now_ns, message.document, message.dry_run, ClusterModels(self._served, hardware, starts_workers)
        )

    def _check_applied(self, name: str) -> tuple[Status, str]:
        """Return OK, or why there is no such plan."""
        if name in self.plans.plans:
            return Status.OK, ""
        applied = ", ".join(self.plans.plans) or "none"
        return Status.INVALID_INPUT, f"plan: got {name!r}, wanted an applied plan: {applied}"

    def _withdraw(self, now_ns: int, name: str) -> tuple[Status, str]:
        status, reason = self._check_applied(name)
        if not reason:
            self.plans.withdraw(now_ns, name)
            self._carry_out()
        return status, reason

    def describe(self, now_ns: int) -> TunerStatus:
        """Return the state for operators."""
        connected: dict[str, int] = {}
        for device in self._devices:
            connected[device.hardware] = connected.get(device.hardware, 0) + 1
        models = self.plans.models()
        unserved = tuple(sorted(models.difference(self._served or models)))
        return TunerStatus(
            self._blind,
            self.settings.dry_run,
            self.settings.scaler,
            self._scaling.last.error,
            self.plans.workers_wanted(),
            self._scaling.last.workers,
            connected,
            unserved,
            self.plans.describe(now_ns),
            tuple(self._journal.recent(now_ns)),
            self._scaling.last.shares,
        )

    def _on_models(self, now_ns: int, controller: str, message: Models, buffers: Sequence[Buffer]) -> None:
        """Store which models are served, once all workers have registered."""
        check_sender(controller, "controller")
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
        self.out.append(Out(self._controller, ResourcePlan(0)))
        self._send_plan()

    def _on_peer_disconnected(self, now_ns: int, sender: str, peer: PeerDisconnected, _: Sequence[Buffer]) -> None:
        if peer.address == self._controller:
            self._drop_controller()
            if self._watches:
                self._become_blind(now_ns, "the controller has disconnected")

    def _drop_controller(self) -> None:
        self._announcements.disconnect(self._controller)
        self.plans.shares.forget_devices()
        self._controller, self._last_event, self._devices = "", 0, ()
