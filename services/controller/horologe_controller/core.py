"""The controller: every request is queued, planned onto a worker inside a window, or refused; tensors never pass it.

Submit -> queue -> (tick) plan -> Infer to the worker and Dispatch to the holder; Result -> the mirror, the estimates.
`_finish` is the only place that removes a request from the book, and it answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core import Gone, Joined, Out, role
from horologe_common.metrics import Stats
from horologe_common.status import Status
from horologe_common.wire import (
    Admit,
    Cancel,
    Describe,
    Description,
    Distributions,
    Drain,
    Outcome,
    Ping,
    Pong,
    Register,
    Result,
    Submit,
)  # fmt: skip
from horologe_controller.accounts import Accounts
from horologe_controller.actions import Actions
from horologe_controller.book import Book
from horologe_controller.cluster import Cluster, Worker
from horologe_controller.durations import learned
from horologe_controller.pauses import Pauses
from horologe_controller.repository import AUDIENCE, Repository
from horologe_controller.request import FINISHED, UNPLACED
from horologe_controller.schedulers import SCHEDULERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core import Buffer
    from horologe_controller.lane import Action
    from horologe_controller.request import Request
    from horologe_controller.scheduler import Plan, Refusal
    from horologe_controller.settings import Settings

ATTEMPTS = 3
"""A request is planned this often at most: after losing a worker twice, something about it may be the reason."""
BACK_SHARE = 4
"""At most this part of a budget is kept for the way back: one stalled result must not refuse what has time enough."""


class Controller:
    """Core of the controller."""

    def __init__(self, address: str, settings: Settings, host: str = "") -> None:
        self.address = address
        self.settings = settings
        self.host = host
        self.out: list[Out] = []
        self.cluster = Cluster(settings.return_quantile_window)
        self.scheduler = SCHEDULERS[settings.scheduler](settings)
        self.repository = Repository(self.cluster)
        self.stats = Stats()
        self._accounts = Accounts(self.stats)
        self._arrived: list[tuple[str, Submit, int]] = []
        self._book = Book()
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
                self._arrived.append((sender, message, now_ns))
            case Result():
                self._result(now_ns, sender, message)
            case Cancel():
                self._cancel(now_ns, sender, message.ids)
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
                self.out.append(Out(sender, Description(message.id, shares, scheduler, len(self._book))))
            case Joined():
                self._joined(now_ns, message)
            case Gone():
                self._gone(now_ns, message.address)

    def tick(self, now_ns: int) -> None:
        """Take in what has arrived, plan, and send what the plan says."""
        self._now_ns = now_ns
        self._pauses.end(now_ns, self.cluster)
        self._revise(now_ns)
        for sender, submit, arrival_ns in self._arrived:
            self._submit(now_ns, sender, submit, arrival_ns)
        self._arrived.clear()
        if self.cluster.workers and now_ns >= self._ping_ns:
            self._ping_ns = now_ns + self.settings.ping_ns
            requests, cancels = self._actions.overdue(now_ns)
            self._again(now_ns, requests)
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
        if not self.cluster.revised:
            return
        requests = self._book.queued(self.cluster.revised)
        self.cluster.revised.clear()
        for request in requests:
            self.scheduler.remove(now_ns, request, self.cluster)
        for request in requests:
            self._enqueue(now_ns, request)

    def _plan(self, now_ns: int) -> Plan:
        """Ask the scheduler, and do as it says."""
        plan = self.scheduler.plan(now_ns, self.cluster)
        for refusal in plan.refuse:
            self._refuse(refusal)
        self.out.extend(self._actions.carry_out(now_ns, plan))
        return plan

    def wakeup_ns(self) -> int | None:
        ping_ns = self._ping_ns if self.cluster.workers else None
        wakes = (self._wake_ns, self._pauses.next_ns(), ping_ns)
        return min([at_ns for at_ns in wakes if at_ns is not None], default=None)

    def pending(self) -> int:
        return len(self._book)

    def refresh_stats(self) -> None:
        """Bring what follows from other state up to date, before it is read."""
        self._accounts.refresh(self._now_ns, self.cluster, self._book)

    def check(self) -> None:
        """Pages add up; every request is queued or in exactly one pending action."""
        self.cluster.check()
        self.scheduler.check()
        self._book.check(self._actions.requests(), len(self.scheduler))

    def _submit(self, now_ns: int, sender: str, submit: Submit, arrival_ns: int) -> None:
        if self._book.find(sender, submit.id) or sender not in self._peers:
            return
        if (spec := self.cluster.specs.get(submit.model)) is None:
            outcome = Outcome(submit.id, int(Status.UNKNOWN_MODEL), f"model {submit.model!r}: not served now")
            self.out.append(Out(sender, outcome))
            return
        back_ns = self.settings.margin_ns + (self.cluster.returns.high(now_ns) or 0)
        deadline_ns = arrival_ns + submit.budget_ns - min(back_ns, submit.budget_ns // BACK_SHARE)
        self._enqueue(now_ns, self._book.enter(sender, submit, spec, arrival_ns, deadline_ns))

    def _again(self, now_ns: int, requests: list[Request]) -> None:
        """Their worker is gone or hangs: it counts as an attempt, for it may have been because of them."""
        for request in requests:
            request.attempts += 1
            self._enqueue(now_ns, request)

    def _enqueue(self, now_ns: int, request: Request) -> None:
        """Queue a new request or one whose action came to nothing; it ends if nobody can run its model any more."""
        request.action_id = UNPLACED
        request.spec = self.cluster.specs.get(request.model, request.spec)
        most_rows = request.spec.max_batch
        if not self.cluster.known(request.model):
            self._finish(request, *self.repository.why_not(request.model))
        elif request.attempts >= ATTEMPTS:
            self._finish(request, Status.LOST, f"{ATTEMPTS} attempts failed")
        elif not 1 <= request.rows <= most_rows:
            self._finish(request, Status.INVALID_INPUT, f"rows: got {request.rows}, wanted 1 to {most_rows}")
        elif len(self.scheduler) >= self.settings.max_queued:
            self._finish(request, Status.REFUSED, f"{self.settings.max_queued} requests are queued already")
        elif refusal := self.scheduler.add(now_ns, request, self.cluster):
            self._refuse(refusal)

    def _refuse(self, refusal: Refusal) -> None:
        spec = refusal.request.spec
        self.stats.count("horologe_refused_total", spec.name, spec.version, refusal.reason)
        self._finish(refusal.request, Status.REFUSED, refusal.told(), max(0, refusal.retry_after_ns))

    def _finish(self, request: Request, status: Status, reason: str = "", retry_after_ns: int = 0) -> None:
        """The one end of a request. OK is silent: the worker's outputs are the answer."""
        request.action_id = FINISHED
        self._book.leave(request)
        if status not in (Status.OK, Status.CANCELLED):
            self.out.append(Out(request.submitter, Outcome(request.submit_id, int(status), reason, retry_after_ns)))

    def _cancel(self, now_ns: int, sender: str, submit_ids: Sequence[int]) -> None:
        for request in filter(None, [self._book.find(sender, submit_id) for submit_id in dict.fromkeys(submit_ids)]):
            if request.queued:  # else its action goes on without it
                self.scheduler.remove(now_ns, request, self.cluster)
            self._finish(request, Status.CANCELLED)
        self._arrived = [one for one in self._arrived if one[0] != sender or one[1].id not in submit_ids]

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
        self._settle(now_ns, action, result)

    def _settle(self, now_ns: int, action: Action, result: Result) -> None:
        """Each row of an INFER to its end, or back to the queue."""
        failed = {row.id: row.status for row in result.rows}
        for place, request in enumerate(action.requests):
            if request.action_id != action.id:  # answered since, or planned elsewhere
                continue
            status = failed.get(place, result.status)
            if status in (Status.OK, Status.FAILED):  # both are told by the worker's Outputs
                self._finish(request, Status.OK)
            else:
                request.attempts += status != Status.TOO_LATE  # not run at all: as often as its deadline allows
                self._enqueue(now_ns, request)

    def _register(self, now_ns: int, sender: str, message: Register) -> None:
        if worker := self.cluster.workers.get(sender):
            self.out += self.repository.registered(worker, message)
            self._actions.adopt(now_ns, worker, message)

    def _told(self, now_ns: int, sender: str, message: Pong | Drain) -> None:
        """A worker's clock, or that it takes nothing more."""
        if worker := self.cluster.workers.get(sender):
            if isinstance(message, Drain):
                worker.draining = True
            else:
                self.cluster.clock(worker, message.sent_ns, message.peer_ns, now_ns)

    def _joined(self, now_ns: int, message: Joined) -> None:
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
            self._again(now_ns, self._actions.lost_with(address))
            self.out.extend(self.repository.changed())
            return
        self._cancel(now_ns, address, self._book.of(address))
