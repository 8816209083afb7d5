"""Worker core: receives actions, runs them through its lanes, reports the results.

An Infer (from the controller) and its Ships (from the holders) are joined by action id in infer_lifecycle.py. The
worker sends an operation to a lane of the share, receives Finished, and sends Result to the controller and Outputs to
each submitter. residency.py handles Load and Unload; lanes.py orders the operations of a lane.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.clock import NEVER_NS
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected, instance, role
from horologe_common.models import PAGE_BYTES
from horologe_common.status import Status
from horologe_common.wire import (
    Cancel,
    DeviceInfo,
    Drain,
    EndStreams,
    Infer,
    Load,
    Ping,
    Pong,
    Register,
    Result,
    Scan,
    Ship,
    Unload,
)
from horologe_gpu_worker.core.infer_lifecycle import InferLifecycle, refusal_reason
from horologe_gpu_worker.core.lanes import (
    PROCESS_ENDS,
    Finished,
    LaneMetrics,
    LaneOperation,
    ModelsChanged,
    VersionScanned,
)
from horologe_gpu_worker.core.residency import Residency
from horologe_gpu_worker.core.served_models import ServedModels, scans_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import ModelReport
    from horologe_gpu_worker.core.infer_actions import InferAction
    from horologe_gpu_worker.settings import WorkerSettings

    Handler = Callable[[int, str, Any, Sequence[Buffer]], None]
ACTIONS_MAX = 4096
"""Maximum number of pending actions. Further actions are REFUSED."""


class Worker:
    """Core of one worker process. Its lanes receive messages at the address `lanes`.

    `inline_io(model key)` returns True if INPUT and OUTPUT are part of EXEC and need no operations of their own.
    `device_info`: the physical device; by default as the settings name it.
    """

    def __init__(
        self,
        address: str,
        settings: WorkerSettings,
        models: Sequence[ModelReport],
        inline_io: Callable[[str], bool],
        device_info: DeviceInfo | None = None,
    ) -> None:
        self.address = address
        self.lanes = lanes_address(address)
        self.settings = settings
        self.out: list[Out] = []
        self.controllers: dict[str, int] = {}
        """Connected controller -> id of its last INFER or UNLOAD. A controller sends growing ids."""
        self.draining = False
        self._released: dict[str, bool] = {}
        """Controllers that have replied to Drain: they send no further actions."""
        self.infers = InferLifecycle(settings, self.lanes, inline_io)
        self.stats = self.infers.stats
        self.lane_metrics = LaneMetrics(self.stats)
        pages, numbers = settings.pages_bytes // PAGE_BYTES, range(settings.shares)
        percent = settings.share_percent / settings.shares
        self.shares = [
            Residency(share, settings.device, pages, self.lanes, settings.hardware, percent) for share in numbers
        ]
        self.models = ServedModels(models, self.shares, self.infers, self.lanes)
        self.device_info = device_info or DeviceInfo(settings.device_id, settings.hardware or settings.device)
        self._ends = 0
        """Operations that end streams, so far."""
        self._registrations = 0
        self._registered: dict[str, int] = {}
        """Connected controller -> number of the Register with which its connection began."""
        self._handlers: dict[type, Handler] = {
            Infer: self._on_infer,
            Ship: self._on_ship,
            EndStreams: self._on_end_streams,
            Finished: self._on_finished,
            Load: self._on_load,
            Unload: self._on_unload,
            Cancel: self._on_cancel,
            Ping: self._on_ping,
            Scan: self._on_scan,
            VersionScanned: self._on_version_scanned,
            ModelsChanged: self._on_models_changed,
            Drain: self._on_drain,
            PeerConnected: self._on_peer_connected,
            PeerDisconnected: self._on_peer_disconnected,
        }

    def drain(self) -> None:
        """Send Drain to the controllers. Run the actions that arrive before their replies, and refuse later ones."""
        self.draining = True
        self.out.extend(Out(controller, Drain()) for controller in self.controllers)

    def refresh_stats(self) -> None:
        """Create the counters of failures of the models, and count the pages."""
        self.lane_metrics.failures.announce(report.spec for report in list(self.models.reports.values()))
        for share in self.shares:
            labels = instance(self.address), str(share.share)
            self.stats.set("horologe_pages_free", *labels, to=share.pages.free_pages)
            self.stats.set("horologe_pages_capacity", *labels, to=share.pages.total)

    def drained(self) -> bool:
        """Return True if no action is pending, and none can arrive."""
        pending = self.infers or any(share.loads for share in self.shares)
        return not pending and self._released.keys() >= self.controllers.keys()

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Handle one message; see `Core`. Messages that are not for a worker are ignored."""
        if handler := self._handlers.get(type(message)):
            handler(now_ns, sender, message, buffers)

    def tick(self, now_ns: int) -> None:
        """Start the actions that have become complete, and emit messages for lanes and peers."""
        try:
            self.infers.tick(now_ns)
        finally:
            self._forward_outputs(now_ns, self.infers.out)
        models = self.models
        due = models.running or models.waiting or models.retired or models.changed
        completed = models.tick(now_ns) if due else None
        self.out.extend(self.models.out)
        self.models.out.clear()
        for share in self.shares:
            if share.out:
                self._forward_outputs(now_ns, share.out)
        if completed is not None:
            # Behind all Results, so that they belong to the content that was reported before.
            for controller in self.controllers:
                self._register(controller, scans_of(controller, completed))

    def wakeup_ns(self) -> int | None:
        wakes = (self.infers.wakeup_ns(), self.models.announce_ns if self.models.changed else None)
        return min([at_ns for at_ns in wakes if at_ns is not None], default=None)

    def check(self) -> None:
        self.infers.check()
        self.models.check()
        for share in self.shares:
            share.check()

    def _forward_outputs(self, now_ns: int, outs: list[Out]) -> None:
        """Move messages to `out`, and record the operations among them.

        A Result for a lost controller goes to all connected controllers: they know the action from Register.
        """
        forwarded = outs.copy()
        outs.clear()
        for out in forwarded:
            if isinstance(out.message, LaneOperation):
                self.lane_metrics.record_queued(now_ns, out.message)
                self.out.append(out)
            elif isinstance(out.message, Result) and self.controllers and out.to not in self.controllers:
                self.out.extend(Out(controller, out.message) for controller in self.controllers)
            else:
                self.out.append(out)

    def _on_peer_connected(self, now_ns: int, sender: str, peer: PeerConnected, buffers: Sequence[Buffer]) -> None:
        self.infers.frame_limits[peer.address] = peer.max_frame_bytes
        if role(peer.address) == "controller":
            self.controllers[peer.address] = 0
            self.infers.early.clear_finished()
            self._register(peer.address)
            self._registered[peer.address] = self._registrations

    def _on_peer_disconnected(
        self, now_ns: int, sender: str, peer: PeerDisconnected, buffers: Sequence[Buffer]
    ) -> None:
        """Remove a lost controller, whose actions still finish as planned. End the streams of a lost selector."""
        if role(peer.address) == "selector" and any(report.spec.streams for report in self.models.reports.values()):
            for share in self.shares:
                self._end_streams(share.share, "", peer.address)
        self._registered.pop(peer.address, None)
        self._released.pop(peer.address, None)
        self.infers.frame_limits.pop(peer.address, None)
        if self.controllers.pop(peer.address, None) is not None:
            for share in self.shares:
                share.remove_controller(peer.address)

    def _register(self, controller: str, scans: tuple[int, ...] = ()) -> None:
        running = (*self.infers.pending_ids, *(action_id for share in self.shares for action_id in share.pending_ids))
        shares = tuple(share.describe_share() for share in self.shares)
        self._registrations += 1
        reports = tuple(self.models.reports.values())
        register = Register(shares, reports, running, self._registrations, scans, self.device_info)
        self.out.append(Out(controller, register))
        if self.draining:
            self.out.append(Out(controller, Drain()))

    def _on_ping(self, now_ns: int, sender: str, ping: Ping, buffers: Sequence[Buffer]) -> None:
        self.out.append(Out(sender, Pong(ping.sent_ns, now_ns)))

    def _on_drain(self, now_ns: int, sender: str, drain: Drain, buffers: Sequence[Buffer]) -> None:
        """Record the reply of a controller, or drain because it asks for it."""
        if not self.draining:
            self.drain()
        self._released[sender] = True

    def _on_scan(self, now_ns: int, sender: str, scan: Scan, buffers: Sequence[Buffer]) -> None:
        self.models.request_scan(sender, scan.model.partition("/")[0], scan.id)

    def _on_infer(self, now_ns: int, sender: str, infer: Infer, buffers: Sequence[Buffer]) -> None:
        """Accept or refuse an action. Ignore it if it is pending already.

        An INFER that a later action has overtaken may have been run before, or its model may be unloaded. It is
        TOO_LATE: the controller plans it again if it has had no Result.
        """
        report = self.models.reports.get(infer.model)
        spec = report.spec if report else None
        if infer.action_id <= self.controllers.get(sender, 0):
            if infer.action_id not in self.infers:
                self._refuse_action(
                    now_ns, sender, infer.action_id, Status.TOO_LATE, "a later action has arrived before"
                )
            return
        self._record_action(sender, infer.action_id)
        if busy := self._busy_reason(sender):
            self._refuse_action(now_ns, sender, infer.action_id, Status.REFUSED, busy)
        elif infer.action_id in self.infers:
            self._refuse_action(now_ns, sender, infer.action_id, Status.REFUSED, "an action with this id is pending")
        elif (reason := refusal_reason(infer, spec, len(self.shares))) or spec is None:
            self._refuse_action(now_ns, sender, infer.action_id, Status.REFUSED, reason)
        else:
            self.infers.accept_infer(now_ns, sender, infer, spec)

    def _on_ship(self, now_ns: int, sender: str, ship: Ship, buffers: Sequence[Buffer]) -> None:
        self.infers.add_inputs(now_ns, ship, buffers)

    def _on_end_streams(self, now_ns: int, sender: str, message: EndStreams, buffers: Sequence[Buffer]) -> None:
        if message.streams and 0 <= message.share < len(self.shares):
            self._end_streams(message.share, message.model, sender, message.streams)

    def _end_streams(self, share: int, model: str, owner: str, streams: tuple[int, ...] = ()) -> None:
        self._ends += 1  # no action has such an id
        self.out.append(Out(self.lanes, LaneOperation(-self._ends, share, "end", model, owner=owner, streams=streams)))

    def _on_cancel(self, now_ns: int, sender: str, cancel: Cancel, buffers: Sequence[Buffer]) -> None:
        """Cancel actions. The ids of a controller's Cancel are action ids."""
        for action_id in cancel.ids:
            self.infers.cancel_action(now_ns, action_id)

    def _on_load(self, now_ns: int, sender: str, load: Load, buffers: Sequence[Buffer]) -> None:
        """Accept or refuse a LOAD. Ignore it if it arrives again."""
        report = self.models.find_for_load(load.model)
        if not 0 <= load.share < len(self.shares):
            reason = f"share: got {load.share}, wanted one below {len(self.shares)}"
            self._refuse_action(now_ns, sender, load.action_id, Status.FAILED, reason)
        elif self._is_stale(sender, load):
            self._refuse_action(now_ns, sender, load.action_id, Status.REFUSED, "it was sent before the registration")
        elif (last_id := self.shares[load.share].record_action(sender, load)) is not None:
            if last_id != load.action_id:
                reason = f"action {last_id} for {load.model} has arrived before"
                self._refuse_action(now_ns, sender, load.action_id, Status.REFUSED, reason)
        elif busy := self._busy_reason(sender):
            self._refuse_action(now_ns, sender, load.action_id, Status.REFUSED, busy)
        elif report is None or report.profile is None or report.reason:
            reason = f"model {load.model}: {report.reason if report else 'not served by this worker'}"
            self._refuse_action(now_ns, sender, load.action_id, Status.FAILED, reason)
        else:
            self.shares[load.share].load_model(now_ns, sender, load, report.spec)

    def _on_unload(self, now_ns: int, sender: str, unload: Unload, buffers: Sequence[Buffer]) -> None:
        if self._is_stale(sender, unload):
            return
        self._record_action(sender, unload.action_id)
        if 0 <= unload.share < len(self.shares):
            self.shares[unload.share].unload_model(now_ns, sender, unload)
        else:
            self._refuse_action(now_ns, sender, unload.action_id, Status.OK, "")

    def _on_version_scanned(self, now_ns: int, sender: str, message: VersionScanned, buffers: Sequence[Buffer]) -> None:
        if sender == self.lanes:
            self.models.update_version(message)

    def _on_models_changed(self, now_ns: int, sender: str, message: ModelsChanged, buffers: Sequence[Buffer]) -> None:
        if sender == self.lanes:
            self.models.scan_changed(message.names)

    def _on_finished(self, now_ns: int, sender: str, finished: Finished, buffers: Sequence[Buffer]) -> None:
        if finished.lane == "scan":
            self.models.finish_scan(finished)
            return
        if finished.lane == "replace":
            self.models.finish_replacement(finished)
            return
        if finished.lane == "end":
            return
        self.lane_metrics.record_finished(finished)
        if finished.lane == "load":
            for share in self.shares:
                share.finish_load(now_ns, finished)
        elif finished.lane != "unload":
            action = self.infers.find_action(finished.action_id)
            if action is not None and finished.lane == "exec":
                self._observe_exec(action, finished)
            self.infers.advance_action(now_ns, finished)

    def _observe_exec(self, action: InferAction, finished: Finished) -> None:
        """Measure a model that has a first estimate only. Unload a model whose process has ended."""
        if finished.failure and finished.failure[1] in PROCESS_ENDS:
            self.shares[action.infer.share].discard_model(action.infer.model, finished.action_id, self.controllers)
        elif finished.status == Status.OK:
            report = self.models.reports.get(action.spec.key)
            if report and report.profile and not report.profile.measured:
                self.models.observe_exec(action.spec, action.batch_size, finished.end_ns - finished.begin_ns)

    def _is_stale(self, sender: str, action: Load | Unload) -> bool:
        """Return whether the controller sent the action before it had this connection's Register.

        Its mirror of the pages is that of the Register, which does not know what the action would change.
        """
        return 0 < action.registration < self._registered.get(sender, NEVER_NS)

    def _record_action(self, sender: str, action_id: int) -> None:
        if action_id > self.controllers.get(sender, action_id):
            self.controllers[sender] = action_id

    def _busy_reason(self, sender: str) -> str:
        if sender in self._released:
            return "worker is draining"
        if len(self.infers) + sum(len(share.loads) for share in self.shares) >= ACTIONS_MAX:
            return f"worker has {ACTIONS_MAX} actions pending"
        return ""

    def _refuse_action(self, now_ns: int, sender: str, action_id: int, status: Status, reason: str) -> None:
        """Send the Result of an action that was not accepted."""
        self.infers.out.append(Out(sender, Result(action_id, int(status), now_ns, now_ns, reason=reason)))


def lanes_address(address: str) -> str:
    """Return the address of a worker's lanes: `lanes/0#…` for `worker/0#…`."""
    return "lanes/" + address.partition("/")[2]
