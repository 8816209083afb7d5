"""Calls of clients other than predictions: answered from the catalogue, or forwarded to another service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from horologe_common import wire
from horologe_common.clock import s
from horologe_common.core.indexed_heap import IndexedHeap
from horologe_common.core.message_order import AnnouncementOrder
from horologe_common.core.protocol import Out, key_of_client, role
from horologe_common.status import STATUS_NAMES, Forbidden, HorologeError, InvalidInput, Status, UnknownModel
from horologe_frontend.core.access import Access
from horologe_frontend.core.management import ManagementCall, management_call
from horologe_frontend.core.requests import check_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_frontend.core.application_requests import DeclaredApplications
    from horologe_frontend.core.model_versions import ModelVersions
    from horologe_frontend.core.pending_feedback import FeedbackForwarder
    from horologe_frontend.core.selector_routing import SelectorRouter
    from horologe_frontend.core.stats import RequestMetrics
    from horologe_frontend.settings import FrontendSettings

SelectorCall: TypeAlias = wire.Declare | wire.Withdraw | wire.Rollback | wire.ApplicationInfo
Call: TypeAlias = wire.Admit | wire.Describe | wire.Watch | SelectorCall | wire.PipelineInfo | wire.Tune
ClientMessage: TypeAlias = Call | wire.ModelInfo | wire.Feedback
CALL_TIMEOUT_NS = s(60)
"""Timeout of cluster state and declarations of applications."""
CALLS_PER_CLIENT = 32
"""Pending calls of a client. A call may cost the controller time for each model."""
CallReply: TypeAlias = (
    wire.Models | wire.Description | wire.Activity | wire.Applications | wire.PipelineState | wire.Tuning
)
RECEIVERS: dict[type, str] = {wire.Admit: "controller", wire.Watch: "controller", wire.Tune: "tuner"}
"""Receivers of calls. All others are for a selector."""
NO_MANAGEMENT = "this client may not manage: wanted a key of the folder `management`, or frontend.client_management"


class PendingCall(msgspec.Struct, frozen=True):
    """A forwarded call: the client, its own id of the call, and the receiver."""

    client: str
    client_id: int
    message: Call
    receiver: str


class PendingCalls:
    """Forwarded calls by an id of the frontend, at most `limit`, and `CALLS_PER_CLIENT` of each client.

    Invariant: each call gets one reply: of its receiver, or LOST after its timeout.
    """

    def __init__(self, load_timeout_ns: int, limit: int) -> None:
        self.load_timeout_ns = load_timeout_ns
        self.limit = limit
        self.timers: IndexedHeap[Any, int] = IndexedHeap()
        self._pending: dict[int, PendingCall] = {}
        self._by_client: dict[str, dict[int, bool]] = {}
        self._last_id = 0
        self.audit: Callable[[ManagementCall], None] | None = None
        """Gets the management calls of SDK clients at their end."""

    def __len__(self) -> int:
        return len(self._pending)

    def start_call(self, now_ns: int, client: str, message: Call, receiver: str) -> Out:
        """Return the forwarded call; or the reply LOST without a receiver, REFUSED if a limit is reached."""
        if not receiver:
            self._audit_end(client, message, Status.LOST)
            return Out(client, _lost_reply(message.id, message, "is not connected"))
        calls = self._by_client.get(client, {})
        if len(calls) >= CALLS_PER_CLIENT or len(self._pending) >= self.limit:
            whose = "of this client " if len(calls) >= CALLS_PER_CLIENT else ""
            pending = len(calls) if whose else len(self._pending)
            reason = f"{pending} calls {whose}are pending already"
            self._audit_end(client, message, Status.REFUSED)
            return Out(client, _failed_reply(message.id, message, Status.REFUSED, reason))
        self._last_id += 1
        self._by_client.setdefault(client, calls)[self._last_id] = True
        self._pending[self._last_id] = PendingCall(client, message.id, message, receiver)
        timeout_ns = self.load_timeout_ns if isinstance(message, wire.Admit) else CALL_TIMEOUT_NS
        self.timers.push(self._last_id, now_ns + timeout_ns)
        return Out(receiver, msgspec.structs.replace(message, id=self._last_id))

    def finish_call(self, message: CallReply) -> Iterator[Out]:
        """Return the reply to the client that made the call. Replies after the timeout are dropped."""
        if message.id in self._pending:
            call = self._remove_call(message.id)
            self._audit_end(call.client, call.message, getattr(message, "status", Status.OK), message)
            yield Out(call.client, msgspec.structs.replace(message, id=call.client_id))

    def fail_expired(self, now_ns: int) -> Iterator[Out]:
        """Reply LOST to the calls whose timeout has passed."""
        for key in self.timers.pop_up_to(now_ns):
            yield self._fail_call(key, "did not reply in time")

    def fail_receiver(self, address: str) -> Iterator[Out]:
        """Reply LOST to the calls that were forwarded to a disconnected receiver."""
        for key in [key for key, call in self._pending.items() if call.receiver == address]:
            yield self._fail_call(key, "disconnected")

    def drop_client(self, client: str) -> None:
        """Drop the calls of a disconnected client."""
        for key in list(self._by_client.get(client, ())):
            self._audit_end(client, self._remove_call(key).message, Status.CANCELLED)
        self._by_client.pop(client, None)

    def check(self) -> None:
        assert len(self._pending) == len(self.timers) == sum(map(len, self._by_client.values()))

    def refuse_call(self, client: str, message: ClientMessage, error: HorologeError) -> Out:
        """Return the reply to a call that is not permitted."""
        self._audit_end(client, message, error.status)
        return Out(client, _failed_reply(message.id, message, error.status, error.reason, error.retry_after_ns))

    def _audit_end(self, client: str, message: ClientMessage, status: int, reply: CallReply | None = None) -> None:
        """Audit the end of a management call. HTTP and gRPC audit their own, with the names of their keys."""
        if self.audit is None or client.startswith("http/"):
            return
        if entry := management_call(key_of_client(client) or client, "sdk", message):
            entry.name_reply(reply)
            entry.outcome = STATUS_NAMES[status]
            self.audit(entry)

    def _fail_call(self, key: int, problem: str) -> Out:
        call = self._remove_call(key)
        self._audit_end(call.client, call.message, Status.LOST)
        return Out(call.client, _lost_reply(call.client_id, call.message, problem))

    def _remove_call(self, key: int) -> PendingCall:
        self.timers.remove(key)
        call = self._pending.pop(key)
        calls = self._by_client[call.client]
        del calls[key]
        if not calls:
            del self._by_client[call.client]
        return call


def _lost_reply(client_id: int, message: Call, problem: str) -> CallReply | wire.Acknowledged:
    receiver = RECEIVERS.get(type(message), "selector")
    return _failed_reply(client_id, message, Status.LOST, f"the {receiver} {problem}")


def _failed_reply(
    client_id: int, message: ClientMessage, status: Status, reason: str, retry_after_ns: int = 0
) -> CallReply | wire.Acknowledged:
    match message:
        case wire.Admit():
            return wire.Models(client_id, (), int(status), reason)
        case wire.Describe():
            return wire.Description(client_id, (), "", 0)
        case wire.Watch():
            return wire.Activity(client_id, status=int(status), reason=reason)
        case wire.PipelineInfo():
            return wire.PipelineState(client_id, int(status), reason)
        case wire.Tune():
            return wire.Tuning(client_id, b"", int(status), reason)
        case wire.ModelInfo():
            return wire.Models(client_id, (), int(status), reason)
        case wire.Feedback():
            return wire.Acknowledged(client_id, (int(status),) * len(message.items), reason, retry_after_ns)
        case _:
            return wire.Applications(client_id, (), int(status), reason)


class CallForwarder:
    """Answer or forward calls, and pass the replies on. `controller`: its address, empty if not connected."""

    def __init__(
        self,
        catalogue: ModelVersions,
        declared: DeclaredApplications,
        selectors: SelectorRouter,
        metrics: RequestMetrics,
        feedback: FeedbackForwarder,
        settings: FrontendSettings,
    ) -> None:
        self.controller = ""
        self.tuner = ""
        """Address of the tuner; empty if none is connected."""
        self.order = AnnouncementOrder()
        self._pipeline_order = AnnouncementOrder()
        """Selectors number the announcements of pipelines apart from those of applications."""
        self._catalogue = catalogue
        self._declared = declared
        self._selectors = selectors
        self._metrics = metrics
        self._feedback = feedback
        self.access = Access()
        self._calls = PendingCalls(settings.load_timeout_ns, settings.max_pending)
        self.timers = (self._calls.timers, feedback.timers)

    def connect_peer(self, address: str) -> None:
        """Forward calls to a controller or tuner, and accept the announcements of a controller or selector."""
        match role(address):
            case "controller":
                self.order.disconnect(self.controller)
                self.order.connect(address)
                self.controller = address
            case "selector":
                self.order.connect(address)
                self._pipeline_order.connect(address)
            case "tuner":
                self.tuner = address

    def disconnect_peer(self, address: str) -> Iterable[Out]:
        """Ignore further announcements. Reply LOST to what a selector or tuner has not answered."""
        self.order.disconnect(address)
        self._pipeline_order.disconnect(address)
        if address == self.controller:
            self.controller = ""
        if address == self.tuner:
            self.tuner = ""
        if role(address) in ("selector", "tuner"):
            return (*self._calls.fail_receiver(address), *self._feedback.fail_selector(address))
        return ()

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer], trusted: bool) -> Iterable[Out]:
        """Return the messages to send. `trusted`: the sender is a peer, not a client."""
        if isinstance(message, ClientMessage) and not (trusted or sender.startswith("http/")):
            try:
                self._check_sdk(now_ns, sender, message)
            except HorologeError as error:
                return (self._calls.refuse_call(sender, message, error),)
        match message:
            case wire.ModelInfo():
                return (Out(sender, self._on_model_info(message)),)
            case wire.Admit() | wire.Describe() | wire.Watch():
                return (self._calls.start_call(now_ns, sender, message, self.controller),)
            case wire.Declare() | wire.Withdraw() | wire.Rollback() | wire.ApplicationInfo():
                return (self._on_selector_call(now_ns, sender, message),)
            case wire.PipelineInfo():
                receiver = self._selectors.route_pipeline(message.name)
                return (self._calls.start_call(now_ns, sender, message, receiver),)
            case wire.Tune():
                return (self._calls.start_call(now_ns, sender, message, self.tuner),)
            case wire.Feedback():
                return self._feedback.forward_feedback(now_ns, sender, message, buffers)
        return self._on_peer_message(now_ns, sender, message) if trusted else ()

    def set_audit(self, audit: Callable[[ManagementCall], None]) -> None:
        """Pass the management calls of SDK clients to `audit` at their end."""
        self._calls.audit = audit

    def fail_expired(self, now_ns: int) -> Iterable[Out]:
        """Reply LOST to the calls and the feedback whose timeout has passed."""
        return (*self._calls.fail_expired(now_ns), *self._feedback.fail_expired(now_ns))

    def drop_client(self, client: str) -> None:
        """Drop the calls of a disconnected client."""
        self._calls.drop_client(client)

    def pending(self) -> int:
        """Return the number of calls and of feedback without a reply."""
        return len(self._calls) + self._feedback.open

    def check(self) -> None:
        self._calls.check()
        self._feedback.check()

    def _check_sdk(self, now_ns: int, client: str, message: ClientMessage) -> None:
        """Raise `Forbidden` or `Refused` for a message of an SDK client that its key does not permit."""
        if client.startswith("user/") and management_call(client, "sdk", message):
            raise Forbidden(NO_MANAGEMENT)
        if not self.access.is_open:
            self.access.check_message(now_ns, key_of_client(client), message)

    def _on_model_info(self, message: wire.ModelInfo) -> wire.Models:
        try:
            if message.application:
                _, signature = self._declared.find_with_signature(message.application)
                return wire.Models(message.id, (wire.ModelState(signature),))
            states = self._catalogue.model_states(message.model)
            if message.model and not states:
                self._catalogue.check_complete()
                if message.model in self._declared:
                    hint = "use `ask`, or `horologe application predict`"
                    raise UnknownModel(f"model: got {message.model!r}, which is an application: {hint}")
            return wire.Models(message.id, states, incomplete=self._catalogue.incomplete)
        except HorologeError as error:
            return wire.Models(message.id, (), int(error.status), error.reason)

    def _on_selector_call(self, now_ns: int, client: str, message: SelectorCall) -> Out:
        name = message.application.name if isinstance(message, wire.Declare) else message.name
        context = message.context if isinstance(message, wire.ApplicationInfo) else ""
        try:
            if isinstance(message, wire.Declare):
                self._declared.check_declaration(message.application)
            elif isinstance(message, wire.ApplicationInfo):
                check_names(name=name, context=context)
        except InvalidInput as error:
            return self._calls.refuse_call(client, message, error)
        return self._calls.start_call(now_ns, client, message, self._selectors.route_declaration(name, context))

    def _on_peer_message(self, now_ns: int, sender: str, message: Any) -> Iterable[Out]:
        """Store an announcement (id 0), or pass the reply to a call on to its client.

        A Ping is answered at once: the selector measures its return latency. The last announcement of a selector may
        arrive after its PeerDisconnected. It is ignored.
        """
        match message:
            case wire.Ping():
                return (Out(sender, wire.Pong(message.sent_ns, now_ns)),)
            case wire.Acknowledged():
                return self._feedback.finish_forwarded(message)
            case wire.Models(id=0) if role(sender) == "selector":
                if self._pipeline_order.accept(sender, message.number):
                    self._catalogue.replace_pipelines(sender, message.models)
                    self._selectors.replace_pipelines(sender, message.models)
                    self._declared.discard_signatures()
                    self._metrics.create_model_counters()
            case wire.Models(id=0):
                if self.order.accept(sender, message.number):
                    self._catalogue.replace_models(message.models, message.incomplete)
                    self._declared.discard_signatures()
                    self._metrics.create_model_counters()
            case wire.Applications(id=0):
                if sender in self._selectors.connected and self.order.accept(sender, message.number):
                    self._metrics.replace_applications(
                        self._declared.replace_announcement(sender, message.applications)
                    )
        return self._calls.finish_call(message) if isinstance(message, CallReply) else ()
