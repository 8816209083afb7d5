"""The OpenAPI document of the HTTP API, written from the table of operations and the structs of their JSON.

Specification: OpenAPI 3.1, whose schemas are those of JSON Schema 2020-12.
"""

from __future__ import annotations

import re
from functools import cache
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from horologe_frontend.http.event_stream import EVENTS
from horologe_frontend.http.http_messages import BINARY, JSON, REFUSED, ErrorJson
from horologe_frontend.oip.known_parameters import ParametersJson
from horologe_frontend.oip.operations import KEY, OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from horologe_frontend.oip.operations import Operation

INFO = {
    "title": "Horologe",
    "version": "2",
    "description": "The Open Inference Protocol v2 with its extensions, and applications. Without `http.keys_file`, no "
    "operation needs a key. With `http.refused_status = 503`, 429 is 503.",
    "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
}
UNDOCUMENTED = ("console",)
"""Groups of operations that only a browser uses."""
ERRORS = (400, 408, 413, 415, 417, REFUSED, 431, 500, 501)
"""Statuses of errors that every operation may have."""
COMPONENTS = "#/components/{}/{}"
JSON_TYPE, BINARY_TYPE = JSON.decode(), BINARY.decode()
TEXT, WHOLE = {"type": "string"}, {"type": "integer", "minimum": 0}
BYTES = {"type": "string", "format": "binary"}
HEADER_LENGTH = {
    "name": "Inference-Header-Content-Length",
    "in": "header",
    "description": "Bytes of JSON before binary data",
    "schema": WHOLE,
}
HEADERS: Mapping[int, Mapping[str, Any]] = {
    401: {"WWW-Authenticate": TEXT},
    415: {"Accept-Encoding": TEXT},
    REFUSED: {"Retry-After": WHOLE, "Retry-After-Ms": WHOLE},
    503: {"Retry-After": WHOLE, "Retry-After-Ms": WHOLE},
}
"""Headers of errors beside Horologe-Status."""


@cache
def openapi_document() -> bytes:
    """Return the document as JSON."""
    groups = [(group, operations) for group, operations in OPERATIONS.items() if group not in UNDOCUMENTED]
    documented = [(group, operation) for group, operations in groups for operation in operations]
    kinds = [ErrorJson, ParametersJson, *(kind for _, operation in documented for kind in _types(operation))]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=COMPONENTS.format("schemas", "{name}"))
    for component in components.values():
        for field in component.get("properties", {}).values():
            field.pop("default", None)  # generators of clients demand fields that have one
    schema_of = dict(zip(map(repr, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for group, operation in documented:
        for path in operation.paths:
            entry = _operation(group, operation, path, schema_of)
            paths.setdefault(path, {})[operation.method.lower()] = entry
    errors = {*ERRORS, *(status for _, operation in documented for status in _errors(operation))}
    components = {
        "schemas": components,
        "responses": {f"Error{status}": _error(status, schema_of[repr(ErrorJson)]) for status in sorted(errors)},
        "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
    }
    tags = [{"name": group} for group, _ in groups]
    return msgspec.json.encode(
        {"openapi": "3.1.0", "info": INFO, "tags": tags, "paths": paths, "components": components}
    )


def _types(operation: Operation) -> Iterator[Any]:
    """Return the types of the JSON of the request and of the response."""
    if operation.body is not None:
        yield _body_type(operation)
    if operation.answer is not None:
        yield operation.answer


def _body_type(operation: Operation) -> Any:
    """Return the type of the JSON of a body, without the None that stands for no body."""
    return next((kind for kind in get_args(operation.body) if kind is not type(None)), operation.body)


def _operation(group: str, operation: Operation, path: str, schema_of: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of an operation at one of its paths."""
    names = re.findall(r"{(\w+)}", path)
    entry: dict[str, Any] = {"tags": [group], "summary": operation.summary}
    if sum(operation.name == other.name for other in OPERATIONS[group]) == 1:
        optional = [name for name in names if f"{{{name}}}" not in operation.paths[0]]
        entry["operationId"] = "_of_".join((operation.name, *optional))
    parameters = [{"name": name, "in": "path", "required": True, "schema": TEXT | {"minLength": 1}} for name in names]
    parameters += [{"name": name, "in": "query", "schema": TEXT} for name in operation.query]
    if operation.has_binary:
        parameters.append(HEADER_LENGTH)
    if parameters:
        entry["parameters"] = parameters
    if operation.body is not None:
        body = _body_type(operation)
        entry["requestBody"] = {"content": _content(operation, schema_of[repr(body)])}
        entry["requestBody"]["required"] = body is operation.body
    entry["responses"] = _responses(operation, schema_of)
    if operation.scope is not None:
        entry["security"] = [{"key": []}]
    return entry


def _responses(operation: Operation, schema_of: Mapping[str, Any]) -> dict[str, Any]:
    errors = {status: {"$ref": COMPONENTS.format("responses", f"Error{status}")} for status in _errors(operation)}
    answers: dict[int, Any] = {}
    if operation.errors != (501,):
        answers[200] = {"description": HTTPStatus.OK.phrase}
        if operation.answer is not None:
            answers[200]["content"] = _content(operation, schema_of[repr(operation.answer)])
        elif operation.is_events:
            answers[200]["content"] = {EVENTS.decode(): {"schema": TEXT}}
    if operation.has_unready:
        answers[503] = answers[200] | {"description": "Not ready"}
    return {str(status): response for status, response in sorted((errors | answers).items())}


def _errors(operation: Operation) -> list[int]:
    """Return the statuses of all errors that an operation may have."""
    keys = {None: (), KEY: (401,)}.get(operation.scope, (401, 403))
    unknown = (404,) if "{" in operation.path else ()
    return [*ERRORS, *keys, *unknown, *operation.errors]


def _content(operation: Operation, schema: Any) -> dict[str, Any]:
    content: dict[str, Any] = {JSON_TYPE: {"schema": schema}}
    return content | {BINARY_TYPE: {"schema": BYTES}} if operation.has_binary else content


def _error(status: int, schema: Any) -> dict[str, Any]:
    headers = {"Horologe-Status": {"required": True, "schema": TEXT}}
    headers |= {name: {"schema": header} for name, header in HEADERS.get(status, {}).items()}
    content = {JSON_TYPE: {"schema": schema}}
    return {"description": HTTPStatus(status).phrase, "headers": headers, "content": content}
