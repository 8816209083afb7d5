"""An HTTP server in a separate thread, for tests with real sockets and blocking clients."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import TYPE_CHECKING, Any, Self

import httpx
import pytest
import uvloop

from fakes.gateway import FakeGateway
from horologe_common.clock import s
from horologe_frontend.http.server import HttpServer
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip.handler import OipHandler

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping

    from horologe_frontend.core.access import KeyEntry
    from horologe_frontend.tls import Certificates


class HttpServerThread:
    """`with HttpServerThread(max_requests=2) as http:` serves a FakeGateway until the end of the block."""

    def __init__(
        self,
        keys: Mapping[str, KeyEntry] | None = None,
        gateway: type[FakeGateway] = FakeGateway,
        certificates: Certificates | None = None,
        *,
        reuse_port: bool = False,
        drain_ns: int = s(30),
        **settings: Any,
    ) -> None:
        self.create_gateway = gateway
        self.settings = HttpSettings(**{"port": 0} | settings)
        self.keys, self.certificates = keys, certificates
        self.reuse_port, self.drain_ns = reuse_port, drain_ns

    def __enter__(self) -> Self:
        self.loop = uvloop.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    async def _start(self) -> None:
        self.gateway = self.create_gateway()
        if self.keys is not None:
            self.gateway.core.access.replace_keys(self.keys)
        self.oip = OipHandler(self.gateway, self.settings)
        self.server = HttpServer(
            self.settings, self.oip, self.certificates, reuse_port=self.reuse_port, drain_ns=self.drain_ns
        )
        await self.server.start()
        self.stopped = False

    def stop(self) -> None:
        """Drain, and check that no request is in flight."""
        if not self.stopped:
            self.stopped = True
            self.call(self.server.stop())
            self.call(self._check())

    async def _check(self) -> None:
        self.server.clients.total.check()
        assert self.server.clients.total.requests == 0

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(15)

    def release_slow(self) -> None:
        """Let the model `slow` answer."""
        self.loop.call_soon_threadsafe(self.gateway.slow_answers.set)

    def wait(self, condition: Any) -> None:
        """Wait until `condition()` is true, evaluated on the loop."""

        async def until() -> None:
            while not condition():  # noqa: ASYNC110 - a test may wait for any state
                await asyncio.sleep(0.005)

        self.call(asyncio.wait_for(until(), 10))

    @property
    def address(self) -> str:
        return self.server.url.partition("://")[2]

    def connect(self, timeout: float = 10) -> socket.socket:
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout)


def read_response(sock: socket.socket, body: bool = True) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of a response; a pipelined response behind it stays unread.

    Raises ConnectionError if the server closes the connection.
    """
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += _receive(sock, 1)
    lines = head.decode().strip().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    size = int(headers.get("content-length", "0")) if body and not lines[0].startswith("HTTP/1.1 1") else 0
    content = b""
    while len(content) < size:
        content += _receive(sock, size - len(content))
    return int(lines[0].split()[1]), headers, content


def _receive(sock: socket.socket, size: int) -> bytes:
    data = sock.recv(size)
    if not data:
        raise ConnectionError("closed")
    return data


GOOD = b'{"inputs":[{"name":"in","shape":[1,4],"datatype":"FP32","data":[1,2,3,4]}]}'


def request(model: str = "echo", body: bytes = GOOD, extra: str = "", version: str = "1.1") -> bytes:
    head = f"POST /v2/models/{model}/infer HTTP/{version}\r\nHost: x\r\nContent-Length: {len(body)}\r\n{extra}\r\n"
    return head.encode() + body


@pytest.fixture
def http() -> Iterator[HttpServerThread]:
    with HttpServerThread() as http:
        yield http


def check_infer(http: HttpServerThread) -> None:
    response = httpx.post(f"{http.server.url}/v2/models/echo/infer", content=GOOD)
    assert response.status_code == 200, response.text
    assert response.json()["outputs"][0]["data"] == [1, 2, 3, 4]


def is_closed(sock: socket.socket) -> bool:
    """Read to the end. Return True when the server has closed the connection."""
    try:
        while sock.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def flood(sock: socket.socket, data: bytes, times: int, pause: float = 0) -> None:
    for _ in range(times):
        sock.sendall(data)
        threading.Event().wait(pause)
