"""Life of a request: queued, refused or given to an action, and finished exactly once.

`RequestLifecycle._finish` is the only place that removes a request, and it sends the outcome.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import Out
from horologe_common.status import Status
from horologe_common.wire import Outcome
from horologe_controller.core.requests.request import FINISHED, UNPLACED, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from horologe_common.core.instruments import Stats
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Result, Submit
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.model_catalogue import ModelCatalogue
    from horologe_controller.core.scheduling.scheduler import Refusal, Scheduler
    from horologe_controller.settings import ControllerSettings

ATTEMPTS = 3
"""Limit of attempts per request. After two lost workers, the request itself may be the reason."""
RETURN_PART = 4
"""At most 1/4 of a budget is reserved for the return latency: one stalled result must not refuse requests that have
enough time."""


class RequestTable:
    """Open requests, by the controller's id and by (submitter, submit id)."""

    def __init__(self) -> None:
        self._open: dict[int, Request] = {}
        self._by_submit: dict[tuple[str, int], Request] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._open.values())

    def create_request(
        self, sender: str, submit: Submit, spec: ModelSpec, arrival_ns: int, deadline_ns: int
    ) -> Request:
        self._last_id += 1
        request = Request(
            self._last_id, sender, submit.id, spec, submit.model, submit.rows, submit.holder, submit.input_id,
            arrival_ns, deadline_ns, submit.best_effort, submit.shape_key, submit.length, submit.application,
            submit.solo,
        )  # fmt: skip
        if submit.solo:
            request.shape_key = -request.id  # unique, so that the request is never batched with others
        self._open[request.id] = self._by_submit[sender, submit.id] = request
        return request

    def remove_request(self, request: Request) -> None:
        del self._open[request.id]
        del self._by_submit[request.submitter, request.submit_id]

    def find_request(self, submitter: str, submit_id: int) -> Request | None:
        return self._by_submit.get((submitter, submit_id))

    def submit_ids_of(self, submitter: str) -> list[int]:
        return [submit_id for address, submit_id in self._by_submit if address == submitter]

    def queued_for(self, models: Mapping[str, bool]) -> list[Request]:
        """Return the queued requests for these models."""
        return [request for request in self._open.values() if request.queued and request.model in models]

    def check(self, placed: Sequence[Request], queued: int) -> None:
        """Assert that every open request is queued or in exactly one pending action."""
        assert len(placed) == len({request.id for request in placed})
        assert all(request.id in self._open for request in placed)
        assert len(self._open) == len(self._by_submit) == len(placed) + queued


