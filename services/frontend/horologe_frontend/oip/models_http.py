"""Server and models over HTTP: metadata, configuration, statistics, repository index, load and unload."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from horologe_common.status import InvalidInput, TooLarge
from horologe_frontend.http.http_messages import HttpResponse, Unsupported, json_response
from horologe_frontend.oip.known_parameters import LOAD, UNLOAD
from horologe_frontend.uploads import check_length, read_json

if TYPE_CHECKING:
    from horologe_frontend.core.access import Grant
    from horologe_frontend.core.management import ManagementCall
    from horologe_frontend.http.http_messages import HttpRequest
    from horologe_frontend.oip.model_documents import ModelDocuments
    from horologe_frontend.oip.routes import HttpRoute

OPTIONAL_BYTES = 64 << 10
"""Maximum size of JSON without tensors."""
VERSION, FLAG = {"type": "string"}, {"type": "boolean"}
ROLLOUTS = {"promote": VERSION, "rollback": {"const": True}, "canary": VERSION, "weight": {"type": "number"}}
UNLOAD_SCHEMA = {"type": ["object", "null"], "properties": dict.fromkeys(UNLOAD, FLAG)}
LOAD_PARAMETERS = {name: ROLLOUTS.get(name, FLAG) for name in LOAD} | {"config": {"type": "string"}}
FILES = {"^file:": {"type": "string", "contentEncoding": "base64"}}
LOAD_SCHEMA = {"type": ["object", "null"], "properties": LOAD_PARAMETERS, "patternProperties": FILES}
"""Schemas of parameters. Others are refused when they have been read."""
T = TypeVar("T")


class IndexJson(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request for the repository index."""

    ready: bool = False


class LoadJson(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request to load a model, or to change which version answers requests without one.

    Parameters `config` and `file:PATH` write the model to the repository before, if the key permits `upload`.
    """

    parameters: Annotated[dict[str, Any] | None, Meta(extra_json_schema=LOAD_SCHEMA)] = None


class LongLoadJson(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a load with long files. Each parameter is decoded alone, so that other threads run in between."""

    parameters: dict[str, msgspec.Raw] | None = None


class UnloadJson(msgspec.Struct, forbid_unknown_fields=True):
    """Body of a request to unload a model."""

    parameters: Annotated[dict[str, Any] | None, Meta(extra_json_schema=UNLOAD_SCHEMA)] = None


_decoders: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (IndexJson, LoadJson, LongLoadJson, UnloadJson)
}
"""Made here, and not in the threads that decode long loads: two must not make the first one of a type at once."""


class ModelsHandler:
    """Handle the routes of the server and its models. Errors are raised, and `OipHandler` answers them."""

    def __init__(self, documents: ModelDocuments) -> None:
        self._documents = documents

    async def load(self, route: HttpRoute, body: bytes, entry: ManagementCall, grant: Grant) -> HttpResponse:
        """Load or unload a model, or change its versions. Raise `HorologeError` or `HttpError`."""
        message: LoadJson | UnloadJson
        if is_load := route.operation.name == "load":
            message = await self._read_load(body, entry, grant)
        else:
            message = _decode_optional(body, UnloadJson)
        index = await self._documents.load(route.model, is_load, message.parameters, entry, grant)
        return json_response(index) if is_load else HttpResponse(200)

    async def _read_load(self, body: bytes, entry: ManagementCall, grant: Grant) -> LoadJson:
        """Decode the body of a load. Only one with files is long. Raise `InvalidInput`, or `Unsupported` for files."""
        if len(body) <= OPTIONAL_BYTES:
            return _decode(body, LoadJson)
        self._documents.check_upload(entry, grant)
        return await asyncio.to_thread(_decode_long, body)

    async def handle_route(self, route: HttpRoute, request: HttpRequest, body: bytes) -> HttpResponse:
        """Return the document of a route. Raise `HorologeError` or `HttpError`."""
        return await request.account.turns.in_turn(request.account, self._describe, route, body)

    def _describe(self, route: HttpRoute, body: bytes) -> HttpResponse:
        documents, model, version = self._documents, route.model, route.version
        match route.operation.name:
            case "index":
                return json_response(documents.index(_decode_optional(body, IndexJson).ready))
            case "server":
                return json_response(documents.server())
            case "models":
                return json_response(documents.names())
            case "metadata":
                return json_response(documents.metadata(model, version))
            case "config":
                return json_response(documents.config(model, version))
            case "model_ready":
                document = documents.readiness(model, version)
                return json_response(document, 200 if document.ready else 503)
            case "unsupported":
                raise Unsupported(route.operation.summary)
        return json_response(documents.statistics(model, version))


def _decode_optional(body: bytes, kind: type[T]) -> T:
    """Decode a JSON object. The body may be empty: tritonclient requests the index without one. Raise `TooLarge`."""
    if len(body) > OPTIONAL_BYTES:
        raise TooLarge(f"body: got {len(body)} bytes of JSON, at most {OPTIONAL_BYTES}")
    return _decode(body, kind)


def _decode_long(body: bytes) -> LoadJson:
    check_length(body)
    parameters = _decode(body, LongLoadJson).parameters or {}
    return LoadJson({name: read_json(name, value) for name, value in parameters.items()})


def _decode(body: bytes, kind: type[T]) -> T:
    try:
        decoded: T = _decoders[kind].decode(body.strip() or b"{}")
        return decoded
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidInput(f"body: {error}") from error
