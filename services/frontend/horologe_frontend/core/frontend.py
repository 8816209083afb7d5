"""The frontend: takes requests, keeps their tensors until a worker is named, and gives each exactly one answer.

Predict -> validate, stage, arm the deadline -> Query to the selector; Dispatch -> ship to the worker;
Answer, or the deadline plus a grace -> `_finish`, the only place that removes a request. Where an application has
declared a default, that is the answer if the selector has none just before the deadline.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import ms
from horologe_common.core.protocol import Out, PeerConnected, PeerDisconnected, role
from horologe_common.core.staging import StagedInputs
from horologe_common.status import HorologeError, InvalidInput, Refused, Status
from horologe_common.wire import Answer, Applications, Cancel, Dispatch, Predict, Release
from horologe_frontend.core.applications import Declared
from horologe_frontend.core.catalogue import Catalogue
from horologe_frontend.core.default_lead import Lag
from horologe_frontend.core.feedback import Feedbacks
from horologe_frontend.core.forwarding import Questions
from horologe_frontend.core.requests import Admission, Book, Request, addressed, default_of, only, or_default, silent
from horologe_frontend.core.retained_inputs import Lingering
from horologe_frontend.core.sampling import Sampling
from horologe_frontend.core.selector_routing import Selectors
from horologe_frontend.core.stats import Counts

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
        self.catalogue = Catalogue()
        self.declared = Declared(self.catalogue)
        self.staging = StagedInputs(address, settings.staging_bytes)
        self._counts = Counts(self.catalogue, self.declared)
        self.stats, self.statistics = self._counts.stats, self._counts.statistics
        self._selectors = selectors = Selectors(self.declared)
        self._lag = Lag(settings.default_lead_ns)
        self._admission = Admission(settings, self.catalogue, self.declared, self.staging, self._lag, digest)
        self._sampling = Sampling(settings, self.staging, self.catalogue)
        self._book = Book()
        self._lingering = Lingering(self.staging)
        feedbacks = Feedbacks(settings, self.declared, selectors, self._admission, self._lingering)
        self._questions = Questions(self.catalogue, self.declared, selectors, self._counts, feedbacks, settings)
        self._workers: dict[str, bool] = {}
        self.draining = False
        self._from_clients: dict[type, Handler] = {
            Predict: self._predict,
            Cancel: self._cancelled,
            PeerDisconnected: self._gone,
        }
        self._from_peers: dict[type, Handler] = {
            Answer: self._answered,
            Applications: self._announced,
            Dispatch: self._ship,
            Release: self._release,
            PeerConnected: self._joined,
        }

    def drain(self) -> None:
        """Refuse what comes from now on."""
        self.draining = True

    def drained(self) -> bool:
        return not self._book

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """One message from a client, the selector, the controller or the loop."""
        trusted = not sender.startswith(("client/", "http/"))
        handler = self._from_clients.get(type(message))
        if handler is None and trusted:
            handler = self._from_peers.get(type(message))
        if handler:
            handler(now_ns, sender, message, buffers)
        else:
            self.out.extend(self._questions.handle(now_ns, sender, message, buffers, trusted))

    def tick(self, now_ns: int) -> None:
        """Answer what nobody else has answered: by its deadline plus the grace, or before it by the default."""
        self._lag.tick(now_ns)
        for request in self._book.due(now_ns):
            silence = silent(request, request.worker in self._workers)
            self._give_up(now_ns, request, *(default_of(request) or (silence, ())))
        self.out.extend(self._questions.tick(now_ns))
        self._lingering.tick(now_ns)

    def wakeup_ns(self) -> int | None:
        timers = (self._book, self._questions, self._lingering.deadlines, self._lag)
        return min((at_ns for one in timers if (at_ns := one.next_ns()) is not None), default=None)

    def ready(self) -> bool:
        """Whether requests can be served: everything behind is reachable, and it is not draining."""
        return bool(self._selectors and self._questions.controller and self.catalogue.ready) and not self.draining

    def pending(self) -> int:
        return len(self._book)

    def check(self) -> None:
        """Every staged input belongs to an open request or to a query the selector has not released."""
        self.staging.check()
        self._sampling.check()
        self._lingering.check()
        self._questions.check()
        self._book.check()
        assert all(key in self._book or key in self._lingering for key in self.staging.ids())

    def _predict(self, now_ns: int, client: str, message: Predict, buffers: Sequence[Buffer]) -> None:
        try:
            request = self._admit(now_ns, client, message, buffers)
        except HorologeError as error:
            self._counts.rejected(message, error.status)
            self.out.append(Out(client, Answer(message.id, int(error.status), (), error.reason, error.retry_after_ns)))
            return
        self._book.add(request)
        self._query(now_ns, request)

    def _admit(self, now_ns: int, client: str, message: Predict, buffers: Sequence[Buffer]) -> Request:
        """A request, its inputs staged. Raises what the client did wrong, or `Refused`."""
        if self._book.of(client, message.id):
            raise InvalidInput(f"id: got {message.id}, which is still open")
        if self.draining:
            raise Refused("draining", retry_after_ns=ms(1000))
        if len(self._book) >= self.settings.max_pending:
            raise Refused(f"{self.settings.max_pending} requests are open already", retry_after_ns=ms(100))
        return self._admission.admit(now_ns, client, message, buffers)

    def _query(self, now_ns: int, request: Request) -> None:
        """Ask a selector. Without one, `_joined` will, or where none knows the application, `_announced`."""
        request.selector, request.worker = self._selectors.for_query(request.query), ""
        if request.selector:
            budget_ns = min(request.deadline_ns, request.give_up_ns) - now_ns
            query = request.query
            if budget_ns != query.budget_ns:
                query = msgspec.structs.replace(query, budget_ns=budget_ns)
            self.out.append(Out(request.selector, query))

    def _answered(self, now_ns: int, selector: str, message: Answer, buffers: Sequence[Buffer]) -> None:
        request = self._book.get(message.id)
        if request is None or request.selector != selector:
            return
        self._finish(now_ns, request, *or_default(request, message, buffers))
        if message.inputs_retained:
            self._linger(request)
        else:
            self.staging.release(request.id)

    def _linger(self, request: Request) -> None:
        """The inputs of an answered request are still needed."""
        self._lingering.keep(request.id, request.selector, request.deadline_ns + self.settings.linger_ns)

    def _finish(self, now_ns: int, request: Request, answer: Answer, buffers: Sequence[Buffer] = ()) -> None:
        """The one end of a request: remove it, count it, answer its client."""
        self._book.remove(request)
        if answer.status == Status.OK and now_ns > request.deadline_ns:
            answer = msgspec.structs.replace(answer, status=int(Status.LATE), reason="finished after the deadline")
        if request.outputs:
            answer, buffers = only(answer, buffers, request.outputs)
        self._counts.ended(now_ns, request, answer)
        if answer.status != Status.CANCELLED:
            self.out.append(Out(request.client, addressed(answer, request.client_id), buffers))
        if self._sampling.profiler:
            self.out += self._sampling.samples(now_ns, request, answer)

    def refresh_stats(self) -> None:
        """Bring the metrics that follow from `statistics` up to date, before they are read."""
        self.statistics.publish(self.stats)
        self.stats.set("horologe_staged_bytes", to=self.staging.held_bytes)

    def _give_up(self, now_ns: int, request: Request, answer: Answer, buffers: Sequence[Buffer] = ()) -> None:
        """End a request that the selector still works on: its inputs stay until released."""
        self._finish(now_ns, request, answer, buffers)
        if request.selector in self._selectors:
            self._linger(request)
            self.out.append(Out(request.selector, Cancel((request.id,))))
        else:
            self.staging.release(request.id)

    def _cancelled(self, now_ns: int, client: str, message: Cancel, buffers: Sequence[Buffer]) -> None:
        for client_id in message.ids:
            if request := self._book.of(client, client_id):
                answer = Answer(request.id, int(Status.CANCELLED), (), "cancelled by the client")
                self._give_up(now_ns, request, answer)

    def _release(self, now_ns: int, selector: str, message: Release, buffers: Sequence[Buffer]) -> None:
        """Of a selector that was asked; one that was left for another knows nothing of what that one needs."""
        for input_id in message.ids:
            request = self._book.get(input_id)
            if request is None or request.selector == selector:
                self._lingering.release(input_id, selector)

    def _ship(self, now_ns: int, controller: str, dispatch: Dispatch, buffers: Sequence[Buffer]) -> None:
        for input_id in dispatch.input_ids:
            if request := self._book.get(input_id):
                request.worker = dispatch.worker
        self.out.append(self.staging.answer_dispatch(dispatch))

    def _announced(self, now_ns: int, selector: str, message: Applications, buffers: Sequence[Buffer]) -> None:
        """By this selector; or an answer of it."""
        self.out.extend(self._questions.handle(now_ns, selector, message, buffers, True))
        if message.id == 0:
            self._query_all(now_ns)

    def _query_all(self, now_ns: int) -> None:
        """What no selector that is there has been asked."""
        for request in self._book:
            if request.selector not in self._selectors:
                self._query(now_ns, request)

    def _joined(self, now_ns: int, sender: str, message: PeerConnected, buffers: Sequence[Buffer]) -> None:
        address = message.address
        match role(address):
            case "selector":
                self._selectors.joined(address)
                self._query_all(now_ns)
            case "controller":
                self._questions.controller = address
            case "worker":
                self._workers[address] = True
            case "profiler":
                self._sampling.profiler = address

    def _gone(self, now_ns: int, sender: str, message: PeerDisconnected, buffers: Sequence[Buffer]) -> None:
        address = message.address
        match role(address):
            case "selector":
                self._selectors.gone(address)
                self._lingering.gone(address)
                self.out.extend(self._questions.selector_gone(address))
                self._query_all(now_ns)
            case "controller":
                if address == self._questions.controller:
                    self._questions.controller = ""
            case "worker":
                self._workers.pop(address, None)
            case "profiler":
                self._sampling.gone(address)
            case _:
                self._cancelled(now_ns, address, Cancel(self._book.ids_of(address)), ())