class RequestLifecycle:
    """All requests of the controller.

    Invariant: every Submit is answered once, by an Outcome or by a worker's Outputs, unless it is cancelled.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        cluster: Cluster,
        scheduler: Scheduler,
        catalogue: ModelCatalogue,
        stats: Stats,
        post: Callable[[Out], None],
    ) -> None:
        self.table = RequestTable()
        self._settings = settings
        self._cluster = cluster
        self._scheduler = scheduler
        self._catalogue = catalogue
        self._stats = stats
        self._post = post
        self._submitted: list[tuple[str, Submit, int]] = []
        """(sender, message, arrival) of Submits that are not admitted yet."""

    def buffer_submit(self, now_ns: int, sender: str, submit: Submit) -> None:
        """Buffer a Submit. `admit_buffered` queues or refuses it at the end of the turn."""
        self._submitted.append((sender, submit, now_ns))

    def admit_buffered(self, now_ns: int, submitters: Container[str]) -> None:
        """Queue or refuse the buffered Submits of connected submitters. Others are dropped: nobody waits for them."""
        for sender, submit, arrival_ns in self._submitted:
            if sender in submitters and not self.table.find_request(sender, submit.id):
                self._admit_submit(now_ns, sender, submit, arrival_ns)
        self._submitted.clear()

    def _admit_submit(self, now_ns: int, sender: str, submit: Submit, arrival_ns: int) -> None:
        if (spec := self._cluster.specs.get(submit.model)) is None:
            outcome = Outcome(submit.id, int(Status.UNKNOWN_MODEL), f"model {submit.model!r}: not served now")
            self._post(Out(sender, outcome))
            return
        return_ns = self._settings.margin_ns + (self._cluster.returns.high_quantile(now_ns) or 0)
        deadline_ns = arrival_ns + submit.budget_ns - min(return_ns, submit.budget_ns // RETURN_PART)
        self._enqueue(now_ns, self.table.create_request(sender, submit, spec, arrival_ns, deadline_ns))

    def requeue_revised(self, now_ns: int, models: Mapping[str, bool]) -> None:
        """Queue the requests for these models again, by their new specs. Requests that nobody can run are finished."""
        requests = self.table.queued_for(models)
        for request in requests:
            self._scheduler.remove(now_ns, request, self._cluster)
        for request in requests:
            self._enqueue(now_ns, request)

    def retry_requests(self, now_ns: int, requests: Iterable[Request], failure: Status) -> None:
        """Requeue the requests of a worker that died (LOST) or hangs (LATE).

        This counts as an attempt, because the request itself may have crashed the worker.
        """
        for request in requests:
            request.attempts += 1
            request.failure = failure
            self._enqueue(now_ns, request)

    def _enqueue(self, now_ns: int, request: Request) -> None:
        """Queue a new request, or one whose action failed. Finish it if it cannot be run any more."""
        request.action_id = UNPLACED
        request.spec = self._cluster.specs.get(request.model, request.spec)
        max_rows, max_queued = request.spec.max_batch, self._settings.max_queued
        if not self._cluster.has_profile(request.model):
            self._finish(request, *self._catalogue.explain_unserved(request.model))
        elif request.attempts >= ATTEMPTS:
            self._finish(request, request.failure, f"{ATTEMPTS} attempts failed")
        elif not 1 <= request.rows <= max_rows:
            self._finish(request, Status.INVALID_INPUT, f"rows: got {request.rows}, wanted 1 to {max_rows}")
        elif len(self._scheduler) >= max_queued:
            self._finish(request, Status.REFUSED, f"{max_queued} requests are queued already")
        elif refusal := self._scheduler.add(now_ns, request, self._cluster):
            self.finish_refused(refusal)

    def finish_refused(self, refusal: Refusal) -> None:
        """Finish the request as REFUSED and count the reason."""
        spec = refusal.request.spec
        self._stats.count("horologe_refused_total", spec.name, spec.version, refusal.reason)
        self._finish(refusal.request, Status.REFUSED, refusal.describe(), max(0, refusal.retry_after_ns))

    def finish_batch(self, now_ns: int, action: Action, result: Result) -> None:
        """Finish or requeue each request of an INFER that has ended."""
        failed = {row.id: row.status for row in result.rows}
        for row, request in enumerate(action.requests):
            if request.action_id != action.id:  # finished already, or planned again in another action
                continue
            status = failed.get(row, result.status)
            if status in (Status.OK, Status.FAILED):  # the worker's Outputs carry either answer
                self._finish(request, Status.OK)
            else:
                if status != Status.TOO_LATE:  # retried while the deadline allows
                    request.attempts += 1
                    request.failure = Status.REFUSED  # the worker did not run it
                self._enqueue(now_ns, request)

    def cancel_requests(self, now_ns: int, sender: str, submit_ids: Sequence[int]) -> None:
        """Cancel requests that their submitter does not wait for any more."""
        for submit_id in dict.fromkeys(submit_ids):
            if request := self.table.find_request(sender, submit_id):
                if request.queued:  # otherwise its action goes on without it
                    self._scheduler.remove(now_ns, request, self._cluster)
                self._finish(request, Status.CANCELLED)
        self._submitted = [item for item in self._submitted if item[0] != sender or item[1].id not in submit_ids]

    def _finish(self, request: Request, status: Status, reason: str = "", retry_after_ns: int = 0) -> None:
        """Remove a request and send its outcome. OK sends nothing: the worker's Outputs are the answer."""
        request.action_id = FINISHED
        self.table.remove_request(request)
        if status not in (Status.OK, Status.CANCELLED):
            self._post(Out(request.submitter, Outcome(request.submit_id, int(status), reason, retry_after_ns)))
