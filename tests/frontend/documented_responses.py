"""Checks that a response is one that the OpenAPI document describes."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import TYPE_CHECKING, Any

import jsonschema

from horologe_frontend.oip.openapi import openapi_document

if TYPE_CHECKING:
    from horologe_frontend.http.http_messages import HttpResponse

DOCUMENT = json.loads(openapi_document())


def check_documented(method: str, path: str, response: HttpResponse) -> None:
    """Assert that a request to a path of the document may get this response. Other paths are not checked."""
    operations = next((operations for pattern, operations in patterns() if pattern.fullmatch(path)), None)
    if operations is None:
        return
    operation = operations.get({"HEAD": "get"}.get(method, method.lower()))
    if operation is None:
        assert response.status in (401, 405), (method, path, response)
        return
    described = operation["responses"].get(str(response.status))
    assert described is not None, (method, path, response)
    described = resolve(described)
    for name, header in described.get("headers", {}).items():
        assert not header.get("required") or name.lower().encode() in dict(response.headers), (path, response)
    content = described.get("content")
    if content is None:
        assert response.size == 0, (path, response)
        return
    assert response.content_type.decode() in content, (path, response)
    if response.content_type == b"application/json" and not dict(response.headers).get(b"content-encoding"):
        body = b"".join((response.body, *response.parts))
        validator(json.dumps(content["application/json"]["schema"])).validate(json.loads(body))


@cache
def patterns() -> list[tuple[re.Pattern[str], Any]]:
    """Return the operations of the paths, with fewer parameters first."""
    paths = sorted(DOCUMENT["paths"].items(), key=lambda item: item[0].count("{"))
    return [(re.compile(re.sub(r"{\w+}", "[^/]+", path) + "/?"), operations) for path, operations in paths]


def resolve(description: Any) -> Any:
    """Return a component, or the description itself."""
    name = description.get("$ref", "").rpartition("/")[2]
    return DOCUMENT["components"]["responses"][name] if name else description


@cache
def validator(schema: str) -> Any:
    return jsonschema.Draft202012Validator(json.loads(schema) | {"components": DOCUMENT["components"]})
