"""The frontend: takes requests, keeps their tensors until a worker is named, and gives each exactly one answer.

Predict -> validate, stage, arm the deadline -> Query to the selector; Dispatch -> ship to the worker;
Answer, or the deadline plus a grace -> `_finish`, the only place that removes a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import ms
from horologe_common.core import Deadlines, Gone, Joined, Out, role
from horologe_common.metrics import Stats
from horologe_common.staging import Staging
from horologe_common.status import HorologeError, InvalidInput, Refused, Status
from horologe_common.wire import (
    Admit,
    Answer,
    Cancel,
    Describe,
    Description,
    Dispatch,
    ModelInfo,
    Models,
    Predict,
    Release,
)
from horologe_frontend.admission import Admission, Request
from horologe_frontend.answers import addressed, only
from horologe_frontend.asks import Asks
from horologe_frontend.catalogue import Catalogue
from horologe_frontend.sampling import Sampling
from horologe_frontend.statistics import Statistics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core import Buffer
    from horologe_frontend.settings import Settings

    Handler = Callable[[int, str, Any, Sequence[Buffer]], None]


class Frontend:
    """Core of the frontend. `digest` hashes a request's bytes for the prediction cache."""

    def __init__(self, address: str, settings: Settings, digest: Callable[[bytes, Sequence[Buffer]], bytes]) -> None:
        self.address = address
        self.settings = settings
        self.out: list[Out] = []
        self.catalogue = Catalogue()
        self.staging = Staging(address, settings.staging_bytes)
        self.stats = Stats()
        self.statistics = Statistics()
        self._admission = Admission(settings, self.catalogue, self.staging, digest)
        self._sampling = Sampling(settings, self.staging)
        self._requests: dict[int, Request] = {}
        self._by_client: dict[str, dict[int, int]] = {}
        self._lingering: dict[int, str] = {}
        self.asks = Asks(settings.ask_ns)
        self._deadlines = Deadlines()
        self._selector = self._controller = ""
        self._workers: dict[str, bool] = {}
        self.draining = False
        self._from_clients: dict[type, Handler] = {
            Predict: self._predict, Cancel: self._cancelled, ModelInfo: self._model_info, Admit: self._ask,
            Describe: self._ask, Gone: self._gone,
        }  # fmt: skip
        self._from_peers: dict[type, Handler] = {
            Answer: self._answered, Dispatch: self._ship, Release: self._release, Models: self._models,
            Description: self._told, Joined: self._joined,
        }  # fmt: skip

    def drain(self) -> None:
        """Refuse what comes from now on."""
        self.draining = True

    def drained(self) -> bool:
        return not self._requests

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """One message from a client, the selector, the controller or the loop."""
        handler = self._from_clients.get(type(message))
        if handler is None and not sender.startswith(("client/", "http/")):
            handler = self._from_peers.get(type(message))
        if handler:
            handler(now_ns, sender, message, buffers)

    def tick(self, now_ns: int) -> None:
        """Answer what nobody else has answered by its deadline plus the grace."""
        for key in self._deadlines.due(now_ns):
            request = self._requests[key]
            late = request.worker in self._workers
            reason = "not finished by the deadline" if late else "nothing heard of it by the deadline"
            self._give_up(now_ns, request, Status.LATE if late else Status.LOST, reason)
        if self.asks.deadlines:
            self.out.extend(self.asks.expired(now_ns))

    def wakeup_ns(self) -> int | None:
        at_ns = self._deadlines.next_ns()
        if (ask_ns := self.asks.deadlines.next_ns()) is None:
            return at_ns
        return ask_ns if at_ns is None else min(at_ns, ask_ns)

    def ready(self) -> bool:
        """Whether requests can be served: everything behind is reachable, and it is not draining."""
        return bool(self._selector and self._controller and self.catalogue.ready) and not self.draining

    def pending(self) -> int:
        return len(self._requests)

    def check(self) -> None:
        """Every staged input belongs to an open request or to a query the selector has not released."""
        self.staging.check()
        self._sampling.check()
        assert all(key in self._requests or key in self._lingering for key in self.staging.ids())
        assert len(self._requests) == sum(map(len, self._by_client.values()))

    def _predict(self, now_ns: int, client: str, message: Predict, buffers: Sequence[Buffer]) -> None:
        try:
            request = self._admit(now_ns, client, message, buffers)
        except HorologeError as error:
            name, version = message.model, message.version
            self.stats.count("nv_inference_request_failure", *self.catalogue.labels(name, version), error.status.name)
            self.out.append(Out(client, Answer(message.id, int(error.status), (), error.reason, error.retry_after_ns)))
            return
        self._requests[request.id] = request
        self._by_client.setdefault(client, {})[message.id] = request.id
        self._deadlines.arm(request.id, request.deadline_ns + self.settings.grace_ns)
        self._query(now_ns, request)

    def _admit(self, now_ns: int, client: str, message: Predict, buffers: Sequence[Buffer]) -> Request:
        """A request, its inputs staged. Raises what the client did wrong, or `Refused`."""
        if message.id in self._by_client.get(client, ()):
            raise InvalidInput(f"id: got {message.id}, which is still open")
        if self.draining:
            raise Refused("draining", retry_after_ns=ms(1000))
        if len(self._requests) >= self.settings.max_pending:
            raise Refused(f"{self.settings.max_pending} requests are open already", retry_after_ns=ms(100))
        return self._admission.admit(now_ns, client, message, buffers)

    def _query(self, now_ns: int, request: Request) -> None:
        """Ask the selector; without one, `_joined` will."""
        request.selector, request.worker = self._selector, ""
        if self._selector:
            budget_ns = request.deadline_ns - now_ns
            query = request.query
            if budget_ns != query.budget_ns:
                query = msgspec.structs.replace(query, budget_ns=budget_ns)
            self.out.append(Out(self._selector, query))

    def _answered(self, now_ns: int, selector: str, message: Answer, buffers: Sequence[Buffer]) -> None:
        request = self._requests.get(message.id)
        if request is None or request.selector != selector:
            return
        if message.status == Status.OK and now_ns > request.deadline_ns:
            message = msgspec.structs.replace(message, status=int(Status.LATE), reason="finished after the deadline")
        if request.outputs:
            message, buffers = only(message, buffers, request.outputs)
        self._finish(now_ns, request, message, buffers)
        self.staging.release(request.id)

    def _finish(self, now_ns: int, request: Request, answer: Answer, buffers: Sequence[Buffer] = ()) -> None:
        """The one end of a request: remove it, count it, answer its client."""
        del self._requests[request.id]
        open_ids = self._by_client[request.client]
        del open_ids[request.client_id]
        if not open_ids:
            del self._by_client[request.client]
        self._deadlines.cancel(request.id)
        spec = request.spec
        took_ns, slack_ns = now_ns - request.arrival_ns, request.deadline_ns - now_ns
        self.statistics.observe(now_ns, spec, answer, request.query.rows, took_ns, slack_ns)
        if answer.status != Status.OK:
            status = Status(answer.status).name
            self.stats.count("nv_inference_request_failure", spec.name, spec.version, status)
        if answer.status != Status.CANCELLED:
            self.out.append(Out(request.client, addressed(answer, request.client_id), buffers))
        if self._sampling.profiler:
            self.out += self._sampling.samples(now_ns, request, answer)

    def refresh_stats(self) -> None:
        """Bring the metrics that follow from `statistics` up to date, before they are read."""
        self.statistics.publish(self.stats)
        self.stats.set("horologe_staged_bytes", to=self.staging.held_bytes)

    def _give_up(self, now_ns: int, request: Request, status: Status, reason: str) -> None:
        """End a request that the selector still works on: its inputs stay until released."""
        self._finish(now_ns, request, Answer(request.id, int(status), (), reason))
        if request.selector and request.selector == self._selector:
            self._lingering[request.id] = request.selector
            self.out.append(Out(request.selector, Cancel((request.id,))))
        else:
            self.staging.release(request.id)

    def _cancelled(self, now_ns: int, client: str, message: Cancel, buffers: Sequence[Buffer]) -> None:
        for client_id in message.ids:
            if key := self._by_client.get(client, {}).get(client_id):
                self._give_up(now_ns, self._requests[key], Status.CANCELLED, "cancelled by the client")

    def _release(self, now_ns: int, selector: str, message: Release, buffers: Sequence[Buffer]) -> None:
        for input_id in message.ids:
            self._lingering.pop(input_id, None)
            self.staging.release(input_id)

    def _ship(self, now_ns: int, controller: str, dispatch: Dispatch, buffers: Sequence[Buffer]) -> None:
        for input_id in dispatch.input_ids:
            if request := self._requests.get(input_id):
                request.worker = dispatch.worker
        self.out.append(self.staging.ship(dispatch))

    def _model_info(self, now_ns: int, client: str, message: ModelInfo, buffers: Sequence[Buffer]) -> None:
        self.out.append(Out(client, Models(message.id, self.catalogue.states(message.model))))

    def _models(self, now_ns: int, controller: str, message: Models, buffers: Sequence[Buffer]) -> None:
        """The controller's announcement, or its answer to a question."""
        if message.id == 0:
            self.catalogue.replace(message.models)
        else:
            self._told(now_ns, controller, message, buffers)

    def _told(self, now_ns: int, controller: str, message: Models | Description, buffers: Sequence[Buffer]) -> None:
        self.out.extend(self.asks.told(message))

    def _ask(self, now_ns: int, client: str, message: Admit | Describe, buffers: Sequence[Buffer]) -> None:
        self.out.append(self.asks.ask(now_ns, client, message, self._controller))

    def _joined(self, now_ns: int, sender: str, message: Joined, buffers: Sequence[Buffer]) -> None:
        address = message.address
        match role(address):
            case "selector":
                self._selector = address
                for request in self._requests.values():
                    if request.selector != address:
                        self._query(now_ns, request)
            case "controller":
                self._controller = address
            case "worker":
                self._workers[address] = True
            case "profiler":
                self._sampling.profiler = address

    def _gone(self, now_ns: int, sender: str, message: Gone, buffers: Sequence[Buffer]) -> None:
        address = message.address
        match role(address):
            case "selector":
                self._selector = "" if address == self._selector else self._selector
                for key in [key for key, selector in self._lingering.items() if selector == address]:
                    del self._lingering[key]
                    self.staging.release(key)
            case "controller":
                self._controller = "" if address == self._controller else self._controller
            case "worker":
                self._workers.pop(address, None)
            case "profiler":
                self._sampling.gone(address)
            case _:
                self._cancelled(now_ns, address, Cancel(tuple(self._by_client.get(address, ()))), ())
