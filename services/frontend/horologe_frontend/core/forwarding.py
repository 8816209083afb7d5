"""What clients want other than predictions: answered here, or passed on to the controller or the selector. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from horologe_common.core.protocol import Out
from horologe_common.core.timers import Timers
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

    Answerer = Callable[[int, str, Any, Sequence[Buffer]], Iterable[Out]]


class CallForwarder:
    """Each has exactly one answer. `controller`: its address, empty while it is away."""

    def __init__(
        self,
        catalogue: ModelCatalogue,
        declared: DeclaredApplications,
        selectors: SelectorRouter,
        counts: RequestMetrics,
        feedbacks: FeedbackForwarder,
        settings: FrontendSettings,
    ) -> None:
        self.controller = ""
        self._catalogue = catalogue
        self._declared = declared
        self._selectors = selectors
        self._counts = counts
        self._feedbacks = feedbacks
        self._calls = PendingCalls(settings.call_timeout_ns, settings.max_pending)
        self._from_clients: dict[type, Answerer] = {
            ModelInfo: self._on_model_info,
            Admit: self._on_controller_call,
            Describe: self._on_controller_call,
            Declare: self._on_declare,
            Withdraw: self._on_selector_call,
            Rollback: self._on_selector_call,
            ApplicationInfo: self._on_selector_call,
            Feedback: self._on_feedback,
        }
        self._from_peers: dict[type, Answerer] = {
            Models: self._on_models,
            Applications: self._on_applications,
            Description: self._on_description,
            Acknowledged: self._on_acknowledged,
            Ping: self._on_ping,
        }

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer], trusted: bool) -> Iterable[Out]:
        """What follows from a message; `trusted`: of a peer, not a client."""
        answerer = self._from_clients.get(type(message))
        if answerer is None and trusted:
            answerer = self._from_peers.get(type(message))
        return answerer(now_ns, sender, message, buffers) if answerer else ()

    def fail_expired(self, now_ns: int) -> Iterable[Out]:
        """Answers to what nobody has answered in time."""
        return (*self._calls.fail_expired(now_ns), *self._feedbacks.fail_expired(now_ns))

    def next_ns(self) -> int | None:
        """When the first of these is due."""
        timers = (self._calls.timers, self._feedbacks.timers)
        return min((at_ns for one in timers if (at_ns := one.next_ns()) is not None), default=None)

    def fail_selector(self, address: str) -> Iterable[Out]:
        """Answers to what this one will not answer any more."""
        return (*self._calls.fail_receiver(address), *self._feedbacks.fail_selector(address))

    def check(self) -> None:
        self._feedbacks.check()

    def _on_model_info(self, now_ns: int, client: str, message: ModelInfo, buffers: Sequence[Buffer]) -> Iterable[Out]:
        if not message.application:
            yield Out(client, Models(message.id, self._catalogue.model_states(message.model)))
            return
        try:
            answer = Models(message.id, self._declared.model_states(message.application))
        except HorologeError as error:
            answer = Models(message.id, (), int(error.status), error.reason)
        yield Out(client, answer)

    def _on_controller_call(
        self, now_ns: int, client: str, message: Admit | Describe, buffers: Sequence[Buffer]
    ) -> Iterable[Out]:
        yield self._calls.start_call(now_ns, client, message, self.controller)

    def _on_selector_call(
        self,
        now_ns: int,
        client: str,
        message: Declare | Withdraw | Rollback | ApplicationInfo,
        buffers: Sequence[Buffer],
    ) -> Iterable[Out]:
        context = ""
        try:
            if isinstance(message, ApplicationInfo):  # the selector keeps a state for each context it is asked about
                check_names(name=message.name, context=message.context)
                context = message.context
        except InvalidInput as error:
            yield Out(client, Applications(message.id, (), int(error.status), error.reason))
            return
        name = message.application.name if isinstance(message, Declare) else message.name
        yield self._calls.start_call(now_ns, client, message, self._selectors.route_declaration(name, context))

    def _on_declare(self, now_ns: int, client: str, message: Declare, buffers: Sequence[Buffer]) -> Iterable[Out]:
        try:
            self._declared.check_declaration(message.application)
        except InvalidInput as error:
            return (Out(client, Applications(message.id, (), int(error.status), error.reason)),)
        return self._on_selector_call(now_ns, client, message, buffers)

    def _on_feedback(self, now_ns: int, client: str, message: Feedback, buffers: Sequence[Buffer]) -> Iterable[Out]:
        return self._feedbacks.forward_feedback(now_ns, client, message, buffers)

    def _on_acknowledged(
        self, now_ns: int, selector: str, message: Acknowledged, buffers: Sequence[Buffer]
    ) -> Iterable[Out]:
        return self._feedbacks.finish_forwarded(message)

    def _on_models(self, now_ns: int, controller: str, message: Models, buffers: Sequence[Buffer]) -> Iterable[Out]:
        """The controller's announcement, or its answer to a question."""
        if message.id:
            return self._calls.finish_call(message)
        self._catalogue.replace_models(message.models)
        self._declared.discard_signatures()
        return ()

    def _on_applications(
        self, now_ns: int, selector: str, message: Applications, buffers: Sequence[Buffer]
    ) -> Iterable[Out]:
        """The selector's announcement, or its answer to a question."""
        if message.id:
            return self._calls.finish_call(message)
        if selector in self._selectors:  # what one that has gone said last may come after its Gone
            self._counts.drop_applications(self._declared.replace_announcement(selector, message.applications))
        return ()

    def _on_description(self, now_ns: int, sender: str, message: CallReply, buffers: Sequence[Buffer]) -> Iterable[Out]:
        return self._calls.finish_call(message)

    def _on_ping(self, now_ns: int, sender: str, message: Ping, buffers: Sequence[Buffer]) -> Iterable[Out]:
        """The selector measures how long its answers take to come here."""
        yield Out(sender, Pong(message.sent_ns, now_ns))


