"""Life of a request: queued, refused or given to an action, and finished exactly once.

`RequestLifecycle._finish` removes a request and sends its outcome. `finish_batch` removes requests whose answer is in
the worker's Outputs. Nothing else removes a request.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.core.faults import for_each, raise_faults
from horologe_common.core.protocol import Out
from horologe_common.models import FIRST_STEP, NEXT_STEP
from horologe_common.status import Status
from horologe_common.wire import Outcome
from horologe_controller.core.actions import ActionMetrics
from horologe_controller.core.activity_recorder import ActivityRecorder
from horologe_controller.core.event_recorder import EventRecorder
from horologe_controller.core.requests.awaited_models import AwaitedModels
from horologe_controller.core.requests.request import Request, RequestTable
from horologe_controller.core.scheduling.decisions import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from horologe_common.models import ModelSpec
    from horologe_common.wire import Result, Submit
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.model_catalogue import ModelCatalogue
    from horologe_controller.core.scheduling.planner import Planner
    from horologe_controller.settings import ControllerSettings

ATTEMPTS = 3
"""Limit of attempts per request, without those that have not begun. After two lost workers, the request itself may be
the reason."""
ROWS_SHIFT = 40
"""Requests of several rows for a dynamic model have a queue for each number of rows, which is above these bits of the
shape key. Batches by distributions have one row for each request: a mixed queue would be planned by the profile."""


@lru_cache(1024)
def step_spec(spec: ModelSpec, size: int) -> ModelSpec:
    """Return the spec of a model that streams, for queues of its first or of its later steps: see `FIRST_STEP`."""
    return msgspec.structs.replace(spec, batch_sizes=(size,))


class RequestObservers(NamedTuple):
    """Where the fates of requests are recorded."""

    metrics: ActionMetrics
    events: EventRecorder
    activity: ActivityRecorder


class RequestLifecycle:
    """All requests of the controller.

    Invariant: every Submit is answered once, by an Outcome or by a worker's Outputs, unless it is cancelled.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        cluster: Cluster,
        scheduler: Planner,
        catalogue: ModelCatalogue,
        post: Callable[[Out], None],
        observers: RequestObservers,
    ) -> None:
        self.table = RequestTable()
        self._settings = settings
        self._cluster = cluster
        self._scheduler = scheduler
        self._catalogue = catalogue
        self._refusals = observers.metrics.refusals
        self._slack = observers.metrics.admission_slack
        self._post = post
        self._events = observers.events
        self._activity = observers.activity
        self.submitted: list[tuple[str, Submit, int]] = []
        """(sender, message, arrival) of Submits. `admit_buffered` queues or refuses them at the end of the turn."""
        self._lasting: dict[str, Refusal] = {}
        """Last refusal of each model that frontends may repeat. Holds no more models than are served."""
        self.awaited = AwaitedModels(catalogue, settings.max_queued, post)

    def admit_buffered(self, now_ns: int, submitters: Container[str]) -> None:
        """Queue or refuse the buffered Submits of connected submitters. Drop the others: no client waits for them."""
        if not self.submitted:
            return
        submitted, self.submitted = self.submitted, []
        table, specs = self.table, self._cluster.specs
        return_ns = self._cluster.latency.returns.high_quantile(now_ns) or 0
        groups: dict[tuple[str, int, bool], list[Request]] = {}
        for sender, submit, arrival_ns in submitted:
            if sender not in submitters or submit.id in (open_requests := table.of_submitter(sender)):
                continue
            spec = specs.get(submit.model)
            deadline_ns = arrival_ns + self._own_budget_ns(now_ns, submit, spec, return_ns)
            if spec is None:
                self.awaited.hold_or_reject((sender, submit, arrival_ns), deadline_ns)
                continue
            if not submit.best_effort:
                self._slack.observe(deadline_ns - now_ns)
            request = open_requests[submit.id] = table.create_request(sender, submit, spec, arrival_ns, deadline_ns)
            key = request.model, request.shape_key, request.best_effort
            if (group := groups.get(key)) is None:
                groups[key] = [request]
            else:
                group.append(request)
        errors = []
        for group in groups.values():
            if self._events.active:
                self._events.record_arrivals(now_ns, group)
            try:
                self._enqueue(now_ns, group)
            except Exception as error:
                errors.append(error)
        if errors:
            raise_faults(errors)

    def _own_budget_ns(self, now_ns: int, submit: Submit, spec: ModelSpec | None, return_ns: int) -> int:
        """Return the time until a request's execution must end. The rest of its budget is for the return."""
        exec_ns, cluster = 0, self._cluster
        if spec is not None:
            _, exec_ns = cluster.cached_exec_ns(now_ns, submit.model, spec.batch_sizes[0])
        reserved_ns = cluster.latency.reserved_ns(
            now_ns, submit.budget_ns, exec_ns, return_ns, self._settings.margin_ns
        )
        return submit.budget_ns - reserved_ns

    def admit_awaited(self) -> None:
        """Admit the Submits whose model can be served by now, or cannot be awaited any more."""
        self.submitted += self.awaited.pop_admissible(self._cluster.specs)

    def requeue_revised(self, now_ns: int, models: Mapping[str, bool]) -> None:
        """Queue the requests for these models again, by their new specs. Finish those that no worker can run."""
        requests = self.table.queued_for(models)
        for request in requests:
            self._scheduler.remove(request)
        for_each(requests, lambda request: self._enqueue(now_ns, [request]))

    def retry_requests(self, now_ns: int, requests: Iterable[Request], failure: Status) -> None:
        """Requeue the requests of a worker that died (LOST) or hangs (LATE).

        This counts as an attempt, because the request itself may have crashed the worker.
        """

        def retry(request: Request) -> None:
            request.attempts += 1
            request.failure, request.attempt_reason = failure, ""
            self._enqueue(now_ns, [request])

        for_each(requests, retry)

    def _enqueue(self, now_ns: int, requests: list[Request]) -> None:
        """Queue requests for one queue: new, or those whose action failed. Finish those that cannot be run any more."""
        model, spec = requests[0].model, requests[0].spec
        spec = self._cluster.specs.get(model, spec)
        max_rows, served = spec.max_batch, self._cluster.has_profile(model)
        largest, dynamic = self._cluster.admitted.get(model, spec), model in self._cluster.distributions
        valid: list[Request] = []
        for request in requests:
            request.action_id = 0
            request.spec = spec
            if not served:
                self._finish(request, *self._catalogue.explain_unserved(model))
            elif request.attempts >= ATTEMPTS:
                reason = f": {request.attempt_reason}" if request.attempt_reason else ""
                self._finish(request, request.failure, f"{ATTEMPTS} attempts failed{reason}")
            elif spec.streams or request.step is not None:
                self._enqueue_step(now_ns, request)
            elif max_rows < request.rows <= largest.max_batch:  # more than the plan's batch: it runs alone
                request.spec, request.shape_key = largest, -request.id
                self._queue_requests(now_ns, [request])
            elif dynamic and 1 < request.rows <= max_rows and request.shape_key >= 0:
                request.shape_key |= request.rows << ROWS_SHIFT
                self._queue_requests(now_ns, [request])
            elif not 1 <= request.rows <= max_rows:
                self._finish(request, Status.INVALID_INPUT, f"rows: got {request.rows}, wanted 1 to {max_rows}")
            else:
                valid.append(request)
        self._queue_requests(now_ns, valid)

    def _enqueue_step(self, now_ns: int, request: Request) -> None:
        """Queue a step of a stream. A first step may run again elsewhere, a later one only where its state is."""
        spec, step = request.spec, request.step
        if step is None or not spec.streams:
            got, wanted = ("a stream", "one answer") if step else ("one answer", "a stream")
            reason = f"model {request.model}: got a request for {got}, wanted one for {wanted}"
            self._finish(request, Status.INVALID_INPUT, reason)
            return
        if step.number == 1:
            request.spec, request.rows = step_spec(spec, FIRST_STEP), FIRST_STEP
        else:
            share = self._cluster.find_share(step.worker, step.share)
            if share is None or request.model not in share.resident:
                self._finish_lost_step(request, step.worker)
                return
            request.spec, request.share, request.shape_key = step_spec(spec, NEXT_STEP), share, share.index
        self._queue_requests(now_ns, [request])

    def finish_stranded(self) -> None:
        """Finish the queued steps of streams whose share does not hold the model any more."""
        for request in [request for request in self.table if request.queued]:
            if (share := request.share) is not None and request.model not in share.resident:
                self._scheduler.remove(request)
                self._finish_lost_step(request, share.worker)

    def _finish_lost_step(self, request: Request, worker: str) -> None:
        self._finish(request, Status.LOST, f"{worker} does not keep the state of the stream any more")

    def _queue_requests(self, now_ns: int, requests: list[Request]) -> None:
        """Queue or refuse requests for one queue, up to `controller.max_queued`."""
        while requests and (room := self._settings.max_queued - len(self._scheduler)) > 0:
            for refusal in self._scheduler.add(now_ns, requests[:room]):
                self.finish_refused(now_ns, refusal)
            requests = requests[room:]
        for request in requests:
            self.finish_refused(now_ns, Refusal(request, Reason.QUEUE_FULL))

    def finish_refused(self, now_ns: int, refusal: Refusal) -> None:
        """Finish the request as REFUSED and count the reason; as LOST or LATE if a worker may have run it."""
        request, sentence = refusal.request, refusal.describe()
        if self._events.active:
            self._events.record_refusal(request)
        if self._activity.active:
            self._activity.record_refusal(now_ns, refusal)
        if request.failure == Status.REFUSED:
            self._refusals.count(request.spec.name, request.spec.version, refusal.reason)
        else:
            failed = "its worker disconnected" if request.failure == Status.LOST else "its action hung"
            sentence = f"{failed}, and it was not run again: {sentence}"
        if request.failure == Status.REFUSED and refusal.place_ns:
            self._keep_lasting(refusal)
        retry_ns, refuses_ns = max(0, refusal.retry_after_ns), max(0, refusal.refuses_ns)
        self._finish(request, request.failure, sentence, retry_ns, refuses_ns, refusal.place_ns)

    def _keep_lasting(self, refusal: Refusal) -> None:
        self._lasting[refusal.request.model] = refusal
        if len(self._lasting) > len(self._cluster.specs):
            self._lasting = {model: kept for model, kept in self._lasting.items() if model in self._cluster.specs}

    def count_refused_again(self, now_ns: int, counts: Iterable[tuple[str, int]]) -> None:
        """Count requests by model that a frontend has refused like the last refusal that lasts."""
        for model, count in counts:
            if (refusal := self._lasting.get(model)) is None:  # its model is not served any more
                continue
            request = refusal.request
            self._refusals.count(request.spec.name, request.spec.version, refusal.reason, count)
            if self._events.active:
                self._events.record_arrivals(now_ns, [request] * count)
                self._events.record_refusal(request, count)
            if self._activity.active:
                for _ in range(count):
                    self._activity.record_refusal(now_ns, refusal)
            self._scheduler.record_refused_again(now_ns, refusal, count)

    def finish_batch(self, now_ns: int, action: Action, result: Result) -> None:
        """Finish or requeue each request of an INFER that has ended."""
        failed = {row.id: (row.status, row.reason) for row in result.rows}
        batch_status, retried = result.status, []
        answered = Status.OK, Status.FAILED  # the answer is in the worker's Outputs
        for row, request in enumerate(action.requests):
            if request.action_id != action.id:  # finished already, or planned again because the action was overdue
                if batch_status == Status.CANCELLED:
                    request.withdraw_attempt()
                continue
            status, reason = failed.get(row, (batch_status, result.reason))
            if status == Status.LOST and request.step is not None:
                self._finish(request, Status.LOST, result.reason)
                continue
            if status in answered:
                request.action_id = 0
                self.table.remove_request(request)
                continue
            if status != Status.TOO_LATE:  # retried while the deadline allows
                request.attempts += 1
                request.attempt_reason = reason
            retried.append(request)
        if retried:
            for_each(retried, lambda request: self._enqueue(now_ns, [request]))

    def cancel_requests(self, sender: str, submit_ids: Sequence[int]) -> None:
        """Cancel requests that their submitter does not wait for any more."""
        self.awaited.pop_cancelled(sender, submit_ids)
        self.submitted = [item for item in self.submitted if item[0] != sender or item[1].id not in submit_ids]
        requests = self.table.of_submitter(sender)
        cancelled = [requests[submit_id] for submit_id in dict.fromkeys(submit_ids) if submit_id in requests]
        for_each(cancelled, self._cancel)

    def _cancel(self, request: Request) -> None:
        if request.queued:  # otherwise its action continues without it
            self._scheduler.remove(request)
        self._finish(request, Status.CANCELLED)

    def cancel_submitter(self, submitter: str) -> None:
        """Cancel all requests of a submitter that has disconnected."""
        self.cancel_requests(submitter, list(self.table.of_submitter(submitter)))
        self.awaited.pop_sender(submitter)
        self.table.discard_submitter(submitter)

    def _finish(self, request: Request, status: Status, reason: str = "", *times_ns: int) -> None:
        """Remove a request and send its outcome."""
        request.action_id = 0
        self.table.remove_request(request)
        if status != Status.CANCELLED:
            self._post(Out(request.submitter, Outcome(request.submit_id, int(status), reason, *times_ns)))
