"""The requests: each is queued, refused or given to an action, and has one end.

`_finish` is the only place that removes a request from the book, and it answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Outcome
from horologe_controller.core.requests.request import FINISHED, UNPLACED
from horologe_controller.core.requests.request_table import Book

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from horologe_common.core.counters import Stats
    from horologe_common.wire import Result, Submit
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.model_catalogue import Repository
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.scheduler import Refusal, Scheduler
    from horologe_controller.settings import ControllerSettings

ATTEMPTS = 3
"""A request is planned this often at most: after losing a worker twice, something about it may be the reason."""
BACK_SHARE = 4
"""At most this part of a budget is kept for the way back: one stalled result must not refuse what has time enough."""


class Requests:
    """Law: every Submit taken is answered once, by an Outcome or a worker's Outputs, unless it is cancelled."""

    def __init__(
        self,
        settings: ControllerSettings,
        cluster: Cluster,
        scheduler: Scheduler,
        repository: Repository,
        stats: Stats,
        post: Callable[[Out], None],
    ) -> None:
        self.book = Book()
        self._settings = settings
        self._cluster = cluster
        self._scheduler = scheduler
        self._repository = repository
        self._stats = stats
        self._post = post
        self._arrived: list[tuple[str, Submit, int]] = []

    def arrive(self, now_ns: int, sender: str, submit: Submit) -> None:
        """Take note; `take_in` does the rest."""
        self._arrived.append((sender, submit, now_ns))

    def take_in(self, now_ns: int, submitters: Container[str]) -> None:
        """Queue or refuse what has arrived from `submitters`, who are there; nobody waits for the rest."""
        for sender, submit, arrival_ns in self._arrived:
            if sender in submitters and not self.book.find(sender, submit.id):
                self._submit(now_ns, sender, submit, arrival_ns)
        self._arrived.clear()

    def _submit(self, now_ns: int, sender: str, submit: Submit, arrival_ns: int) -> None:
        if (spec := self._cluster.specs.get(submit.model)) is None:
            outcome = Outcome(submit.id, int(Status.UNKNOWN_MODEL), f"model {submit.model!r}: not served now")
            self._post(Out(sender, outcome))
            return
        back_ns = self._settings.margin_ns + (self._cluster.returns.high_quantile(now_ns) or 0)
        deadline_ns = arrival_ns + submit.budget_ns - min(back_ns, submit.budget_ns // BACK_SHARE)
        self._enqueue(now_ns, self.book.enter(sender, submit, spec, arrival_ns, deadline_ns))

    def revise(self, now_ns: int) -> None:
        """Requests for models that have changed are queued anew, or end."""
        requests = self.book.queued(self._cluster.revised)
        self._cluster.revised.clear()
        for request in requests:
            self._scheduler.remove(now_ns, request, self._cluster)
        for request in requests:
            self._enqueue(now_ns, request)

    def again(self, now_ns: int, requests: Iterable[Request]) -> None:
        """Their worker is gone or hangs: it counts as an attempt, for it may have been because of them."""
        for request in requests:
            request.attempts += 1
            self._enqueue(now_ns, request)

    def _enqueue(self, now_ns: int, request: Request) -> None:
        """Queue a new request or one whose action came to nothing; it ends if nobody can run its model any more."""
        request.action_id = UNPLACED
        request.spec = self._cluster.specs.get(request.model, request.spec)
        most_rows, most_queued = request.spec.max_batch, self._settings.max_queued
        if not self._cluster.known(request.model):
            self._finish(request, *self._repository.why_not(request.model))
        elif request.attempts >= ATTEMPTS:
            self._finish(request, Status.LOST, f"{ATTEMPTS} attempts failed")
        elif not 1 <= request.rows <= most_rows:
            self._finish(request, Status.INVALID_INPUT, f"rows: got {request.rows}, wanted 1 to {most_rows}")
        elif len(self._scheduler) >= most_queued:
            self._finish(request, Status.REFUSED, f"{most_queued} requests are queued already")
        elif refusal := self._scheduler.add(now_ns, request, self._cluster):
            self.refuse(refusal)

    def refuse(self, refusal: Refusal) -> None:
        """The scheduler will not do it; it is not queued."""
        spec = refusal.request.spec
        self._stats.count("horologe_refused_total", spec.name, spec.version, refusal.reason)
        self._finish(refusal.request, Status.REFUSED, refusal.told(), max(0, refusal.retry_after_ns))

    def settle(self, now_ns: int, action: Action, result: Result) -> None:
        """An INFER has ended: each row to its end, or back to the queue."""
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

    def cancel(self, now_ns: int, sender: str, submit_ids: Sequence[int]) -> None:
        """Their submitter does not wait for them any more."""
        for request in filter(None, [self.book.find(sender, submit_id) for submit_id in dict.fromkeys(submit_ids)]):
            if request.queued:  # else its action goes on without it
                self._scheduler.remove(now_ns, request, self._cluster)
            self._finish(request, Status.CANCELLED)
        self._arrived = [one for one in self._arrived if one[0] != sender or one[1].id not in submit_ids]

    def _finish(self, request: Request, status: Status, reason: str = "", retry_after_ns: int = 0) -> None:
        """The one end of a request. OK is silent: the worker's outputs are the answer."""
        request.action_id = FINISHED
        self.book.leave(request)
        if status not in (Status.OK, Status.CANCELLED):
            self._post(Out(request.submitter, Outcome(request.submit_id, int(status), reason, retry_after_ns)))
