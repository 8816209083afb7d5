"""The controller: every request is queued, planned onto a worker inside a window, or refused; tensors never pass it.

Submit -> queue (requests.py) -> (tick) plan -> Infer to the worker and Dispatch to the holder (actions.py); Result ->
the mirror, the estimates (cluster.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core.counters import Stats
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected, role
from horologe_common.status import Status
from horologe_common.wire import (
    Admit,
    Cancel,
    Describe,
    Description,
    Distributions,
    Drain,
    Ping,
    Pong,
    Register,
    Result,
    Submit,
)
from horologe_controller.core.actions import Actions
from horologe_controller.core.cluster.cluster import Cluster
from horologe_controller.core.cluster.load_backoff import Pauses
from horologe_controller.core.cluster.worker_mirror import Worker
from horologe_controller.core.metrics import Accounts
from horologe_controller.core.model_catalogue import AUDIENCE, Repository
from horologe_controller.core.requests.lifecycle import Requests
from horologe_controller.core.runtime_distributions import learned
from horologe_controller.schedulers import SCHEDULERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_controller.core.scheduling.scheduler import Plan
    from horologe_controller.settings import ControllerSettings


class Controller:
    """Core of the controller."""

    def __init__(self, address: str, settings: ControllerSettings, host: str = "") -> None:
        self.address = address
        self.settings = settings
        self.host = host
        self.out: list[Out] = []
        self.cluster = Cluster(settings.return_quantile_window)
        self.scheduler = SCHEDULERS[settings.scheduler](settings)
        self.repository = Repository(self.cluster)
        self.stats = Stats()
        self._accounts = Accounts(self.stats)
        self._requests = Requests(settings, self.cluster, self.scheduler, self.repository, self.stats, self._post)
        self._actions = Actions(address, self.cluster, settings.action_grace_ns)
        self._pauses = Pauses(settings.load_pause_ns, settings.load_pause_most_ns)
        self._peers: dict[str, str] = {}
        self._now_ns = 0
        self._ping_ns = 0
        self._wake_ns: int | None = None

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """One message from a submitter, a worker, a frontend (on behalf of a client) or the loop."""
        match message:
            case Submit():
                self._requests.arrive(now_ns, sender, message)
            case Result():
                self._result(now_ns, sender, message)
            case Cancel():
                self._requests.cancel(now_ns, sender, message.ids)
            case Register():
                self._register(now_ns, sender, message)
            case Pong() | Drain():
                self._told(now_ns, sender, message)
            case Admit():
                self.out.extend(self.repository.admit(sender, message))
                self.out.extend(self.repository.announcement())
            case Distributions():
                learned(self.cluster.durations, message)
            case Describe():
                shares, scheduler = self.cluster.states(now_ns, message.model), self.settings.scheduler
                self.out.append(Out(sender, Description(message.id, shares, scheduler, self.pending())))
            case PeerConnected():
                self._joined(now_ns, message)
            case PeerDisconnected():
                self._gone(now_ns, message.address)

    def tick(self, now_ns: int) -> None:
        """Take in what has arrived, plan, and send what the plan says."""
        self._now_ns = now_ns
        self._pauses.end(now_ns, self.cluster)
        self._revise(now_ns)
        self._requests.take_in(now_ns, self._peers)
        if self.cluster.workers and now_ns >= self._ping_ns:
            self._ping_ns = now_ns + self.settings.ping_ns
            requests, cancels = self._actions.overdue(now_ns)
            self._requests.again(now_ns, requests)
            self.out.extend(cancels)
            self.out.extend(Out(address, Ping(now_ns)) for address in self.cluster.workers)
        plan = self._plan(now_ns)
        while plan.load:
            plan = self._plan(now_ns)
        self._wake_ns = plan.wake_ns

    def _revise(self, now_ns: int) -> None:
        """Where models have changed: their requests are queued anew, or end; what shares cannot run is unloaded."""
        if self.cluster.unserved:
            self.out.extend(self._actions.drop_unserved())
        if self.cluster.revised:
            self._requests.revise(now_ns)

    def _plan(self, now_ns: int) -> Plan:
        """Ask the scheduler, and do as it says."""
        plan = self.scheduler.plan(now_ns, self.cluster)
        for refusal in plan.refuse:
            self._requests.refuse(refusal)
        self.out.extend(self._actions.carry_out(now_ns, plan))
        return plan

    def wakeup_ns(self) -> int | None:
        ping_ns = self._ping_ns if self.cluster.workers else None
        wakes = (self._wake_ns, self._pauses.next_ns(), ping_ns)
        return min([at_ns for at_ns in wakes if at_ns is not None], default=None)

    def pending(self) -> int:
        return len(self._requests.book)

    def refresh_stats(self) -> None:
        """Bring what follows from other state up to date, before it is read."""
        self._accounts.refresh(self._now_ns, self.cluster, self._requests.book)

    def check(self) -> None:
        """Pages add up; every request is queued or in exactly one pending action."""
        self.cluster.check()
        self.scheduler.check()
        self._requests.book.check(self._actions.requests(), len(self.scheduler))

    def _result(self, now_ns: int, sender: str, result: Result) -> None:
        """An action has ended: the mirror learns of it, failed rows are planned again or answered."""
        if (ended := self._actions.ended(now_ns, sender, result)) is None:
            return
        action, end_ns = ended
        took_ns = result.end_ns - result.begin_ns
        self._accounts.ended(action, result, took_ns, end_ns)
        ok, estimate = result.status == Status.OK, action.share.estimates.get(action.model)
        if ok and estimate and not result.rows:  # with rows missing it was a smaller batch
            estimate.observe(now_ns, action.batch_size, took_ns, steady=action.model not in self.cluster.durations)
        if action.kind == "load":
            action.share.loaded(action.model, ok=ok)
            if result.status == Status.FAILED:
                self.out.extend(self.repository.failed(action.share, action.model, result.reason))
            elif not estimate:  # withdrawn in the meantime
                self.cluster.unserved[action.share, action.model] = True
            elif not ok:
                self._pauses.refused(now_ns, action.share, action.model, self.cluster)
            return
        if ok:
            self.cluster.returns.observe(now_ns, now_ns - end_ns)
            self.cluster.overruns.observe(now_ns, max(0, end_ns - action.promised_ns))
            if not result.rows:
                self.scheduler.observe(now_ns, action, took_ns)
        self._requests.settle(now_ns, action, result)

    def _register(self, now_ns: int, sender: str, message: Register) -> None:
        if worker := self.cluster.workers.get(sender):
            self.out += self.repository.registered(worker, message)
            self._actions.adopt(now_ns, worker, message)

    def _told(self, now_ns: int, sender: str, message: Pong | Drain) -> None:
        """A worker's clock, or that it takes nothing more."""
        if worker := self.cluster.workers.get(sender):
            if isinstance(message, Drain):
                self.cluster.drain(worker)
            else:
                self.cluster.clock(worker, message.sent_ns, message.peer_ns, now_ns)

    def _joined(self, now_ns: int, message: PeerConnected) -> None:
        self._peers[message.address] = message.host
        if role(message.address) == "worker":
            self.cluster.workers[message.address] = Worker(message.address, message.host == self.host)
            self._ping_ns = now_ns  # its clock, before anything is planned for it
        elif role(message.address) in AUDIENCE:
            self.out.append(self.repository.follow(message.address))

    def _gone(self, now_ns: int, address: str) -> None:
        """A dead worker's requests are planned again; a dead submitter's are dropped."""
        self._peers.pop(address, None)
        self.repository.leave(address)
        if worker := self.cluster.workers.get(address):
            self.cluster.lose(worker)
            self._requests.again(now_ns, self._actions.lost_with(address))
            self.out.extend(self.repository.changed())
            return
        self._requests.cancel(now_ns, address, self._requests.book.of(address))

    def _post(self, out: Out) -> None:
        self.out.append(out)
