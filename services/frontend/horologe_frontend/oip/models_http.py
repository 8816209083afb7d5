"""Server and models over HTTP: metadata, configuration, statistics, repository index, load and unload."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from horologe_common.clock import monotonic_ns
from horologe_common.status import InvalidInput, Status, TooLarge, error_for
from horologe_common.wire import ModelState
from horologe_frontend.core.model_versions import check_read
from horologe_frontend.http.http_messages import HttpError, HttpResponse, json_response
from horologe_frontend.oip.known_parameters import LOAD, check_parameters
from horologe_frontend.oip.model_metadata import (
    choose_version,
    model_config,
    model_metadata,
    model_statistics,
    repository_index,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.models import ModelSpec
    from horologe_frontend.gateway import Gateway
    from horologe_frontend.http.http_messages import HttpRequest
    from horologe_frontend.oip.routes import HttpRoute

EXTENSIONS = ("binary_tensor_data", "classification", "model_configuration", "model_repository", "statistics")
UNSUPPORTED = {
    "shared_memory": "shared memory is not supported: send tensors as binary data",
    "unsupported": "trace and logging settings are not supported over HTTP",
}
OPTIONAL_BYTES = 64 << 10
"""Maximum size of JSON without tensors."""
T = TypeVar("T")


class IndexJson(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request for the repository index."""

    ready: bool = False


class LoadJson(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request to load or unload a model."""

    parameters: dict[str, Any] | None = None


class ModelsHandler:
    """Handle the routes of the server and its models. Errors are raised, and `OipHandler` answers them.

    `find_spec` returns the model or the signature of the application that a route names. `is_ready` returns whether
    this server accepts requests. `version` is that of the server.
    """

    def __init__(
        self, gateway: Gateway, find_spec: Callable[[HttpRoute], ModelSpec], is_ready: Callable[[], bool], version: str
    ) -> None:
        self._gateway = gateway
        self._find_spec = find_spec
        self._is_ready = is_ready
        self._version = version

    async def handle_route(self, route: HttpRoute, request: HttpRequest, body: bytes) -> HttpResponse:
        """Return the response. Raise `HorologeError` or `HttpError` if the operation fails."""
        if route.name in ("load", "unload"):
            return await self._load(route, body)
        return await request.account.turns.in_turn(request.account, self._describe, route, body)

    async def _load(self, route: HttpRoute, body: bytes) -> HttpResponse:
        """Load or unload a model of the repository. A load is answered with the index of the model."""
        parameters = _decode_optional(body, LoadJson).parameters
        for name in parameters or ():
            if name == "config" or name.startswith("file:"):
                raise HttpError(501, f"parameters.{name}: not supported: models come from the repository on disk")
        check_parameters("parameters.", parameters, LOAD)
        models = await self._gateway.set_admitted(route.model, "", route.name == "load")
        if models.status != Status.OK:
            raise error_for(models.status, models.reason)
        return json_response(repository_index(models.models, False)) if route.name == "load" else HttpResponse(200)

    def _describe(self, route: HttpRoute, body: bytes) -> HttpResponse:
        match route.name:
            case "index":
                return json_response(
                    repository_index(self._gateway.model_states(), _decode_optional(body, IndexJson).ready)
                )
            case "server":
                return json_response({"name": "horologe", "version": self._version, "extensions": EXTENSIONS})
            case "models":
                return json_response({"models": sorted({state.spec.name for state in self._gateway.model_states()})})
            case "all_stats":
                return self._statistics(self._gateway.model_states())
            case "shared_memory" | "unsupported":
                raise HttpError(501, UNSUPPORTED[route.name])
        return self._model(route)

    def _model(self, route: HttpRoute) -> HttpResponse:
        """Describe a model or an application."""
        states = self._gateway.model_states(route.model) or [ModelState(self._find_spec(route))]
        state = choose_version(states, route.model, route.version)
        if route.name in ("metadata", "config"):
            check_read(state)
        match route.name:
            case "metadata":
                return json_response(model_metadata(state.spec, states))
            case "model_ready":
                ready = state.state == "READY" and self._is_ready()
                document = {"name": route.model, "ready": ready, "state": state.state, "reason": state.reason}
                return json_response(document, 200 if ready else 503)
            case "config":
                return json_response(model_config(state.spec))
            case _:
                return self._statistics([state] if route.version else states)

    def _statistics(self, states: Sequence[ModelState]) -> HttpResponse:
        offset_ns = time.time_ns() - monotonic_ns()
        specs = [state.spec for state in states]
        elements = [model_statistics(spec, self._gateway.model_stats(spec.key), offset_ns) for spec in specs]
        return json_response({"model_stats": elements})


def _decode_optional(body: bytes, kind: type[T]) -> T:
    """Decode a JSON object. The body may be empty: tritonclient requests the index without one.

    Raise `TooLarge` over `OPTIONAL_BYTES`.
    """
    if len(body) > OPTIONAL_BYTES:
        raise TooLarge(f"body: got {len(body)} bytes of JSON, at most {OPTIONAL_BYTES}")
    try:
        return msgspec.json.decode(body.strip() or b"{}", type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"body: {error}") from error
