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
from horologe_frontend.core.requests import check_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_frontend.core.applications import Declared
    from horologe_frontend.core.catalogue import Catalogue
    from horologe_frontend.core.feedback import Feedbacks
    from horologe_frontend.core.selector_routing import Selectors
    from horologe_frontend.core.stats import Counts
    from horologe_frontend.settings import FrontendSettings

    Answerer = Callable[[int, str, Any, Sequence[Buffer]], Iterable[Out]]


class Questions:
    """Each has exactly one answer. `controller`: its address, empty while it is away."""

    def __init__(
        self,
        catalogue: Catalogue,
        declared: Declared,
        selectors: Selectors,
        counts: Counts,
        feedbacks: Feedbacks,
        settings: FrontendSettings,
    ) -> None:
        self.controller = ""
        self._catalogue = catalogue
        self._declared = declared
        self._selectors = selectors
        self._counts = counts
        self._feedbacks = feedbacks
        self._relay = Relay(settings.ask_ns, settings.max_pending)
        self._from_clients: dict[type, Answerer] = {
            ModelInfo: self._model_info,
            Admit: self._ask_controller,
            Describe: self._ask_controller,
            Declare: self._declare,
            Withdraw: self._ask_selector,
            Rollback: self._ask_selector,
            ApplicationInfo: self._ask_selector,
            Feedback: self._feedback,
        }
        self._from_peers: dict[type, Answerer] = {
            Models: self._models,
            Applications: self._applications,
            Description: self._told,
            Acknowledged: self._acknowledged,
            Ping: self._ping,
        }

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer], trusted: bool) -> Iterable[Out]:
        """What follows from a message; `trusted`: of a peer, not a client."""
        answerer = self._from_clients.get(type(message))
        if answerer is None and trusted:
            answerer = self._from_peers.get(type(message))
        return answerer(now_ns, sender, message, buffers) if answerer else ()

    def tick(self, now_ns: int) -> Iterable[Out]:
        """Answers to what nobody has answered in time."""
        return (*self._relay.expired(now_ns), *self._feedbacks.expired(now_ns))

    def next_ns(self) -> int | None:
        """When the first of these is due."""
        timers = (self._relay.deadlines, self._feedbacks.deadlines)
        return min((at_ns for one in timers if (at_ns := one.next_ns()) is not None), default=None)

    def selector_gone(self, address: str) -> Iterable[Out]:
        """Answers to what this one will not answer any more."""
        return (*self._relay.gone(address), *self._feedbacks.gone(address))

    def check(self) -> None:
        self._feedbacks.check()

    def _model_info(self, now_ns: int, client: str, message: ModelInfo, buffers: Sequence[Buffer]) -> Iterable[Out]:
        if not message.application:
            yield Out(client, Models(message.id, self._catalogue.states(message.model)))
            return
        try:
            answer = Models(message.id, self._declared.states(message.application))
        except HorologeError as error:
            answer = Models(message.id, (), int(error.status), error.reason)
        yield Out(client, answer)

    def _ask_controller(
        self, now_ns: int, client: str, message: Admit | Describe, buffers: Sequence[Buffer]
    ) -> Iterable[Out]:
        yield self._relay.ask(now_ns, client, message, self.controller)

    def _ask_selector(
        self,
        now_ns: int,
        client: str,
        message: Declare | Withdraw | Rollback | ApplicationInfo,
        buffers: Sequence[Buffer],
    ) -> Iterable[Out]:
        context = ""
        try:
            if isinstance(message, ApplicationInfo):  # the selector keeps a state for each context it is asked about
                check_texts(name=message.name, context=message.context)
                context = message.context
        except InvalidInput as error:
            yield Out(client, Applications(message.id, (), int(error.status), error.reason))
            return
        name = message.application.name if isinstance(message, Declare) else message.name
        yield self._relay.ask(now_ns, client, message, self._selectors.for_declaration(name, context))

    def _declare(self, now_ns: int, client: str, message: Declare, buffers: Sequence[Buffer]) -> Iterable[Out]:
        try:
            self._declared.check(message.application)
        except InvalidInput as error:
            return (Out(client, Applications(message.id, (), int(error.status), error.reason)),)
        return self._ask_selector(now_ns, client, message, buffers)

    def _feedback(self, now_ns: int, client: str, message: Feedback, buffers: Sequence[Buffer]) -> Iterable[Out]:
        return self._feedbacks.take(now_ns, client, message, buffers)

    def _acknowledged(
        self, now_ns: int, selector: str, message: Acknowledged, buffers: Sequence[Buffer]
    ) -> Iterable[Out]:
        return self._feedbacks.acknowledged(message)

    def _models(self, now_ns: int, controller: str, message: Models, buffers: Sequence[Buffer]) -> Iterable[Out]:
        """The controller's announcement, or its answer to a question."""
        if message.id:
            return self._relay.told(message)
        self._catalogue.replace(message.models)
        self._declared.models_changed()
        return ()

    def _applications(
        self, now_ns: int, selector: str, message: Applications, buffers: Sequence[Buffer]
    ) -> Iterable[Out]:
        """The selector's announcement, or its answer to a question."""
        if message.id:
            return self._relay.told(message)
        if selector in self._selectors:  # what one that has gone said last may come after its PeerDisconnected
            self._counts.withdrawn(self._declared.replace(selector, message.applications))
        return ()

    def _told(self, now_ns: int, sender: str, message: Told, buffers: Sequence[Buffer]) -> Iterable[Out]:
        return self._relay.told(message)

    def _ping(self, now_ns: int, sender: str, message: Ping, buffers: Sequence[Buffer]) -> Iterable[Out]:
        """The selector measures how long its answers take to come here."""
        yield Out(sender, Pong(message.sent_ns, now_ns))


