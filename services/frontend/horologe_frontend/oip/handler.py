"""The Open Inference Protocol v2 over HTTP, independent of the server: a Request in, a Response out.

Specification: kserve/open-inference-protocol, inference_rest.md; extensions: Triton's docs/protocol. Everything is
translated into the native messages of the frontend, so deadlines, refusals and answers are the same for every door.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from horologe_common.clock import monotonic_ns
from horologe_common.status import HorologeError, InvalidInput, Status, Unauthenticated, UnknownModel, error_for
from horologe_common.wire import ModelState
from horologe_frontend.auth import Keys
from horologe_frontend.core.stats import stats_json
from horologe_frontend.http.compression import accepted, deflate, inflate
from horologe_frontend.http.responses import HttpError, Response, error_response, failure, json_response
from horologe_frontend.oip.applications_http import ApplicationDoor
from horologe_frontend.oip.binary_encoding import HEADER_LENGTH
from horologe_frontend.oip.inference import read_request, write_answer
from horologe_frontend.oip.model_metadata import choose, config, index, metadata
from horologe_frontend.oip.routes import LIVE, READY, Route, route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.models import ModelSpec
    from horologe_frontend.gateway import Port
    from horologe_frontend.http.request_reader import Request
    from horologe_frontend.http.settings import HttpSettings

EXTENSIONS = ("binary_tensor_data", "classification", "model_configuration", "model_repository", "statistics")
T = TypeVar("T")
log = logging.getLogger(__name__)


class Oip:
    """A `Handler`: the protocol over a Port."""

    def __init__(self, port: Port, settings: HttpSettings, keys: Keys | None = None, version: str = "") -> None:
        self.draining = False
        self._port = port
        self._settings = settings
        self._applications = ApplicationDoor(port, settings)
        self._keys = keys or Keys()
        self._version = version

    def refuse(self, head: Request) -> Response | None:
        """401 without a valid key, whatever the path; only health is open to everybody."""
        if self._keys.accept(head.headers.get(b"authorization")) or head.path in (LIVE, READY):
            return None
        return error_response(Unauthenticated())

    async def handle(self, request: Request) -> Response:
        """The answer. Only the cancellation of the task gets out."""
        if refusal := self.refuse(request):
            return refusal
        try:
            response = await self._answer(request)
        except (HorologeError, HttpError) as error:
            response = error_response(error)
        except Exception:
            log.exception("fault while answering %s %s", request.method, request.path)
            response = failure(500, "internal error")
        if b"accept-encoding" in request.headers and len(response.body) >= self._settings.compress_from_bytes:
            return await _compress(request, response)
        return response

    async def _answer(self, request: Request) -> Response:
        asked = route(request.path, request.method)
        if asked.name == "infer":
            return await self._infer(asked, request)
        if asked.name.startswith("application"):
            return await self._applications.answer(asked, request, await self._body(request))
        if asked.name in ("index", "load", "unload"):
            return await self._repository(asked, await self._body(request))
        match asked.name:
            case "live":
                return _health("live", self._port.live())
            case "ready":
                return _health("ready", self._port.ready() and not self.draining)
            case "server":
                return json_response({"name": "horologe", "version": self._version, "extensions": EXTENSIONS})
            case "models":
                return json_response({"models": sorted({state.spec.name for state in self._port.models()})})
            case "all_stats":
                return self._stats(self._port.models())
            case "shared_memory":
                raise HttpError(501, "shared memory is not supported: send tensors as binary data")
            case "unsupported":
                raise HttpError(501, "trace and logging settings are not supported over HTTP")
        return self._model(asked)

    async def _body(self, request: Request) -> bytes:
        encoding = request.headers.get(b"content-encoding")
        if encoding is None:
            return request.body
        return await inflate(request.body, encoding, self._settings.body_limit_bytes)

    async def _infer(self, asked: Route, request: Request) -> Response:
        spec = self._spec(asked)
        body = await self._body(request) if b"content-encoding" in request.headers else request.body
        header_length = request.headers.get(HEADER_LENGTH)
        inference = read_request(spec, asked.version, body, header_length, self._settings.json_limit_bytes)
        answer, buffers = await self._port.predict(inference.predict, inference.buffers)
        return write_answer(inference, answer, buffers)

    def _spec(self, asked: Route) -> ModelSpec:
        """Of the model; where there is none of this name, of the application."""
        try:
            return self._port.find(asked.model, asked.version)
        except UnknownModel as unknown:
            if asked.version:
                raise
            try:
                return self._port.application(asked.model)[1]
            except HorologeError:
                raise unknown from None

    def _model(self, asked: Route) -> Response:
        """What is known of one model, or application, without running it."""
        states = self._port.models(asked.model) or [ModelState(self._spec(asked))]
        state = choose(states, asked.model, asked.version)
        match asked.name:
            case "metadata":
                return json_response(metadata(state.spec, states))
            case "model_ready":
                ready = state.state == "READY" and self._port.ready() and not self.draining
                return json_response({"name": asked.model, "ready": ready}, 200 if ready else 503)
            case "config":
                return json_response(config(state.spec))
            case _:
                return self._stats([state] if asked.version else states)

    def _stats(self, states: Sequence[ModelState]) -> Response:
        offset_ns = time.time_ns() - monotonic_ns()
        return json_response(
            {"model_stats": [stats_json(s.spec, self._port.stats(s.spec.key), offset_ns) for s in states]}
        )

    async def _repository(self, asked: Route, body: bytes) -> Response:
        if asked.name == "index":
            return json_response(index(self._port.models(), _optional(body, IndexJson).ready))
        for name in _optional(body, AdmitJson).parameters or ():
            if name == "config" or name.startswith("file:"):
                raise HttpError(501, f"parameters.{name}: not supported: models come from the repository on disk")
        models = await self._port.admit(asked.model, "", asked.name == "load")
        if models.status != Status.OK:
            raise error_for(models.status, models.reason)
        return Response(200)


class IndexJson(msgspec.Struct):
    ready: bool = False


class AdmitJson(msgspec.Struct):
    parameters: dict[str, Any] | None = None


async def _compress(request: Request, response: Response) -> Response:
    encoding = accepted(request.headers[b"accept-encoding"])
    if not encoding:
        return response
    body = await deflate(response.body, encoding)
    headers = (*response.headers, (b"content-encoding", encoding), (b"vary", b"Accept-Encoding"))
    return response._replace(body=body, headers=headers)


def _optional(body: bytes, kind: type[T]) -> T:
    """A JSON object that may be left away altogether: tritonclient posts an empty body for the index."""
    try:
        return msgspec.json.decode(body.strip() or b"{}", type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"body: {error}") from error


def _health(name: str, good: bool) -> Response:
    """A body in JSON, because kserve's client reads one; Triton's looks at the status only."""
    return json_response({name: good}, 200 if good else 503)
