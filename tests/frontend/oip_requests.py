"""Inference requests of the Open Inference Protocol to a gateway, and their responses."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

from fakes.gateway import FakeGateway, respond
from horologe_frontend.http.http_messages import HttpRequest, HttpResponse
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip.handler import OipHandler

ROW = {"name": "in", "shape": [1, 4], "datatype": "FP32"}
GOOD = {"inputs": [{**ROW, "data": [1, 2, 3, 4]}]}
FOUR = struct.pack("<4f", 1, 2, 3, 4)


def post(
    body: Any,
    headers: dict[str, str] | None = None,
    model: str = "echo",
    gateway: FakeGateway | None = None,
    **limits: Any,
) -> HttpResponse:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    raw = {name.lower().encode(): value.encode() for name, value in (headers or {}).items()}
    request = HttpRequest("POST", f"/v2/models/{model}/infer", "", raw, content)
    return asyncio.run(respond(OipHandler(gateway or FakeGateway(), HttpSettings(**limits)), request))


def binary(header: Any, *blobs: bytes, model: str = "echo", length: int | None = None) -> HttpResponse:
    content = json.dumps(header).encode()
    size = len(content) if length is None else length
    return post(content + b"".join(blobs), {"Inference-Header-Content-Length": str(size)}, model)


def error(response: HttpResponse, status: int = 400) -> str:
    assert response.status == status, response.body
    content = json.loads(response.body)
    assert list(content) == ["error", "status"]
    assert dict(response.headers)[b"horologe-status"].decode() == content["status"]
    return str(content["error"])
