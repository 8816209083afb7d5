"""Connections that are lost at any step of a request, without sockets: the limits release every request."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from fake_gateway import FakeGateway
from horologe_frontend.http.connection import HttpConnection
from horologe_frontend.http.request_reader import RequestLimits
from horologe_frontend.http.server import HttpServer
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip.handler import OipHandler

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

BODY = b'{"inputs": [{"name": "in", "shape": [1, 4], "datatype": "FP32", "data": [1, 2, 3, 4]}]}'
REQUEST = b"POST /v2/models/%s/infer HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s"


def run(scenario: Callable[[RequestLimits, HttpConnection], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        settings = HttpSettings()
        server = HttpServer(settings, OipHandler(FakeGateway(), settings))
        limits = server.limits
        server.loop = asyncio.get_running_loop()
        connection = HttpConnection(server)
        methods = ("write", "writelines", "close", "abort", "pause_reading", "resume_reading")
        transport: Any = SimpleNamespace(**dict.fromkeys(methods, lambda *_: None))
        connection.connection_made(transport)
        await scenario(limits, connection)
        for _ in range(5):
            await asyncio.sleep(0)
        limits.check()
        assert (limits.in_flight, limits.held_bytes) == (0, 0)

    asyncio.run(main())


@pytest.mark.parametrize("model", [b"echo", b"slow"])
@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("ahead", [1, 3])
def test_disconnect_at_any_step_releases_the_requests(model: bytes, steps: int, ahead: int) -> None:
    async def scenario(limits: RequestLimits, connection: HttpConnection) -> None:
        connection.data_received(REQUEST % (model, len(BODY), BODY) * ahead)
        assert limits.in_flight == ahead
        for _ in range(steps):
            await asyncio.sleep(0)
        connection.connection_lost(None)

    run(scenario)
