"""The frontend: accepts requests, keeps their inputs until the outcome, and gives each exactly one answer.

1. Predict from a client: validate, stage the inputs, start the timer, send a Query to a selector.
2. Dispatch from the controller: ship the inputs to the worker.
3. Answer from the selector, or the timer: `_finish`, the only method that ends a request.

If the application has a default, the timer expires just before the deadline and the answer is the default. Otherwise
it expires at the deadline plus `frontend.grace_ns`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.core.faults import for_each
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected, key_of_client, role
from horologe_common.core.staging import StagedInputs
from horologe_common.pipelines import PIPELINE_RUNTIME
from horologe_common.status import HorologeError, Status
from horologe_common.wire import (
    Answer,
    Applications,
    Cancel,
    Dispatch,
    Drain,
    ItemsTaken,
    Models,
    Outcome,
    Outputs,
    Pong,
    Predict,
    RefusedAgain,
    Release,
    Settle,
)
from horologe_frontend.core.access import KeysReplaced
from horologe_frontend.core.answers import FAILURES, answer_failure, default_answer, select_outputs, timeout_answer
from horologe_frontend.core.application_requests import DeclaredApplications, DefaultLead
from horologe_frontend.core.forwarding import CallForwarder
from horologe_frontend.core.model_versions import ModelVersions
from horologe_frontend.core.pending_feedback import FeedbackForwarder
from horologe_frontend.core.plain_requests import PlainRequests
from horologe_frontend.core.readiness import ClientDrain, Readiness
from horologe_frontend.core.request_tracer import RequestTracer
from horologe_frontend.core.requests import ClientRequest, OpenRequests, RequestBuilder, client_name
from horologe_frontend.core.retained_inputs import RetainedInputs
from horologe_frontend.core.sampling import RequestSampler, SampleLimits
from horologe_frontend.core.selector_routing import SelectorRouter
from horologe_frontend.core.settling import Settling
from horologe_frontend.core.stats import RequestMetrics
from horologe_frontend.core.streamed_requests import StreamedRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_frontend.core.management import ManagementCall
    from horologe_frontend.settings import FrontendSettings

    MessageHandler = Callable[[int, str, Any, Sequence[Buffer]], None]
SAMPLE_LIMITS = SampleLimits()
CANCELLED = int(Status.CANCELLED)
HTTP = "http/"
"""Clients of HTTP and gRPC. Their keys are checked before a message is made."""
CLIENTS = ("client/", "user/", HTTP)


class Frontend:
    """Core of the frontend. `digest` hashes inputs for the prediction cache."""

    def __init__(
        self,
        address: str,
        settings: FrontendSettings,
        digest: Callable[[bytes, Sequence[Buffer]], bytes],
        samples: SampleLimits = SAMPLE_LIMITS,
    ) -> None:
        self.address = address
        self.settings = settings
        self.out: list[Out] = []
        self.catalogue = catalogue = ModelVersions()
        self.declared = declared = DeclaredApplications(catalogue)
        self.staging = staging = StagedInputs(address, settings.staging_bytes)
        self._metrics = RequestMetrics(catalogue, declared)
        self.stats, self.stats_by_model = self._metrics.stats, self._metrics.by_model
        self.stats_of = self._metrics.of_spec
        self._selectors = selectors = SelectorRouter(declared)
        self._default_lead = DefaultLead(settings.default_lead_ns)
        self._builder = builder = RequestBuilder(settings, catalogue, declared, staging, self._default_lead, digest)
        self.end_turn = builder.turn_limit.end_turn
        """See `TurnObserver`."""
        self._sampler = RequestSampler(settings, staging, catalogue, samples)
        self._requests = requests = OpenRequests(settings.max_pending)
        self._plain = PlainRequests(requests)
        self._streamed = StreamedRequests(requests, staging, settings)
        self._drain: ClientDrain | None = None
        self._retained_inputs = retained = RetainedInputs(staging, requests)
        feedback = FeedbackForwarder(settings, declared, selectors, builder, retained)
        self._calls = CallForwarder(catalogue, declared, selectors, self._metrics, feedback, settings)
        self._settling = Settling(requests)
        self.tracer: RequestTracer | None = None
        self.access = self._calls.access
        """What the keys of clients permit."""
        self._readiness = Readiness(catalogue, settings.ready_wait_ns)
        timers = (retained.timers, *self._calls.timers)
        self._wakeups: list[Callable[[], int | None]] = [requests.next_ns, *(one.smallest_priority for one in timers)]
        """Each returns the time of its earliest timer."""
        self._from_clients: dict[type, MessageHandler] = {
            Predict: self._on_predict,
            Cancel: self._on_cancel,
            ItemsTaken: self._on_items_taken,
            RefusedAgain: self._on_refused_again,
            Drain: self._on_drain,
            PeerConnected: self._on_peer_connected,
            PeerDisconnected: self._on_peer_disconnected,
        }
        self._from_peers: dict[type, MessageHandler] = {
            Answer: self._on_answer,
            Outputs: self._on_outputs,
            Outcome: self._on_outcome,
            Pong: self._plain.on_pong,
            Applications: self._on_announcement,
            Models: self._on_announcement,
            Dispatch: self._on_dispatch,
            Release: self._retained_inputs.on_release,
            Settle: self._settling.on_settle,
            KeysReplaced: self._on_keys_replaced,
        }

    def start_tracing(self, per_second: float, own_per_second: float) -> None:
        """See `Traces`."""
        self.tracer = RequestTracer(self.address, per_second, own_per_second, lambda out: self.out.append(out))

    def set_audit(self, audit: Callable[[ManagementCall], None]) -> None:
        """Pass the management calls of SDK clients to `audit` at their end."""
        self._calls.set_audit(audit)

    def drain(self) -> None:
        """Report not ready, and move the clients to another frontend."""
        self._drain = drain = ClientDrain(lambda out: self.out.append(out))
        self._wakeups.append(drain.next_ns)
        for request in self._requests:
            drain.notify_client(request.client)

    def drained(self) -> bool:
        """Return True if nothing is open, and the clients send nothing more."""
        drain = self._drain
        return not self._requests and not self._calls.pending() and (drain is None or drain.is_complete())

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Handle a message of a client or a peer. Messages that only peers may send are ignored from clients."""
        handler = self._from_clients.get(type(message))
        if handler is None:
            trusted = not sender.startswith(CLIENTS)
            handler = self._from_peers.get(type(message)) if trusted else None
            if handler is None:
                self.out.extend(self._calls.handle(now_ns, sender, message, buffers, trusted))
                return
        handler(now_ns, sender, message, buffers)

    def tick(self, now_ns: int) -> None:
        """End what has expired, and answer the Settles whose requests have ended."""
        if not self._readiness.is_settled:
            self._readiness.update(now_ns)
        if (wakeup_ns := self.wakeup_ns()) is not None and now_ns >= wakeup_ns:
            self._end_expired(now_ns)
        if self._settling.waiting:
            self.out.extend(self._settling.pop_settled())

    def _end_expired(self, now_ns: int) -> None:
        self._default_lead.measure_delay(now_ns)
        self.out.extend(self._calls.fail_expired(now_ns))
        self._retained_inputs.release_expired(now_ns)
        if self._drain:
            self._drain.expire(now_ns)
        if expired := self._requests.pop_expired(now_ns):
            for_each(expired, lambda request: self._give_up(now_ns, request, *self._answer_timeout(request)))

    def _answer_timeout(self, request: ClientRequest) -> tuple[Answer, Sequence[Buffer]]:
        """Return the answer to a request whose timer has expired: its default, or that of `timeout_answer`."""
        if default := default_answer(request):
            return default
        has_receiver = self._is_connected(request.receiver) if request.receiver else bool(self._selectors)
        in_driver = request.worker == request.receiver and request.worker in self._selectors
        workers = [request.worker] if in_driver else self.staging.workers
        return timeout_answer(request, workers, has_receiver and bool(self._calls.controller)), ()

    def _is_connected(self, receiver: str) -> bool:
        """Return whether a selector can still answer, or whether it is the controller."""
        return receiver in self._selectors or (receiver != "" and receiver == self._calls.controller)

    def wakeup_ns(self) -> int | None:
        """Return the time of the earliest timer, or None without timers."""
        earliest_ns = self._default_lead.timer_ns
        if (ready_ns := self._readiness.timer_ns) is not None and (earliest_ns is None or ready_ns < earliest_ns):
            earliest_ns = ready_ns
        for next_ns in self._wakeups:
            if (at_ns := next_ns()) is not None and (earliest_ns is None or at_ns < earliest_ns):
                earliest_ns = at_ns
        return earliest_ns

    def is_ready(self) -> bool:
        """Return whether the services are connected, the models have been settled, and the frontend does not drain."""
        connected = bool(self._selectors and self._calls.controller)
        return connected and self._readiness.is_settled and self._drain is None

    def pending(self) -> int:
        return len(self._requests)

    def find_open(self, client: str, client_id: int) -> ClientRequest | None:
        """Return the open request to which the client has given this id, or None."""
        return self._requests.find_by_client_id(client, client_id)

    def check(self) -> None:
        """Assert that every staged input belongs to an open request, or is retained for a selector."""
        self.staging.check()
        self._sampler.check()
        self._retained_inputs.check()
        self._calls.check()
        self._requests.check()
        assert all(key in self._requests or key in self._retained_inputs for key in self.staging.ids())

    def refresh_stats(self) -> None:
        """Update the computed metrics before they are exported."""
        self._metrics.refresh()
        self.access.refresh_counters(self.stats)
        self.stats.set("horologe_staged_bytes", to=self.staging.held_bytes)

    def _on_predict(self, now_ns: int, client: str, message: Predict, buffers: Sequence[Buffer]) -> None:
        try:
            name = client_name(self.address, client, message)
            if self._drain is not None:
                self._drain.admit_request(now_ns, client)
            if not (self.access.is_open or client.startswith(HTTP)):
                self.access.check_message(now_ns, key_of_client(client), message)
            self._requests.check_new(client, message.id, name)
            request = self._builder.create_request(now_ns, client, message, buffers, name)
        except HorologeError as error:
            self._metrics.count_rejected(message, error.status)
            self.out.append(Out(client, Answer(message.id, int(error.status), (), error.reason, error.retry_after_ns)))
            return
        self._requests.add(request)
        if self.tracer is not None:
            self.tracer.start_request(now_ns, request, message)
        self._send_query(now_ns, request)

    def _on_refused_again(self, now_ns: int, sender: str, message: RefusedAgain, _: Sequence[Buffer]) -> None:
        """Count what the gateway has refused without a Predict. The controller takes part in the count."""
        if sender.startswith(HTTP):
            self._metrics.count_refused_again(now_ns, message.counts)
            if self._calls.controller:
                self.out.append(Out(self._calls.controller, message))

    def _send_query(self, now_ns: int, request: ClientRequest) -> None:
        """Send the query to a selector. Without one, it waits until a selector connects or announces."""
        if request.is_plain:
            self._submit(now_ns, request)
            return
        query, selectors = request.query, self._selectors.connected
        is_pipeline = request.spec.runtime == PIPELINE_RUNTIME
        is_only = len(selectors) == 1 and query.model and not is_pipeline
        request.receiver = selectors[0] if is_only else self._selectors.route_query(query, is_pipeline)
        if request.worker:
            request.worker, request.may_have_run = "", True
        if request.receiver:
            budget_ns = min(request.deadline_ns, request.give_up_ns) - now_ns
            if budget_ns != query.budget_ns:
                query = msgspec.structs.replace(query, budget_ns=budget_ns)
            self.out.append(Out(request.receiver, query))

    def _submit(self, now_ns: int, request: ClientRequest) -> None:
        """Submit a plain request to the controller. Without one, it is submitted when a controller connects."""
        request.receiver = self._calls.controller
        if request.worker:
            request.worker, request.may_have_run = "", True
        if request.receiver:
            self.out.append(self._plain.submit(now_ns, request, self.address))
            self.out.extend(self._plain.latency.pings(now_ns))

    def _on_outputs(self, now_ns: int, worker: str, message: Outputs, buffers: Sequence[Buffer]) -> None:
        answers = self._plain.read_outputs(now_ns, message, buffers)
        for_each(answers, lambda answer: self._finish_plain(now_ns, *answer))

    def _on_outcome(self, now_ns: int, controller: str, message: Outcome, _: Sequence[Buffer]) -> None:
        if answer := self._plain.read_outcome(controller, message):
            self._finish_plain(now_ns, *answer)

    def _finish_plain(self, now_ns: int, request: ClientRequest, answer: Answer, buffers: Sequence[Buffer]) -> None:
        if answer.status in FAILURES:
            answer, buffers = answer_failure(request, answer, buffers)
        self._finish(now_ns, request, answer, buffers)
        self.staging.release(request.id)

    def _on_answer(self, now_ns: int, selector: str, message: Answer, buffers: Sequence[Buffer]) -> None:
        request = self._requests.find_request(message.id)
        if request is None or request.receiver != selector:
            return
        if message.more:
            self.out.append(self._streamed.forward_item(now_ns, request, message, buffers))
            return
        if message.status in FAILURES:
            message, buffers = answer_failure(request, message, buffers)
        self._finish(now_ns, request, message, buffers)
        if message.inputs_retained:
            self._retained_inputs.retain_request(request)
        else:
            self.staging.release(request.id)

    def _finish(
        self, now_ns: int, request: ClientRequest, answer: Answer, buffers: Sequence[Buffer] = (), *, sends: bool = True
    ) -> None:
        """End a request: remove it, count it, answer its client if `sends`. No other method ends a request."""
        self._requests.remove(request)
        if now_ns > request.deadline_ns and answer.status == Status.OK:
            answer = msgspec.structs.replace(answer, status=int(Status.LATE), reason="finished after the deadline")
            self._builder.turn_limit.note_late()
        if request.outputs:
            answer, buffers = select_outputs(answer, buffers, request.outputs)
        if sends:
            answer = msgspec.structs.replace(answer, id=request.client_id, inputs_retained=False)
            self.out.append(Out(request.client, answer, buffers))
        self._metrics.count_finished(now_ns, request, answer)
        if self.tracer is not None and (trace_id := self.tracer.finish_request(now_ns, request, answer)):
            self._metrics.add_exemplar(now_ns, request, answer, trace_id)
        if self._sampler.profiler and (samples := self._sampler.sample_request(now_ns, request, answer)):
            self.out += samples

    def _give_up(self, now_ns: int, request: ClientRequest, answer: Answer, buffers: Sequence[Buffer] = ()) -> None:
        """Finish a request without its selector, which gets a Cancel and then releases the inputs."""
        self._finish(now_ns, request, answer, buffers, sends=answer.status != CANCELLED)  # its client waits no more
        if not request.is_plain and request.receiver in self._selectors:
            self._retained_inputs.retain_request(request)
        else:
            self.staging.release(request.id)
        if self._is_connected(request.receiver):
            self.out.append(Out(request.receiver, Cancel((request.id,))))

    def _on_cancel(self, now_ns: int, client: str, message: Cancel, buffers: Sequence[Buffer]) -> None:
        for client_id in message.ids:
            if request := self._requests.find_by_client_id(client, client_id):
                answer = Answer(request.id, int(Status.CANCELLED), (), "cancelled by the client")
                self._give_up(now_ns, request, answer)

    def _on_items_taken(self, now_ns: int, client: str, message: ItemsTaken, buffers: Sequence[Buffer]) -> None:
        self.out.extend(self._streamed.forward_taken(now_ns, client, message))

    def _on_drain(self, now_ns: int, sender: str, message: Drain, buffers: Sequence[Buffer]) -> None:
        """Handle the Drain of a selector, which wants no further queries, or the reply of a client."""
        if role(sender) == "selector":
            self._selectors.drain_selector(sender)
            self.out.append(Out(sender, Drain()))
        elif self._drain:
            self._drain.on_client_moved(sender)

    def _on_dispatch(self, now_ns: int, controller: str, dispatch: Dispatch, buffers: Sequence[Buffer]) -> None:
        for input_id in dispatch.input_ids:
            if request := self._requests.find_request(input_id):
                request.worker = dispatch.worker
        self.out.extend(self.staging.answer_dispatch(dispatch))

    def _on_announcement(
        self, now_ns: int, sender: str, message: Applications | Models, buffers: Sequence[Buffer]
    ) -> None:
        """Store what a selector or the controller serves. Queries may have waited for a selector's announcement."""
        self.out.extend(self._calls.handle(now_ns, sender, message, buffers, True))
        if message.id == 0 and role(sender) == "selector":
            self._send_unassigned(now_ns)

    def _on_keys_replaced(self, now_ns: int, sender: str, message: KeysReplaced, buffers: Sequence[Buffer]) -> None:
        self.access.replace_keys(dict(message.entries))

    def _send_unassigned(self, now_ns: int) -> None:
        """Send the requests without a selector to one. A stream that has sent items is not begun again."""
        for request in [request for request in self._requests if not self._is_connected(request.receiver)]:
            if request.items:
                reason = f"its selector has disconnected, after {request.items} items"
                self._give_up(now_ns, request, Answer(request.id, int(Status.LOST), (), reason))
            else:
                self._send_query(now_ns, request)

    def _on_peer_connected(self, now_ns: int, sender: str, message: PeerConnected, buffers: Sequence[Buffer]) -> None:
        address = message.address
        self._calls.connect_peer(address)
        self._plain.latency.add_peer(address)
        match role(address):
            case "controller":
                self._send_unassigned(now_ns)
            case "selector":
                self._selectors.add_selector(address)
                self._send_unassigned(now_ns)
            case "worker":
                self.out.extend(self.staging.add_worker(address, message.max_frame_bytes))
            case "profiler":
                self._sampler.profiler = address
            case "client" | "user" if self._drain:
                self._drain.notify_client(address)

    def _on_peer_disconnected(self, now_ns: int, sender: str, message: PeerDisconnected, _: Sequence[Buffer]) -> None:
        """Remove a peer. The requests that it has wait for their timers, or for another selector."""
        address = message.address
        if address == self._calls.controller:
            self._requests.mark_dispatched()
        self.out.extend(self._calls.disconnect_peer(address))
        self._plain.latency.remove_peer(address)
        match role(address):
            case "selector":
                self._selectors.remove_selector(address)
                self._retained_inputs.release_selector(address)
                self._send_unassigned(now_ns)
            case "controller":
                self._settling.remove_controller(address)
            case "worker":
                self.staging.remove_worker(address)
            case "profiler":
                self._sampler.remove_profiler(address)
            case "client" | "user" | "http":
                self._drop_client(now_ns, address)

    def _drop_client(self, now_ns: int, client: str) -> None:
        self._builder.send_delays.drop_client(client)
        self._on_cancel(now_ns, client, Cancel(tuple(self._requests.ids_of_client(client))), ())
        self._calls.drop_client(client)
        if self._drain:
            self._drain.remove_client(client)
