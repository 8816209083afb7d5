"""The worker: takes actions, gives them to its lanes, reports what happened.

Infer (from the controller) and Ship (from the holders) meet by action id -> an operation for the lane of its share
-> Finished -> Result to the controller, Outputs to each submitter: infers.py. Load and Unload: residency.py. What a
lane runs when: lanes.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected, instance, role
from horologe_common.models import PAGE_BYTES
from horologe_common.status import Status
from horologe_common.wire import Cancel, Drain, Infer, Load, Ping, Pong, Register, Result, Scan, Ship, Unload
from horologe_gpu_worker.core.infer_actions import refusal
from horologe_gpu_worker.core.infer_lifecycle import Infers
from horologe_gpu_worker.core.lane_metrics import Telemetry
from horologe_gpu_worker.core.lanes import Finished, Operation
from horologe_gpu_worker.core.residency import Residency

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import ModelReport
    from horologe_gpu_worker.settings import WorkerSettings

    Handler = Callable[[int, str, Any, Sequence[Buffer]], None]

SCANS_MAX = 16


class Worker:
    """The core of one worker process. Its lanes are whoever gets the messages for the address `lanes`.

    `inline_io(model key)`: INPUT and OUTPUT are part of EXEC and need no operations of their own.
    """

    def __init__(
        self, address: str, settings: WorkerSettings, models: Sequence[ModelReport], inline_io: Callable[[str], bool]
    ) -> None:
        self.address = address
        self.lanes = lanes_of(address)
        self.settings = settings
        self.out: list[Out] = []
        self.reports = {report.spec.key: report for report in models}
        self.controllers: dict[str, None] = {}
        self.draining = False
        self.infers = Infers(settings, self.lanes, inline_io)
        self.stats = self.infers.stats
        self.telemetry = Telemetry(self.stats)
        pages = settings.pages_bytes // PAGE_BYTES
        self.shares = [Residency(share, settings.device, pages, self.lanes) for share in range(settings.shares)]
        self._scans: dict[int, str] = {}
        self._scan_number = 0
        self._handlers: dict[type, Handler] = {
            Infer: self._infer,
            Ship: self._ship,
            Finished: self._finished,
            Load: self._load,
            Unload: self._unload,
            Cancel: self._cancel,
            Ping: self._ping,
            Scan: self._scan,
            Drain: self._drain,
            PeerConnected: self._joined,
            PeerDisconnected: self._gone,
        }

    def drain(self) -> None:
        """Finish what is in flight, take nothing new, and tell controllers so: what they still send is refused."""
        self.draining = True
        self.out.extend(Out(controller, Drain()) for controller in self.controllers)

    def drained(self) -> bool:
        """Nothing is in flight any more."""
        return not self.infers and not any(self.shares)

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """See `Core`. Messages that are not for a worker are ignored."""
        if handler := self._handlers.get(type(message)):
            handler(now_ns, sender, message, buffers)

    def tick(self, now_ns: int) -> None:
        """Start the actions that have become complete, and put out what lanes and peers are to know."""
        self.infers.tick(now_ns)
        self._pass_on(now_ns, self.infers.out)
        for share in self.shares:
            if share.out:
                self._pass_on(now_ns, share.out)
                free = share.pages.free_pages
                self.stats.set("horologe_pages_free", instance(self.address), str(share.share), to=free)

    def wakeup_ns(self) -> int | None:
        return self.infers.wakeup_ns()

    def check(self) -> None:
        """Raise AssertionError where a conservation law is broken."""
        self.infers.check()
        for share in self.shares:
            share.check()

    def _pass_on(self, now_ns: int, outs: list[Out]) -> None:
        """What the actions of a lost controller came to, its successors learn: LOADs they know from Register."""
        for out in outs:
            if isinstance(out.message, Operation):
                self.telemetry.given(now_ns, out.message)
                self.out.append(out)
            elif isinstance(out.message, Result) and self.controllers and out.to not in self.controllers:
                self.out.extend(Out(controller, out.message) for controller in self.controllers)
            else:
                self.out.append(out)
        outs.clear()

    # controllers and what they know

    def _joined(self, now_ns: int, sender: str, joined: PeerConnected, buffers: Sequence[Buffer]) -> None:
        if role(joined.address) == "controller":
            self.controllers[joined.address] = None
            self.infers.early.forget_ended()
            self._register(joined.address)

    def _gone(self, now_ns: int, sender: str, gone: PeerDisconnected, buffers: Sequence[Buffer]) -> None:
        """What a lost controller asked for still ends as planned."""
        self.controllers.pop(gone.address, None)

    def _register(self, controller: str) -> None:
        running = (*self.infers.running, *(action_id for share in self.shares for action_id in share.running))
        shares = tuple(share.report() for share in self.shares)
        self.out.append(Out(controller, Register(shares, tuple(self.reports.values()), running)))
        if self.draining:
            self.out.append(Out(controller, Drain()))

    def _ping(self, now_ns: int, sender: str, ping: Ping, buffers: Sequence[Buffer]) -> None:
        self.out.append(Out(sender, Pong(ping.sent_ns, now_ns)))

    def _drain(self, now_ns: int, sender: str, drain: Drain, buffers: Sequence[Buffer]) -> None:
        self.drain()

    def _scan(self, now_ns: int, sender: str, scan: Scan, buffers: Sequence[Buffer]) -> None:
        if scan.model not in self._scans.values() and len(self._scans) < SCANS_MAX:
            self._scan_number += 1
            self._scans[self._scan_number] = scan.model
            self.out.append(Out(self.lanes, Operation(self._scan_number, 0, "scan", scan.model)))

    def _scanned(self, finished: Finished) -> None:
        """The repository has been read again; what was found is all it has under that name."""
        name = self._scans.pop(finished.action_id).partition("/")[0]
        if finished.status == Status.OK:
            gone = [key for key in self.reports if not name or key.partition("/")[0] == name]
            for key in gone:
                del self.reports[key]
            self.reports |= {report.spec.key: report for report in finished.models}
        for controller in self.controllers:
            self._register(controller)

    # actions

    def _infer(self, now_ns: int, sender: str, infer: Infer, buffers: Sequence[Buffer]) -> None:
        report = self.reports.get(infer.model)
        spec = report.spec if report else None
        if busy := self._busy():
            self._refuse(now_ns, sender, infer.action_id, Status.REFUSED, busy)
        elif infer.action_id in self.infers:
            self._refuse(now_ns, sender, infer.action_id, Status.REFUSED, "an action with this id is pending")
        elif (reason := refusal(infer, spec, len(self.shares))) or spec is None:
            self._refuse(now_ns, sender, infer.action_id, Status.REFUSED, reason)
        else:
            self.infers.accept(now_ns, sender, infer, spec)

    def _ship(self, now_ns: int, sender: str, ship: Ship, buffers: Sequence[Buffer]) -> None:
        self.infers.ship(now_ns, ship, buffers)

    def _cancel(self, now_ns: int, sender: str, cancel: Cancel, buffers: Sequence[Buffer]) -> None:
        """From a controller: the ids are action ids, for those are all that it has in common with a worker."""
        for action_id in cancel.ids:
            self.infers.cancel(now_ns, action_id)

    def _load(self, now_ns: int, sender: str, load: Load, buffers: Sequence[Buffer]) -> None:
        report = self.reports.get(load.model)
        if busy := self._busy():
            self._refuse(now_ns, sender, load.action_id, Status.REFUSED, busy)
        elif not 0 <= load.share < len(self.shares):
            reason = f"share: got {load.share}, wanted one below {len(self.shares)}"
            self._refuse(now_ns, sender, load.action_id, Status.FAILED, reason)
        elif report is None or report.profile is None:
            reason = f"model {load.model}: {report.reason if report else 'not served by this worker'}"
            self._refuse(now_ns, sender, load.action_id, Status.FAILED, reason)
        else:
            self.shares[load.share].load(now_ns, sender, load, report.spec)

    def _unload(self, now_ns: int, sender: str, unload: Unload, buffers: Sequence[Buffer]) -> None:
        if 0 <= unload.share < len(self.shares):
            self.shares[unload.share].unload(now_ns, sender, unload)
        else:
            self._refuse(now_ns, sender, unload.action_id, Status.OK, "")

    def _finished(self, now_ns: int, sender: str, finished: Finished, buffers: Sequence[Buffer]) -> None:
        if finished.lane == "scan":
            self._scanned(finished)
            return
        self.telemetry.ended(finished)
        if finished.lane == "load":
            for share in self.shares:
                share.finished(now_ns, finished)
        elif finished.lane != "unload":
            self.infers.finished(now_ns, finished)

    def _busy(self) -> str:
        if self.draining:
            return "worker is draining"
        if len(self.infers) + sum(map(len, self.shares)) >= self.settings.actions_max:
            return f"worker has {self.settings.actions_max} actions pending"
        return ""

    def _refuse(self, now_ns: int, sender: str, action_id: int, status: Status, reason: str) -> None:
        """Answer an action that is not taken on."""
        self.infers.out.append(Out(sender, Result(action_id, int(status), now_ns, now_ns, reason=reason)))


def lanes_of(address: str) -> str:
    """Where a worker's operations go: `lanes/0#…` for `worker/0#…`."""
    return "lanes/" + address.partition("/")[2]
