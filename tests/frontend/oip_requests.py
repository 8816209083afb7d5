"""HTTP requests to a handler with a fake gateway, and their responses."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

from fakes.gateway import FakeGateway, respond
from frontend.documented_responses import check_documented
from horologe_frontend.http.http_messages import HttpRequest, HttpResponse
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip.handler import OipHandler

ROW = {"name": "in", "shape": [1, 4], "datatype": "FP32"}
GOOD = {"inputs": [{**ROW, "data": [1, 2, 3, 4]}]}
FOUR = struct.pack("<4f", 1, 2, 3, 4)


def send(
    method: str,
    path: str,
    body: Any = b"",
    gateway: FakeGateway | None = None,
    headers: dict[bytes, bytes] | None = None,
    oip: OipHandler | None = None,
    **settings: Any,
) -> HttpResponse:
    """Return the response of the handler, or of a new one with this gateway. A body that is not bytes becomes JSON.

    Every response must be one that the OpenAPI document describes.
    """
    oip = oip or OipHandler(gateway or FakeGateway(), HttpSettings(**settings), version="1.2.3")
    path, _, query = path.partition("?")
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    response = asyncio.run(respond(oip, HttpRequest(method, path, query, headers or {}, content)))
    check_documented(method, path, response)
    return response


def post(
    body: Any,
    headers: dict[str, str] | None = None,
    model: str = "echo",
    gateway: FakeGateway | None = None,
    **settings: Any,
) -> HttpResponse:
    raw = {name.lower().encode(): value.encode() for name, value in (headers or {}).items()}
    return send("POST", f"/v2/models/{model}/infer", body, gateway, raw, **settings)


def binary(header: Any, *blobs: bytes, model: str = "echo", length: int | None = None) -> HttpResponse:
    content = json.dumps(header).encode()
    size = len(content) if length is None else length
    return post(content + b"".join(blobs), {"Inference-Header-Content-Length": str(size)}, model)


def content(response: HttpResponse) -> Any:
    assert response.status == 200, response.body
    return json.loads(response.body)


def error(response: HttpResponse, status: int = 400) -> str:
    assert response.status == status, response.body
    content = json.loads(response.body)
    assert list(content) == ["error", "status"]
    assert dict(response.headers)[b"horologe-status"].decode() == content["status"]
    return str(content["error"])
