"""The frontend: takes requests, keeps their tensors until a worker is named, and gives each exactly one answer.

Predict -> validate, stage, arm the deadline -> Query to the selector; Dispatch -> ship to the worker;
Answer, or the deadline plus a grace -> `_finish`, the only place that removes a request. Where an application has
declared a default, that is the answer if the selector has none just before the deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import ms
from horologe_common.core.protocol import Gone, Joined, Out, role
from horologe_common.core.staging import Staging
from horologe_common.status import HorologeError, InvalidInput, Refused, Status
from horologe_common.wire import Answer, Applications, Cancel, Dispatch, Predict, Release
from horologe_frontend.core.applications import DeclaredApplications
from horologe_frontend.core.catalogue import ModelCatalogue
from horologe_frontend.core.default_lead import DefaultLead
from horologe_frontend.core.feedback import FeedbackForwarder
from horologe_frontend.core.forwarding import CallForwarder
from horologe_frontend.core.requests import (
    OpenRequests,
    Request,
    RequestBuilder,
    answer_or_default,
    default_answer,
    select_outputs,
    timeout_answer,
    with_client_id,
)
from horologe_frontend.core.retained_inputs import RetainedInputs
from horologe_frontend.core.sampling import RequestSampler
from horologe_frontend.core.selector_routing import SelectorRouter
from horologe_frontend.core.stats import RequestMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_frontend.settings import FrontendSettings

    Handler = Callable[[int, str, Any, Sequence[Buffer]], None]


class Frontend:
    """Core of the frontend. `digest` hashes a request's bytes for the prediction cache."""

    def __init__(
        self, address: str, settings: FrontendSettings, digest: Callable[[bytes, Sequence[Buffer]], bytes]
    ) -> None:
        self.address = address
        self.settings = settings
        self.out: list[Out] = []
        self.catalogue = ModelCatalogue()
        self.declared = DeclaredApplications(self.catalogue)
        self.staging = Staging(address, settings.staging_bytes)
        self._metrics = RequestMetrics(self.catalogue, self.declared)
        self.stats, self.stats_by_model = self._metrics.stats, self._metrics.stats_by_model
        self._selectors = selectors = SelectorRouter(self.declared)
        self._default_lead = DefaultLead(settings.default_lead_ns)
        self._builder = RequestBuilder(
            settings, self.catalogue, self.declared, self.staging, self._default_lead, digest
        )
        self._sampler = RequestSampler(settings, self.staging, self.catalogue)
        self._requests = OpenRequests()
        self._retained_inputs = RetainedInputs(self.staging)
        feedbacks = FeedbackForwarder(settings, self.declared, selectors, self._builder, self._retained_inputs)
        self._calls = CallForwarder(self.catalogue, self.declared, selectors, self._metrics, feedbacks, settings)
        self._workers: dict[str, bool] = {}
        self.draining = False
        self._from_clients: dict[type, Handler] = {
            Predict: self._on_predict,
            Cancel: self._on_cancel,
            Gone: self._gone,
        }
        self._from_peers: dict[type, Handler] = {
            Answer: self._on_answer,
            Applications: self._on_applications,
            Dispatch: self._on_dispatch,
            Release: self._on_release,
            Joined: self._joined,
        }

    def drain(self) -> None:
        """Refuse what comes from now on."""
        self.draining = True

    def drained(self) -> bool:
        return not self._requests

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """One message from a client, the selector, the controller or the loop."""
        trusted = not sender.startswith(("client/", "http/"))
        handler = self._from_clients.get(type(message))
        if handler is None and trusted:
            handler = self._from_peers.get(type(message))
        if handler:
            handler(now_ns, sender, message, buffers)
        else:
            self.out.extend(self._calls.handle(now_ns, sender, message, buffers, trusted))

    def tick(self, now_ns: int) -> None:
        """Answer what nobody else has answered: by its deadline plus the grace, or before it by the default."""
        self._default_lead.measure_delay(now_ns)
        for request in self._requests.pop_expired(now_ns):
            silence = timeout_answer(request, request.worker in self._workers)
            self._give_up(now_ns, request, *(default_answer(request) or (silence, ())))
        self.out.extend(self._calls.fail_expired(now_ns))
        self._retained_inputs.release_expired(now_ns)

    def wakeup_ns(self) -> int | None:
        timers = (self._requests, self._calls, self._retained_inputs.timers, self._default_lead)
        return min((at_ns for one in timers if (at_ns := one.next_ns()) is not None), default=None)

    def is_ready(self) -> bool:
        """Whether requests can be served: everything behind is reachable, and it is not draining."""
        return bool(self._selectors and self._calls.controller and self.catalogue.is_complete) and not self.draining

    def pending(self) -> int:
        return len(self._requests)

    def check(self) -> None:
        """Every staged input belongs to an open request or to a query the selector has not released."""
        self.staging.check()
        self._sampler.check()
        self._retained_inputs.check()
        self._calls.check()
        self._requests.check()
        assert all(key in self._requests or key in self._retained_inputs for key in self.staging.ids())

    def _on_predict(self, now_ns: int, client: str, message: Predict, buffers: Sequence[Buffer]) -> None:
        try:
            request = self._create_request(now_ns, client, message, buffers)
        except HorologeError as error:
            self._metrics.count_rejected(message, error.status)
            self.out.append(Out(client, Answer(message.id, int(error.status), (), error.reason, error.retry_after_ns)))
            return
        self._requests.add(request)
        self._send_query(now_ns, request)

    def _create_request(self, now_ns: int, client: str, message: Predict, buffers: Sequence[Buffer]) -> Request:
        """A request, its inputs staged. Raises what the client did wrong, or `Refused`."""
        if self._requests.find_by_client_id(client, message.id):
            raise InvalidInput(f"id: got {message.id}, which is still open")
        if self.draining:
            raise Refused("draining", retry_after_ns=ms(1000))
        if len(self._requests) >= self.settings.max_pending:
            raise Refused(f"{self.settings.max_pending} requests are open already", retry_after_ns=ms(100))
        return self._builder.create_request(now_ns, client, message, buffers)

    def _send_query(self, now_ns: int, request: Request) -> None:
        """Ask a selector. Without one, `_joined` will, or where none knows the application, `_announced`."""
        request.selector, request.worker = self._selectors.route_query(request.query), ""
        if request.selector:
            budget_ns = min(request.deadline_ns, request.give_up_ns) - now_ns
            query = request.query
            if budget_ns != query.budget_ns:
                query = msgspec.structs.replace(query, budget_ns=budget_ns)
            self.out.append(Out(request.selector, query))

    def _on_answer(self, now_ns: int, selector: str, message: Answer, buffers: Sequence[Buffer]) -> None:
        request = self._requests.find_request(message.id)
        if request is None or request.selector != selector:
            return
        self._finish(now_ns, request, *answer_or_default(request, message, buffers))
        if message.lingers:
            self._retain_inputs(request)
        else:
            self.staging.release(request.id)

    def _retain_inputs(self, request: Request) -> None:
        """The inputs of an answered request are still needed."""
        self._retained_inputs.retain(request.id, request.selector, request.deadline_ns + self.settings.retain_inputs_ns)

    def _finish(self, now_ns: int, request: Request, answer: Answer, buffers: Sequence[Buffer] = ()) -> None:
        """The one end of a request: remove it, count it, answer its client."""
        self._requests.remove(request)
        if answer.status == Status.OK and now_ns > request.deadline_ns:
            answer = msgspec.structs.replace(answer, status=int(Status.LATE), reason="finished after the deadline")
        if request.outputs:
            answer, buffers = select_outputs(answer, buffers, request.outputs)
        self._metrics.count_finished(now_ns, request, answer)
        if answer.status != Status.CANCELLED:
            self.out.append(Out(request.client, with_client_id(answer, request.client_id), buffers))
        if self._sampler.profiler:
            self.out += self._sampler.sample_request(now_ns, request, answer)

    def refresh_stats(self) -> None:
        """Bring the metrics that follow from `statistics` up to date, before they are read."""
        self.stats_by_model.publish(self.stats)
        self.stats.set("horologe_staged_bytes", to=self.staging.held_bytes)

    def _give_up(self, now_ns: int, request: Request, answer: Answer, buffers: Sequence[Buffer] = ()) -> None:
        """End a request that the selector still works on: its inputs stay until released."""
        self._finish(now_ns, request, answer, buffers)
        if request.selector in self._selectors:
            self._retain_inputs(request)
            self.out.append(Out(request.selector, Cancel((request.id,))))
        else:
            self.staging.release(request.id)

    def _on_cancel(self, now_ns: int, client: str, message: Cancel, buffers: Sequence[Buffer]) -> None:
        for client_id in message.ids:
            if request := self._requests.find_by_client_id(client, client_id):
                answer = Answer(request.id, int(Status.CANCELLED), (), "cancelled by the client")
                self._give_up(now_ns, request, answer)

    def _on_release(self, now_ns: int, selector: str, message: Release, buffers: Sequence[Buffer]) -> None:
        """Of a selector that was asked; one that was left for another knows nothing of what that one needs."""
        for input_id in message.ids:
            request = self._requests.find_request(input_id)
            if request is None or request.selector == selector:
                self._retained_inputs.release(input_id, selector)

    def _on_dispatch(self, now_ns: int, controller: str, dispatch: Dispatch, buffers: Sequence[Buffer]) -> None:
        for input_id in dispatch.input_ids:
            if request := self._requests.find_request(input_id):
                request.worker = dispatch.worker
        self.out.append(self.staging.ship(dispatch))

    def _on_applications(self, now_ns: int, selector: str, message: Applications, buffers: Sequence[Buffer]) -> None:
        """By this selector; or an answer of it."""
        self.out.extend(self._calls.handle(now_ns, selector, message, buffers, True))
        if message.id == 0:
            self._send_unassigned(now_ns)

    def _send_unassigned(self, now_ns: int) -> None:
        """What no selector that is there has been asked."""
        for request in self._requests:
            if request.selector not in self._selectors:
                self._send_query(now_ns, request)

    def _joined(self, now_ns: int, sender: str, message: Joined, buffers: Sequence[Buffer]) -> None:
        address = message.address
        match role(address):
            case "selector":
                self._selectors.add_selector(address)
                self._send_unassigned(now_ns)
            case "controller":
                self._calls.controller = address
            case "worker":
                self._workers[address] = True
            case "profiler":
                self._sampler.profiler = address

    def _gone(self, now_ns: int, sender: str, message: Gone, buffers: Sequence[Buffer]) -> None:
        address = message.address
        match role(address):
            case "selector":
                self._selectors.remove_selector(address)
                self._retained_inputs.release_selector(address)
                self.out.extend(self._calls.fail_selector(address))
                self._send_unassigned(now_ns)
            case "controller":
                if address == self._calls.controller:
                    self._calls.controller = ""
            case "worker":
                self._workers.pop(address, None)
            case "profiler":
                self._sampler.remove_profiler(address)
            case _:
                self._on_cancel(now_ns, address, Cancel(self._requests.client_ids(address)), ())
