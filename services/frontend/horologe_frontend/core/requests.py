"""From a client's Predict to a request: its inputs staged, its model or application settled, its deadline a point in
time. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.application_outputs import answer_tensors
from horologe_common.applications import NAME_LIMIT, Application
from horologe_common.clock import NEVER_NS, ms
from horologe_common.core.timers import Timers
from horologe_common.models import ModelSpec
from horologe_common.status import InvalidInput, Refused, Status, TooLarge
from horologe_common.wire import Answer, Predict, Query, Tensor
from horologe_frontend.core.applications import APPLICATION_RUNTIME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.core.staging import Staging
    from horologe_frontend.core.applications import DeclaredApplications
    from horologe_frontend.core.catalogue import ModelCatalogue
    from horologe_frontend.core.default_lead import DefaultLead
    from horologe_frontend.settings import FrontendSettings


class Request(msgspec.Struct):
    """An open request of a client. `selector` is where it was asked, `worker` where its inputs went.

    `application`: the one that is asked, None where it is a model; `spec` is its signature then.
    """

    id: int
    client: str
    client_id: int
    spec: ModelSpec
    arrival_ns: int
    deadline_ns: int
    query: Query
    outputs: tuple[str, ...]
    give_up_ns: int
    """When to answer without the selector: after the deadline, but a default before it."""
    application: Application | None = None
    selector: str = ""
    worker: str = ""


class RequestBuilder:
    """Numbers requests. `digest` hashes a request's bytes for the prediction cache."""

    def __init__(
        self,
        settings: FrontendSettings,
        catalogue: ModelCatalogue,
        declared: DeclaredApplications,
        staging: Staging,
        lag: DefaultLead,
        digest: Callable[[bytes, Sequence[Buffer]], bytes],
    ) -> None:
        self.settings = settings
        self.catalogue = catalogue
        self.declared = declared
        self.staging = staging
        self._default_lead = lag
        self._digest = digest
        self._last_id = 0

    def create_request(self, now_ns: int, client: str, message: Predict, buffers: Sequence[Buffer]) -> Request:
        """A request, its inputs staged. Raises what the client did wrong, or `Refused`."""
        self.check_size(buffers)
        check_names(application=message.application, context=message.context)
        application: Application | None = None
        if message.application and not message.model:
            application, spec = self.declared.find_with_signature(message.application)
        else:
            spec = self.catalogue.find_model(message.model, message.version)
        # the client's deadline, else the model's or application's, else none: best effort
        budget_ns = min(max(0, message.budget_ns), NEVER_NS >> 1) or spec.slo_ns
        best_effort = budget_ns == 0
        budget_ns = budget_ns or self.settings.best_effort_ns
        rows, alike, length = self.catalogue.check_inputs(spec, message.inputs, message.outputs)
        digest = self.hash_inputs(message.inputs, buffers) if spec.cache or spec.runtime == APPLICATION_RUNTIME else b""
        key = self._stage_inputs(message.inputs, buffers)
        query = Query(
            key,
            "" if application else spec.key,
            budget_ns,
            rows,
            digest,
            best_effort,
            alike,
            length,
            message.application,
            message.context,
        )
        deadline_ns = now_ns + budget_ns
        if application is None or application.default is None:
            give_up_ns = deadline_ns + self.settings.grace_ns
        else:
            give_up_ns = deadline_ns - min(self._default_lead.lead_ns(now_ns), budget_ns // 4)
        return Request(
            key, client, message.id, spec, now_ns, deadline_ns, query, message.outputs, give_up_ns, application
        )

    def stage_query(
        self,
        spec: ModelSpec,
        inputs: tuple[Tensor, ...],
        buffers: Sequence[Buffer],
        digest: bytes,
        budget_ns: int,
        context: str,
    ) -> Query:
        """A best-effort query of an application, that nobody waits for; its inputs are staged.

        Raises what is wrong with it, or `Refused`.
        """
        rows, alike, length = self.catalogue.check_inputs(spec, inputs)
        key = self._stage_inputs(inputs, buffers)
        return Query(key, "", budget_ns, rows, digest, True, alike, length, spec.name, context)

    def check_size(self, buffers: Sequence[Buffer]) -> None:
        """Raise `TooLarge` over what one message may bring."""
        size = sum(map(len, buffers))
        if size > self.settings.max_request_bytes:
            raise TooLarge(f"inputs: got {size} bytes, at most {self.settings.max_request_bytes}")

    def hash_inputs(self, inputs: tuple[Tensor, ...], buffers: Sequence[Buffer]) -> bytes:
        """The hash of inputs, under which what was predicted of them is joined or cached; in whichever order."""
        if len(inputs) > 1:
            pairs = sorted(zip(inputs, buffers, strict=True), key=lambda pair: pair[0].name)
            inputs, buffers = tuple(tensor for tensor, _ in pairs), [buffer for _, buffer in pairs]
        return self._digest(repr(inputs).encode(), buffers)

    def _stage_inputs(self, inputs: tuple[Tensor, ...], buffers: Sequence[Buffer]) -> int:
        """A new id with the inputs staged under it."""
        self._last_id += 1
        if not self.staging.hold(self._last_id, inputs, buffers):
            raise Refused("staging is full", retry_after_ns=ms(100))
        return self._last_id


def check_names(**texts: str) -> None:
    """Raise `InvalidInput` for names too long, or with a NUL: what is learned is kept by them, and SQLite ends a text
    there."""
    for field, text in texts.items():
        if len(text) > NAME_LIMIT:
            raise InvalidInput(f"{field}: got {len(text)} characters, at most {NAME_LIMIT}")
        if "\0" in text:
            raise InvalidInput(f"{field}: got {text!r}, wanted no NUL in it")


class OpenRequests:
    """Law: every request has one timer, and its client one id for it."""

    def __init__(self) -> None:
        self.timers = Timers()
        self._requests: dict[int, Request] = {}
        self._by_client: dict[str, dict[int, int]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests.values())

    def __contains__(self, key: int) -> bool:
        return key in self._requests

    def add(self, request: Request) -> None:
        """Open it; its timer is at `give_up_ns`."""
        self._requests[request.id] = request
        self._by_client.setdefault(request.client, {})[request.client_id] = request.id
        self.timers.arm(request.id, request.give_up_ns)

    def find_request(self, key: int) -> Request | None:
        return self._requests.get(key)

    def find_by_client_id(self, client: str, client_id: int) -> Request | None:
        """What this client calls so."""
        return self._requests.get(self._by_client.get(client, {}).get(client_id, 0))

    def client_ids(self, client: str) -> tuple[int, ...]:
        """What this client calls its open requests."""
        return tuple(self._by_client.get(client, ()))

    def remove(self, request: Request) -> None:
        del self._requests[request.id]
        open_ids = self._by_client[request.client]
        del open_ids[request.client_id]
        if not open_ids:
            del self._by_client[request.client]
        self.timers.cancel(request.id)

    def pop_expired(self, now_ns: int) -> list[Request]:
        """Whose time has come; each must be removed now."""
        return [self._requests[key] for key in self.timers.pop_expired(now_ns)]

    def next_ns(self) -> int | None:
        return self.timers.next_ns()

    def check(self) -> None:
        self.timers.check()
        assert len(self._requests) == len(self.timers) == sum(map(len, self._by_client.values()))


REPLACED_BY_DEFAULT = frozenset(map(int, (Status.REFUSED, Status.LATE, Status.LOST, Status.FAILED)))
"""Where an application has a default, that is better."""


def with_client_id(answer: Answer, client_id: int) -> Answer:
    """The answer under the id that the client gave its request."""
    return Answer(
        client_id,
        answer.status,
        answer.outputs,
        answer.reason,
        answer.retry_after_ns,
        answer.model,
        answer.version,
        answer.queue_ns,
        answer.exec_ns,
        answer.batch_size,
        answer.cached,
        answer.confidence,
        answer.models,
        answer.missing,
        answer.defaulted,
        answer.prediction,
    )


def default_answer(request: Request) -> tuple[Answer, Sequence[Buffer]] | None:
    """What its application has declared to be answered where nothing better is known; None if nothing is."""
    application, rows = request.application, request.query.rows
    if application is None or application.default is None:
        return None
    outputs, buffers = answer_tensors(application, [application.default] * rows, [0.0] * rows, [True] * rows)
    return Answer(request.id, int(Status.OK), outputs, defaulted=True), buffers


def answer_or_default(request: Request, answer: Answer, buffers: Sequence[Buffer]) -> tuple[Answer, Sequence[Buffer]]:
    """The answer, or the default where that is better."""
    if answer.status in REPLACED_BY_DEFAULT and (default := default_answer(request)):
        return msgspec.structs.replace(default[0], lingers=answer.lingers), default[1]
    return answer, buffers


def timeout_answer(request: Request, working: bool) -> Answer:
    """Nobody has answered. `working`: a worker has its inputs, and is there."""
    if working:
        return Answer(request.id, int(Status.LATE), (), "not finished by the deadline")
    return Answer(request.id, int(Status.LOST), (), "nothing heard of it by the deadline")


def select_outputs(
    answer: Answer, buffers: Sequence[Buffer], wanted: tuple[str, ...]
) -> tuple[Answer, Sequence[Buffer]]:
    """The answer with the outputs asked for, in the order asked."""
    at = {tensor.name: index for index, tensor in enumerate(answer.outputs)}
    order = [at[name] for name in wanted if name in at]
    outputs = tuple(answer.outputs[index] for index in order)
    return msgspec.structs.replace(answer, outputs=outputs), [buffers[index] for index in order]
