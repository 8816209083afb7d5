"""Calls of clients other than predictions: answered from the catalogue, or forwarded to controller or selector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from horologe_common.core.indexed_heap import Timers
from horologe_common.core.protocol import Out
from horologe_common.status import HorologeError, InvalidInput, Status
from horologe_common.wire import (
    Acknowledged,
    Admit,
    ApplicationInfo,
    Applications,
    Declare,
    Describe,
    Description,
    Feedback,
    ModelInfo,
    Models,
    Ping,
    Pong,
    Rollback,
    Withdraw,
)
from horologe_frontend.core.requests import check_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_frontend.core.applications import DeclaredApplications
    from horologe_frontend.core.catalogue import ModelCatalogue
    from horologe_frontend.core.feedback import FeedbackForwarder
    from horologe_frontend.core.selector_routing import SelectorRouter
    from horologe_frontend.core.stats import RequestMetrics
    from horologe_frontend.settings import FrontendSettings

    CallHandler = Callable[[int, str, Any, Sequence[Buffer]], Iterable[Out]]

Call: TypeAlias = Admit | Describe | Declare | Withdraw | Rollback | ApplicationInfo
CallReply: TypeAlias = Models | Description | Applications


class PendingCall(msgspec.Struct, frozen=True):
    """A forwarded call: the client, its own id of the call, and the receiver."""

    client: str
    client_id: int
    message: Call
    receiver: str


class PendingCalls:
    """Forwarded calls by an id of the frontend, at most `limit`.

    Invariant: each call gets one reply: of its receiver, or LOST after `timeout_ns`.
    """

    def __init__(self, timeout_ns: int, limit: int) -> None:
        self.timeout_ns = timeout_ns
        self.limit = limit
        self.timers = Timers()
        self._pending: dict[int, PendingCall] = {}
        self._last_id = 0

    def start_call(self, now_ns: int, client: str, message: Call, receiver: str) -> Out:
        """Return the forwarded call, or the reply LOST if there is no receiver or the limit is reached."""
        if not receiver:
            return Out(client, _lost_reply(message.id, message, "is not connected"))
        if len(self._pending) >= self.limit:
            return Out(client, _lost_reply(message.id, message, f"has {self.limit} pending calls already"))
        self._last_id += 1
        self._pending[self._last_id] = PendingCall(client, message.id, message, receiver)
        self.timers.arm(self._last_id, now_ns + self.timeout_ns)
        return Out(receiver, msgspec.structs.replace(message, id=self._last_id))

    def finish_call(self, message: CallReply) -> Iterator[Out]:
        """Return the reply to the client that made the call. Replies after the timeout are dropped."""
        if call := self._pending.pop(message.id, None):
            self.timers.cancel(message.id)
            yield Out(call.client, msgspec.structs.replace(message, id=call.client_id))

    def fail_expired(self, now_ns: int) -> Iterator[Out]:
        """Reply LOST to the calls whose timeout has passed."""
        for key in self.timers.pop_expired(now_ns):
            call = self._pending.pop(key)
            yield Out(call.client, _lost_reply(call.client_id, call.message, "did not reply in time"))

    def fail_receiver(self, address: str) -> Iterator[Out]:
        """Reply LOST to the calls that were forwarded to a disconnected receiver."""
        for key in [key for key, call in self._pending.items() if call.receiver == address]:
            self.timers.cancel(key)
            call = self._pending.pop(key)
            yield Out(call.client, _lost_reply(call.client_id, call.message, "disconnected"))


def _lost_reply(client_id: int, message: Call, problem: str) -> CallReply:
    match message:
        case Admit():
            return Models(client_id, (), int(Status.LOST), f"the controller {problem}")
        case Describe():
            return Description(client_id, (), "", 0)
        case _:
            return Applications(client_id, (), int(Status.LOST), f"the selector {problem}")


class CallForwarder:
    """Answer or forward calls, and pass the replies on. `controller`: its address, empty if not connected."""

    def __init__(
        self,
        catalogue: ModelCatalogue,
        declared: DeclaredApplications,
        selectors: SelectorRouter,
        metrics: RequestMetrics,
        feedback: FeedbackForwarder,
        settings: FrontendSettings,
    ) -> None:
        self.controller = ""
        self._catalogue = catalogue
        self._declared = declared
        self._selectors = selectors
        self._metrics = metrics
        self._feedback = feedback
        self._calls = PendingCalls(settings.call_timeout_ns, settings.max_pending)
        self.timers = (self._calls.timers, feedback.timers)
        self._from_clients: dict[type, CallHandler] = {
            ModelInfo: self._on_model_info,
            Admit: self._on_controller_call,
            Describe: self._on_controller_call,
            Declare: self._on_declare,
            Withdraw: self._on_selector_call,
            Rollback: self._on_selector_call,
            ApplicationInfo: self._on_application_info,
            Feedback: self._on_feedback,
        }
        self._from_peers: dict[type, CallHandler] = {
            Models: self._on_models,
            Applications: self._on_applications,
            Description: self._on_description,
            Acknowledged: self._on_acknowledged,
            Ping: self._on_ping,
        }

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer], trusted: bool) -> Iterable[Out]:
        """Return the messages to send. `trusted`: the sender is a peer, not a client."""
        handler = self._from_clients.get(type(message))
        if handler is None and trusted:
            handler = self._from_peers.get(type(message))
        return handler(now_ns, sender, message, buffers) if handler else ()

    def fail_expired(self, now_ns: int) -> Iterable[Out]:
        """Reply LOST to the calls and the feedback whose timeout has passed."""
        return (*self._calls.fail_expired(now_ns), *self._feedback.fail_expired(now_ns))

    def fail_selector(self, address: str) -> Iterable[Out]:
        """Reply LOST to the calls and the feedback that a disconnected selector has not answered."""
        return (*self._calls.fail_receiver(address), *self._feedback.fail_selector(address))

    def check(self) -> None:
        self._feedback.check()

    def _on_model_info(self, now_ns: int, client: str, message: ModelInfo, buffers: Sequence[Buffer]) -> Iterable[Out]:
        if not message.application:
            yield Out(client, Models(message.id, self._catalogue.model_states(message.model)))
            return
        try:
            reply = Models(message.id, self._declared.model_states(message.application))
        except HorologeError as error:
            reply = Models(message.id, (), int(error.status), error.reason)
        yield Out(client, reply)

    def _on_controller_call(
        self, now_ns: int, client: str, message: Admit | Describe, buffers: Sequence[Buffer]
    ) -> Iterable[Out]:
        yield self._calls.start_call(now_ns, client, message, self.controller)

    def _on_selector_call(
        self, now_ns: int, client: str, message: Withdraw | Rollback, buffers: Sequence[Buffer]
    ) -> Iterable[Out]:
        yield self._calls.start_call(now_ns, client, message, self._selectors.route_declaration(message.name))

    def _on_application_info(
        self, now_ns: int, client: str, message: ApplicationInfo, buffers: Sequence[Buffer]
    ) -> Iterable[Out]:
        try:
            check_names(name=message.name, context=message.context)
        except InvalidInput as error:
            yield Out(client, Applications(message.id, (), int(error.status), error.reason))
            return
        selector = self._selectors.route_declaration(message.name, message.context)
        yield self._calls.start_call(now_ns, client, message, selector)

    def _on_declare(self, now_ns: int, client: str, message: Declare, buffers: Sequence[Buffer]) -> Iterable[Out]:
        try:
            self._declared.check_declaration(message.application)
        except InvalidInput as error:
            yield Out(client, Applications(message.id, (), int(error.status), error.reason))
            return
        selector = self._selectors.route_declaration(message.application.name)
        yield self._calls.start_call(now_ns, client, message, selector)

    def _on_feedback(self, now_ns: int, client: str, message: Feedback, buffers: Sequence[Buffer]) -> Iterable[Out]:
        return self._feedback.forward_feedback(now_ns, client, message, buffers)

    def _on_acknowledged(
        self, now_ns: int, selector: str, message: Acknowledged, buffers: Sequence[Buffer]
    ) -> Iterable[Out]:
        return self._feedback.finish_forwarded(message)

    def _on_models(self, now_ns: int, controller: str, message: Models, buffers: Sequence[Buffer]) -> Iterable[Out]:
        """Store the controller's announcement, or pass on its reply to a call."""
        if message.id:
            return self._calls.finish_call(message)
        self._catalogue.replace_models(message.models)
        self._declared.discard_signatures()
        return ()

    def _on_applications(
        self, now_ns: int, selector: str, message: Applications, buffers: Sequence[Buffer]
    ) -> Iterable[Out]:
        """Store a selector's announcement, or pass on its reply to a call.

        The last announcement of a selector may arrive after its PeerDisconnected. It is ignored.
        """
        if message.id:
            return self._calls.finish_call(message)
        if selector in self._selectors:
            self._metrics.drop_applications(self._declared.replace_announcement(selector, message.applications))
        return ()

    def _on_description(
        self, now_ns: int, controller: str, message: Description, buffers: Sequence[Buffer]
    ) -> Iterable[Out]:
        return self._calls.finish_call(message)

    def _on_ping(self, now_ns: int, sender: str, message: Ping, buffers: Sequence[Buffer]) -> Iterable[Out]:
        """Reply at once: the selector measures its return latency."""
        yield Out(sender, Pong(message.sent_ns, now_ns))
