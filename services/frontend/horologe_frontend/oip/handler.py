"""The Open Inference Protocol v2 over HTTP, independent of the server: an HttpRequest in, an HttpResponse out.

Specification: kserve/open-inference-protocol, inference_rest.md. Extensions: Triton's docs/protocol. Requests are
translated into messages to the frontend core, so deadlines, refusals and answers equal those of the SDK.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from horologe_common.clock import monotonic_ns
from horologe_common.status import Forbidden, HorologeError, Status, Unauthenticated
from horologe_frontend.audit import audited
from horologe_frontend.console.feed import ConsoleFeed
from horologe_frontend.console.page import FILES, console_file
from horologe_frontend.core.access import Scope
from horologe_frontend.http.client_accounts import HeldBytes
from horologe_frontend.http.compression import choose_encoding, compress, decompress
from horologe_frontend.http.http_messages import HttpError, HttpResponse, error_response, failure, json_response
from horologe_frontend.http.steps import run_in_turns
from horologe_frontend.oip.applications_http import ApplicationsHandler
from horologe_frontend.oip.binary_encoding import HEADER_LENGTH
from horologe_frontend.oip.generate import generate, generate_stream, read_generate
from horologe_frontend.oip.inference import is_long, read_in_steps
from horologe_frontend.oip.inference_response import write_answer, write_in_steps
from horologe_frontend.oip.json_encoding import LONG_BYTES
from horologe_frontend.oip.known_requests import KnownRequests
from horologe_frontend.oip.lasting_refusals import LastingRefusals
from horologe_frontend.oip.model_documents import ModelDocuments
from horologe_frontend.oip.models_http import ModelsHandler
from horologe_frontend.oip.openapi import openapi_document
from horologe_frontend.oip.operations import OPEN_PATHS
from horologe_frontend.oip.predicts import complete_predict
from horologe_frontend.oip.response_json import LiveJson, ReadyJson
from horologe_frontend.oip.routes import CACHED_PATH, HttpRoute, cached_route, parse_route

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.models import ModelSpec
    from horologe_common.wire import Answer
    from horologe_frontend.core.access import Grant
    from horologe_frontend.gateway import Gateway
    from horologe_frontend.http.http_messages import HttpRequest
    from horologe_frontend.http.settings import HttpSettings
    from horologe_frontend.oip.predicts import InferenceRequest

    Work: TypeAlias = Callable[[HeldBytes], Coroutine[Any, Any, HttpResponse]]
    """It counts in its argument what it holds beside the request."""

REFUSED = int(Status.REFUSED)
REQUEST_HEADER = b"horologe-request"
COMPRESS_FROM_BYTES = 1024
"""Minimum size of a response body that is compressed, if the client accepts compression."""
log = logging.getLogger(__name__)


class PendingInference:
    """An inference in callbacks. `cancel` ends the operation that it waits for."""

    __slots__ = ("begin_ns", "cancel", "client", "inference", "request", "respond")

    def __init__(
        self, request: HttpRequest, inference: InferenceRequest, respond: Callable[[HttpResponse], None], client: str
    ) -> None:
        self.request = request
        self.inference = inference
        self.respond = respond
        self.client = client
        self.begin_ns = monotonic_ns()
        self.cancel: Callable[[], object] = lambda: None

    def cancel_operation(self) -> None:
        self.cancel()


class OipHandler:
    """Serves the protocol through a `Gateway`, whose core has the accepted keys."""

    def __init__(self, gateway: Gateway, settings: HttpSettings, version: str = "") -> None:
        self.draining = False
        """Set by the server when its shutdown begins. The readiness check fails from then on."""
        self._gateway = gateway
        self._settings = settings
        self._known_requests = KnownRequests(settings.json_limit_bytes)
        self._refusals = LastingRefusals()
        self._applications = ApplicationsHandler(gateway, settings, self._client_of)
        self.documents = ModelDocuments(gateway, self._is_ready, version, settings.uploads)
        self._models = ModelsHandler(self.documents)
        self._console = ConsoleFeed(gateway, lambda: self.draining)
        self._access = gateway.core.access

    def refuse(self, head: HttpRequest) -> HttpResponse | None:
        """Return a 401 unless the request carries an accepted key, or is for a path of `OPEN_PATHS`."""
        if self._access.is_open or head.path in OPEN_PATHS:
            return None
        try:
            self._access.authenticate(head.headers.get(b"authorization"))
        except Unauthenticated as error:
            return error_response(error)
        return None

    def refuse_again(self, request: HttpRequest, size: int) -> HttpResponse | None:
        """Return the refusal of a request that the controller would refuse again, or None: it must be started.

        The body of `request` may be the begin of one of `size` bytes: this is enough if its tensors are binary data.
        Call it once for each request. It counts a refused one, for its key too.
        """
        if (now_ns := monotonic_ns()) >= self._refusals.end_ns:
            return None
        headers, path = request.headers, request.path
        if b"content-encoding" in headers or len(path) > CACHED_PATH:
            return None
        if b"traceparent" in headers and self._gateway.is_traced:
            return None
        try:
            route = cached_route(request.method, path)
            client = self._client_of(request)
        except (HorologeError, HttpError):
            return None
        template = self._known_requests.find(route.model, route.version, headers.get(HEADER_LENGTH), request.body, size)
        if template is None or route.operation.name != "infer":
            return None
        if (refusal := self._refusals.find(now_ns, (client, template))) is None:
            return None
        try:
            self._authorize(route, request)
        except HorologeError as error:
            return error_response(error)
        self._gateway.count_refused(template.spec.key)
        return refusal

    def _keep_refusal(self, pending: PendingInference, answer: Answer, response: HttpResponse) -> None:
        """Keep a refusal that lasts. Without a version, other requests may reach another one, the canary."""
        request, predict = pending.request, pending.inference.predict
        if not predict.version and self._gateway.core.catalogue.has_canary(predict.model):
            return
        header_length, body = request.headers.get(HEADER_LENGTH), request.body
        template = self._known_requests.find(predict.model, predict.version, header_length, body, len(body))
        if template is not None:
            kind, next_ns = (pending.client, template), pending.begin_ns + answer.refuses_ns
            self._refusals.add(monotonic_ns(), kind, response, next_ns, answer.place_ns)

    def _authorize(self, route: HttpRoute, request: HttpRequest) -> None:
        """Count the request for its key, and check what the route needs.

        Raise `Unauthenticated`, `Forbidden`, or `Refused` beyond the rate of the key.
        """
        scope = route.operation.scope
        if scope is None:
            return
        if self._access.is_open:
            if scope is Scope.MANAGE and b"origin" in request.headers:
                # a browser lets any web page send a POST to a server on loopback
                raise Forbidden("management without keys is not permitted to web pages")
            return
        grant = self._grant_of(request)
        grant.take(monotonic_ns())
        grant.check(scope, route.model)

    def start(
        self, request: HttpRequest, respond: Callable[[HttpResponse], None]
    ) -> HttpResponse | Callable[[], object]:
        """Return the response, or begin a longer operation and return a function that cancels it.

        `respond` gets the response of the operation after this method has returned, and ignores that of one that was
        cancelled. An inference without Content-Encoding runs in callbacks. Every other operation runs in a task.
        """
        try:
            path = request.path
            find_route = cached_route if len(path) <= CACHED_PATH else parse_route
            route = find_route(request.method, path)
            headers = request.headers
            if route.operation.scope is not Scope.MANAGE:
                self._authorize(route, request)
            if route.operation.name != "infer" or b"content-encoding" in headers or _is_long(request):
                return _start_task(request, respond, partial(self._respond, route, request))
            header_length = headers.get(HEADER_LENGTH)
            inference = self._known_requests.read(self._find_spec(route), route.version, request.body, header_length)
            predict, is_traced = inference.predict, self._gateway.is_traced
            if is_traced or request.waited_ns:
                predict = complete_predict(predict, request, is_traced)
            client = self._client_of(request)
            pending = PendingInference(request, inference, respond, client)
            on_answer = partial(self._on_answer, pending)
            key = self._gateway.send(predict, inference.buffers, on_answer, client)
            pending.cancel = partial(self._gateway.cancel, key)
            return pending.cancel_operation
        except Exception as error:
            response = _failed(request, error)
        if _is_compressed(request, response):
            return _start_task(request, respond, partial(_compress_whole, request, response))
        return response

    def _on_answer(self, pending: PendingInference, answer: Answer, buffers: Sequence[Buffer]) -> None:
        request, inference = pending.request, pending.inference
        if inference.form.takes_long(answer.outputs):
            write = partial(self._write_answer, request, inference, answer, buffers)
            pending.cancel = _start_task(request, pending.respond, write)
            return
        try:
            response = write_answer(inference.predict, inference.form, answer, buffers, self._gateway.find_spec)
        except Exception as error:
            response = _failed(request, error, answer.id)
            if answer.place_ns and answer.status == REFUSED:
                self._keep_refusal(pending, answer, response)
        if _is_compressed(request, response):
            compress = partial(_compress_whole, request, response)
            pending.cancel = _start_task(request, pending.respond, compress)
        else:
            pending.respond(response)

    async def _write_answer(
        self,
        request: HttpRequest,
        inference: InferenceRequest,
        answer: Answer,
        buffers: Sequence[Buffer],
        held: HeldBytes,
    ) -> HttpResponse:
        """Return the response to an answer, made in steps."""
        try:
            find_spec = self._gateway.find_spec
            steps = write_in_steps(inference.predict, inference.form, answer, buffers, find_spec)
            response = await run_in_turns(steps, held)
            return await _compress(request, response, held) if _is_compressed(request, response) else response
        except Exception as error:
            return _failed(request, error, answer.id)

    async def _respond(self, route: HttpRoute, request: HttpRequest, held: HeldBytes) -> HttpResponse:
        if route.operation.name == "infer":
            body, spec = await self._body(request, held), self._find_spec(route)
            header_length = request.headers.get(HEADER_LENGTH)
            steps = read_in_steps(spec, route.version, body, header_length, self._settings.json_limit_bytes)
            inference = await run_in_turns(steps, held)
            predict = complete_predict(inference.predict, request, self._gateway.is_traced)
            answer, buffers = await self._gateway.predict(predict, inference.buffers, self._client_of(request))
            return await self._write_answer(request, inference, answer, buffers, held)
        response = await self._serve(route, request, held)
        if route.operation.has_binary and _is_compressed(request, response):
            return await _compress_whole(request, response, held)
        return response  # Triton's asyncio client accepts compression, but cannot read documents that have it

    async def _serve(self, route: HttpRoute, request: HttpRequest, held: HeldBytes) -> HttpResponse:
        if route.operation.scope is not Scope.MANAGE:
            return await self._serve_route(route, request, held)
        with audited(self._client_of(request), "http", route.operation.name, route.model) as entry:
            self._authorize(route, request)
            if route.operation.name in ("load", "unload"):
                body, grant = await self._body(request, held), self._grant_of(request)
                held.grow_to(held.size + len(body))  # files with escapes are decoded as a whole
                return await self._models.load(route, body, entry, grant)
            return await self._serve_route(route, request, held)

    async def _serve_route(self, route: HttpRoute, request: HttpRequest, held: HeldBytes) -> HttpResponse:
        if route.operation.name.startswith("application"):
            return await self._applications.handle_route(route, request, await self._body(request, held), held)
        if route.operation.name in FILES:
            return console_file(route.operation.name)
        if route.operation.name == "console_events":
            return self._console.open_stream(request.headers)
        if route.operation.name == "openapi":
            return HttpResponse(200, await asyncio.to_thread(openapi_document))
        if route.operation.name in ("generate", "generate_stream"):
            return await self._generate(route, request, await self._body(request, held), held)
        if route.operation.name == "live":
            return json_response(LiveJson(True))
        if route.operation.name == "ready":
            ready = self._is_ready()
            return json_response(ReadyJson(ready), 200 if ready else 503)
        return await self._models.handle_route(route, request, await self._body(request, held))

    async def _generate(self, route: HttpRoute, request: HttpRequest, body: bytes, held: HeldBytes) -> HttpResponse:
        """Return the only item of a model, or its items as events."""
        spec, limit = self._find_spec(route), self._settings.json_limit_bytes
        predict, buffers = await run_in_turns(read_generate(spec, route.version, body, limit), held)
        predict = complete_predict(predict, request, self._gateway.is_traced)
        respond = generate if route.operation.name == "generate" else generate_stream
        return await respond(self._gateway, predict, buffers, self._client_of(request))

    def _client_of(self, request: HttpRequest) -> str:
        """Return the name of the client that shares devices with others: of its key, or its address without keys."""
        if self._access.is_open:
            return request.account.name
        return self._grant_of(request).name

    def _grant_of(self, request: HttpRequest) -> Grant:
        return self._access.authenticate(request.headers.get(b"authorization"))

    def _is_ready(self) -> bool:
        return self._gateway.is_ready() and not self.draining

    async def _body(self, request: HttpRequest, held: HeldBytes) -> bytes:
        encoding = request.headers.get(b"content-encoding")
        if encoding is None:
            return request.body
        return await run_in_turns(decompress(request.body, encoding, self._settings.body_limit_bytes), held)

    def _find_spec(self, route: HttpRoute) -> ModelSpec:
        return self._gateway.find_spec(route.model, route.version)


def _is_long(request: HttpRequest) -> bool:
    return len(request.body) > LONG_BYTES and is_long(request.body, request.headers.get(HEADER_LENGTH))


def _start_task(request: HttpRequest, respond: Callable[[HttpResponse], None], work: Work) -> Callable[[], object]:
    """Start the work in a task, which passes its response to `respond`. Return the function that cancels it."""
    return asyncio.ensure_future(_run(request, respond, work)).cancel


async def _run(request: HttpRequest, respond: Callable[[HttpResponse], None], work: Work) -> None:
    with HeldBytes(request.account) as held:
        try:
            response = await work(held)
        except Exception as error:
            response = _failed(request, error)
    respond(response)


def _failed(request: HttpRequest, error: Exception, request_id: int = 0) -> HttpResponse:
    """Return the response for an exception. Log an exception that is no error of the request.

    `request_id` becomes a header, by which `horologe explain` finds the request in a recording.
    """
    if isinstance(error, HorologeError | HttpError):
        response = error_response(error)
    else:
        log.error("internal error while handling %s %s", request.method, request.path, exc_info=error)
        response = failure(500, "internal error")
    if request_id:
        response = msgspec.structs.replace(response, headers=(*response.headers, (REQUEST_HEADER, b"%d" % request_id)))
    return response


def _is_compressed(request: HttpRequest, response: HttpResponse) -> bool:
    return b"accept-encoding" in request.headers and response.size >= COMPRESS_FROM_BYTES


async def _compress_whole(request: HttpRequest, response: HttpResponse, held: HeldBytes) -> HttpResponse:
    held.grow_to(held.size + response.size)
    return await _compress(request, response, held)


async def _compress(request: HttpRequest, response: HttpResponse, held: HeldBytes) -> HttpResponse:
    """Return the response compressed, if the client accepts that. Raise `Refused` or `TooLarge` without memory."""
    encoding = choose_encoding(request.headers[b"accept-encoding"])
    if not encoding:
        return response
    body = await run_in_turns(compress((response.body, *response.parts), encoding), held)
    headers = (*response.headers, (b"content-encoding", encoding), (b"vary", b"Accept-Encoding"))
    return msgspec.structs.replace(response, body=body, headers=headers, parts=())