Question: TypeAlias = Admit | Describe | Declare | Withdraw | Rollback | ApplicationInfo
Told: TypeAlias = Models | Description | Applications


class Relayed(msgspec.Struct, frozen=True):
    """Who asked whom, under which id, and what."""

    client: str
    client_id: int
    message: Question
    to: str


class Relay:
    """Open questions by an id of ours. Each is answered once: by whom it was put to, or when its time is up.

    At most `limit` are open, each for `limit_ns` at most.
    """

    def __init__(self, limit_ns: int, limit: int) -> None:
        self.limit_ns = limit_ns
        self.limit = limit
        self.deadlines = Timers()
        self._open: dict[int, Relayed] = {}
        self._last_id = 0

    def ask(self, now_ns: int, client: str, message: Question, to: str) -> Out:
        """Pass a question on; where there is nobody to answer it, that is the answer, at once."""
        if not to:
            return Out(client, _unanswered(message.id, message, "is away"))
        if len(self._open) >= self.limit:
            return Out(client, _unanswered(message.id, message, f"has {self.limit} questions open already"))
        self._last_id += 1
        self._open[self._last_id] = Relayed(client, message.id, message, to)
        self.deadlines.arm(self._last_id, now_ns + self.limit_ns)
        return Out(to, msgspec.structs.replace(message, id=self._last_id))

    def told(self, message: Told) -> Iterator[Out]:
        """The answer, for whoever asked."""
        if relayed := self._open.pop(message.id, None):
            self.deadlines.cancel(message.id)
            yield Out(relayed.client, msgspec.structs.replace(message, id=relayed.client_id))

    def expired(self, now_ns: int) -> Iterator[Out]:
        """Answers to what was not answered in time."""
        for key in self.deadlines.pop_expired(now_ns):
            relayed = self._open.pop(key)
            yield Out(relayed.client, _unanswered(relayed.client_id, relayed.message, "did not answer"))

    def gone(self, address: str) -> Iterator[Out]:
        """Answers to what this one will not answer any more."""
        for key in [key for key, relayed in self._open.items() if relayed.to == address]:
            self.deadlines.cancel(key)
            relayed = self._open.pop(key)
            yield Out(relayed.client, _unanswered(relayed.client_id, relayed.message, "went away"))


def _unanswered(client_id: int, message: Question, what: str) -> Told:
    match message:
        case Admit():
            return Models(client_id, (), int(Status.LOST), f"the controller {what}")
        case Describe():
            return Description(client_id, (), "", 0)
        case _:
            return Applications(client_id, (), int(Status.LOST), f"the selector {what}")
