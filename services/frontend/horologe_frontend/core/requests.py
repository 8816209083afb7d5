"""Requests: from a client's Predict to an open request, and the open requests."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

import msgspec

from horologe_common.applications import NAME_LIMIT, Application
from horologe_common.clock import NEVER_NS, ms
from horologe_common.core.accounts import fair_part
from horologe_common.core.indexed_heap import COMPACT_ABOVE
from horologe_common.core.protocol import key_of_client
from horologe_common.models import ModelSpec
from horologe_common.status import InvalidInput, Refused, TooLarge
from horologe_common.wire import Predict, Query, Tensor
from horologe_frontend.core.application_requests import APPLICATION_RUNTIME, DefaultLead
from horologe_frontend.core.overload import SendDelays, TurnLimit
from horologe_frontend.core.plain_requests import is_plain
from horologe_frontend.core.streamed_requests import stream_limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.core.staging import StagedInputs
    from horologe_frontend.core.application_requests import DeclaredApplications
    from horologe_frontend.core.model_versions import ModelVersions
    from horologe_frontend.settings import FrontendSettings

NO_IDS: Mapping[int, int] = {}


class ClientRequest(msgspec.Struct):
    """An open request of a client."""

    id: int
    client: str
    client_id: int
    spec: ModelSpec
    """The model, or the signature of the application."""
    arrival_ns: int
    deadline_ns: int
    query: Query
    outputs: tuple[str, ...]
    give_up_ns: int
    """When the frontend answers without the selector: after the deadline, or before it if there is a default."""
    application: Application | None = None
    """None: the request is for a model."""
    is_plain: bool = False
    """It goes to the controller without a selector."""
    receiver: str = ""
    """The selector that has the query, or the controller that has the Submit of a plain request. Empty: none."""
    worker: str = ""
    """The worker that has the inputs. Empty: none."""
    items: int = 0
    """Items of a stream that were sent to the client."""
    may_have_run: bool = False
    """A worker had the inputs when the selector or the controller disconnected: it must not end as REFUSED."""


class RequestBuilder:
    """Validate requests, stage their inputs and number them. `digest` hashes inputs for the prediction cache."""

    def __init__(
        self,
        settings: FrontendSettings,
        catalogue: ModelVersions,
        declared: DeclaredApplications,
        staging: StagedInputs,
        default_lead: DefaultLead,
        digest: Callable[[bytes, Sequence[Buffer]], bytes],
    ) -> None:
        self.settings = settings
        self.catalogue = catalogue
        self.declared = declared
        self.staging = staging
        self._default_lead = default_lead
        self._digest = digest
        self.turn_limit = TurnLimit()
        self.send_delays = SendDelays()
        self._last_id = 0

    def create_request(
        self, now_ns: int, client: str, message: Predict, buffers: Sequence[Buffer], name: str
    ) -> ClientRequest:
        """Return a request whose inputs are staged. Raise `HorologeError` if it is invalid, or `Refused`.

        `client` is the address of the client, `name` see `client_name`. The deadline is the client's, else that of the
        model or application. Without one it is best effort, and answered within `frontend.best_effort_ns`.
        """
        self.check_size(buffers)
        if message.budget_ns < 0:
            raise InvalidInput(f"budget_ns: got {message.budget_ns}, wanted at least 0")
        if message.waited_ns < 0:
            raise InvalidInput(f"waited_ns: got {message.waited_ns}, wanted at least 0")
        application: Application | None = None
        if message.application or message.context:
            application, spec = self._find_named(message)
        else:
            spec = self.catalogue.choose_model(message.model, message.version)
        stream = stream_limits(message, spec) if spec.streams else None
        budget_ns = self._remaining_budget(now_ns, client, message, spec)
        best_effort = budget_ns == 0
        budget_ns = budget_ns or self.settings.best_effort_ns
        rows, shape_key, length = self.catalogue.check_inputs(spec, message.inputs, buffers, message.outputs)
        cacheable = spec.cache or spec.runtime == APPLICATION_RUNTIME
        input_hash = self.hash_inputs(message.inputs, buffers) if cacheable else b""
        key = self._stage_inputs(message.inputs, buffers, name)
        model = "" if application else spec.key
        query = Query(
            key,
            model,
            budget_ns,
            rows,
            input_hash,
            best_effort,
            shape_key,
            length,
            message.application,
            message.context,
            message.content_hash,
            client=name,
            stream=stream,
        )
        deadline_ns = now_ns + budget_ns
        give_up_ns = deadline_ns + self.settings.grace_ns
        if application is not None and application.default is not None:
            give_up_ns = deadline_ns - min(self._default_lead.lead_ns(now_ns), budget_ns // 4)
        plain = bool(model) and is_plain(spec)
        return ClientRequest(
            key, client, message.id, spec, now_ns, deadline_ns, query, message.outputs, give_up_ns, application, plain
        )

    def _remaining_budget(self, now_ns: int, client: str, message: Predict, spec: ModelSpec) -> int:
        """Return the nanoseconds to the deadline, less what it has waited; 0: no deadline. Raise `Refused`."""
        budget_ns = min(message.budget_ns, NEVER_NS >> 1) or spec.slo_ns
        if budget_ns:
            waited_ns = self.turn_limit.waited_ns(now_ns) + message.waited_ns
            if message.sent_ns:
                waited_ns = max(waited_ns, self.send_delays.waited_ns(now_ns, client, message.sent_ns))
            budget_ns = max(1, budget_ns - waited_ns)
            self.turn_limit.accept(budget_ns)
        return budget_ns

    def _find_named(self, message: Predict) -> tuple[Application | None, ModelSpec]:
        """Return application (None: for a model) and signature. Raise `InvalidInput` or `UnknownModel`."""
        check_names(application=message.application, context=message.context)
        if message.application and not message.model:
            return self.declared.find_with_signature(message.application)
        return None, self.catalogue.choose_model(message.model, message.version)

    def stage_query(
        self,
        spec: ModelSpec,
        inputs: tuple[Tensor, ...],
        buffers: Sequence[Buffer],
        input_hash: bytes,
        budget_ns: int,
        context: str,
    ) -> Query:
        """Stage the inputs of feedback and return a best-effort query for them. Raise `InvalidInput` or `Refused`."""
        rows, shape_key, length = self.catalogue.check_inputs(spec, inputs, buffers)
        key = self._stage_inputs(inputs, buffers)
        return Query(key, "", budget_ns, rows, input_hash, True, shape_key, length, spec.name, context)

    def check_size(self, buffers: Sequence[Buffer]) -> None:
        """Raise `TooLarge` if the tensors of a message exceed `frontend.max_request_bytes`."""
        size = sum(map(len, buffers))
        if size > self.settings.max_request_bytes:
            raise TooLarge(f"inputs: got {size} bytes, at most {self.settings.max_request_bytes}")

    def hash_inputs(self, inputs: tuple[Tensor, ...], buffers: Sequence[Buffer]) -> bytes:
        """Return the cache key of inputs, independent of their order."""
        if len(inputs) > 1:
            pairs = sorted(zip(inputs, buffers, strict=True), key=lambda pair: pair[0].name)
            inputs, buffers = tuple(tensor for tensor, _ in pairs), [buffer for _, buffer in pairs]
        return self._digest(repr(inputs).encode(), buffers)

    def _stage_inputs(self, inputs: tuple[Tensor, ...], buffers: Sequence[Buffer], client: str = "") -> int:
        """Stage the inputs under a new id and return the id. Inputs of a `client` count as its own."""
        self._last_id += 1
        if not self.staging.hold(self._last_id, inputs, buffers, client):
            raise Refused("staging is full", retry_after_ns=ms(100))
        return self._last_id


def client_name(frontend: str, address: str, message: Predict) -> str:
    """Return the name under which a client shares devices: of its key, else its HTTP address, else its connection."""
    if address.startswith("http/"):
        return message.client or address
    return key_of_client(address) or f"{address} of {frontend}"


def check_names(**names: str) -> None:
    """Raise `InvalidInput` for a name that is too long or holds a NUL, where SQLite would end the text."""
    for field, name in names.items():
        if len(name) > NAME_LIMIT:
            raise InvalidInput(f"{field}: got {len(name)} characters, at most {NAME_LIMIT}")
        if "\0" in name:
            raise InvalidInput(f"{field}: got {name!r}, wanted no NUL in it")


class OpenRequests:
    """The open requests by id, and by client and the client's own id.

    Invariant: each open request has one entry among the expiry times, one id of its client, and counts once for it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._requests: dict[int, ClientRequest] = {}
        self._expiries: list[tuple[int, int]] = []
        """Heap of (`give_up_ns`, id). Entries of requests that are not open any more are stale."""
        self._by_client: dict[str, dict[int, int]] = {}
        self._counts: dict[str, int] = {}
        """Open requests by `client_name`."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ClientRequest]:
        return iter(self._requests.values())

    def __contains__(self, key: int) -> bool:
        return key in self._requests

    def mark_dispatched(self) -> None:
        """Set `may_have_run` of the requests that a worker has."""
        for request in self:
            request.may_have_run |= bool(request.worker)

    def check_new(self, address: str, client_id: int, client: str) -> None:
        """Check whether the client at `address` may open a request. It gets its `fair_part` of the limit.

        Raise `Refused` if it has too many, `InvalidInput` if its id is of an open one.
        """
        if client_id in self.ids_of_client(address):
            raise InvalidInput(f"id: got {client_id}, which is still open")
        own = self._counts.get(client, 0)
        if own >= fair_part(self._limit - len(self._requests) + own):
            raise Refused(f"{len(self._requests)} requests are open already", retry_after_ns=ms(100))

    def add(self, request: ClientRequest) -> None:
        """Add a request, which expires at its `give_up_ns`."""
        requests, expiries = self._requests, self._expiries
        requests[request.id] = request
        open_ids = self._by_client.get(request.client)
        if open_ids is None:
            open_ids = self._by_client[request.client] = {}
        open_ids[request.client_id] = request.id
        name = request.query.client
        self._counts[name] = self._counts.get(name, 0) + 1
        heappush(expiries, (request.give_up_ns, request.id))
        if len(expiries) > COMPACT_ABOVE and len(expiries) > 2 * len(requests):
            self._expiries = [entry for entry in expiries if entry[1] in requests]
            heapify(self._expiries)

    def find_request(self, key: int) -> ClientRequest | None:
        return self._requests.get(key)

    def find_by_client_id(self, client: str, client_id: int) -> ClientRequest | None:
        open_ids = self._by_client.get(client)
        return self._requests.get(open_ids.get(client_id, 0)) if open_ids else None

    def ids_of_client(self, client: str) -> Mapping[int, int]:
        """Return the ids of a client's open requests, by the client's own ids."""
        return self._by_client.get(client, NO_IDS)

    def remove(self, request: ClientRequest) -> None:
        del self._requests[request.id]
        open_ids = self._by_client[request.client]
        del open_ids[request.client_id]
        if not open_ids:
            del self._by_client[request.client]
        name = request.query.client
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]

    def next_ns(self) -> int | None:
        """Return the earliest expiry, or None without open requests."""
        expiries, requests = self._expiries, self._requests
        while expiries and expiries[0][1] not in requests:
            heappop(expiries)
        return expiries[0][0] if expiries else None

    def pop_expired(self, now_ns: int) -> list[ClientRequest]:
        """Return the requests that have expired. The caller must `remove` each of them."""
        expiries, expired = self._expiries, []
        while expiries and expiries[0][0] <= now_ns:
            if (request := self._requests.get(heappop(expiries)[1])) is None:
                continue
            if request.give_up_ns > now_ns:  # a stream that has moved
                heappush(expiries, (request.give_up_ns, request.id))
            else:
                expired.append(request)
        return expired

    def check(self) -> None:
        first_ns: dict[int, int] = {}
        for at_ns, key in self._expiries:
            first_ns[key] = min(at_ns, first_ns.get(key, at_ns))
        assert all(first_ns[request.id] <= request.give_up_ns for request in self)
        assert len(self._requests) == sum(map(len, self._by_client.values())) == sum(self._counts.values())