Call: TypeAlias = Admit | Describe | Declare | Withdraw | Rollback | ApplicationInfo
CallReply: TypeAlias = Models | Description | Applications


class PendingCall(msgspec.Struct, frozen=True):
    """Who asked whom, under which id, and what."""

    client: str
    client_id: int
    message: Call
    to: str


class PendingCalls:
    """Open questions by an id of ours. Each is answered once: by whom it was put to, or when its time is up.

    At most `limit` are open, each for `limit_ns` at most.
    """

    def __init__(self, limit_ns: int, limit: int) -> None:
        self.limit_ns = limit_ns
        self.limit = limit
        self.timers = Timers()
        self._open: dict[int, PendingCall] = {}
        self._last_id = 0

    def start_call(self, now_ns: int, client: str, message: Call, to: str) -> Out:
        """Pass a question on; where there is nobody to answer it, that is the answer, at once."""
        if not to:
            return Out(client, _lost_reply(message.id, message, "is away"))
        if len(self._open) >= self.limit:
            return Out(client, _lost_reply(message.id, message, f"has {self.limit} questions open already"))
        self._last_id += 1
        self._open[self._last_id] = PendingCall(client, message.id, message, to)
        self.timers.arm(self._last_id, now_ns + self.limit_ns)
        return Out(to, msgspec.structs.replace(message, id=self._last_id))

    def finish_call(self, message: CallReply) -> Iterator[Out]:
        """The answer, for whoever asked."""
        if relayed := self._open.pop(message.id, None):
            self.timers.cancel(message.id)
            yield Out(relayed.client, msgspec.structs.replace(message, id=relayed.client_id))

    def fail_expired(self, now_ns: int) -> Iterator[Out]:
        """Answers to what was not answered in time."""
        for key in self.timers.pop_expired(now_ns):
            relayed = self._open.pop(key)
            yield Out(relayed.client, _lost_reply(relayed.client_id, relayed.message, "did not answer"))

    def fail_receiver(self, address: str) -> Iterator[Out]:
        """Answers to what this one will not answer any more."""
        for key in [key for key, relayed in self._open.items() if relayed.to == address]:
            self.timers.cancel(key)
            relayed = self._open.pop(key)
            yield Out(relayed.client, _lost_reply(relayed.client_id, relayed.message, "went away"))


def _lost_reply(client_id: int, message: Call, what: str) -> CallReply:
    match message:
        case Admit():
            return Models(client_id, (), int(Status.LOST), f"the controller {what}")
        case Describe():
            return Description(client_id, (), "", 0)
        case _:
            return Applications(client_id, (), int(Status.LOST), f"the selector {what}")
