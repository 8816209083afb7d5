"""Processes that may open few files live through more connections than that."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import zmq

from harness.socket_filters import needs_socket_filters
from harness.waiting import until
from system.http_server_thread import read_response

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT = 160
ATTEMPTS = 400
PREAMBLE = f"""
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {LIMIT}))
from horologe_common.service.process_limits import raise_limit
raise_limit()
def count_open():
    return len([n for n in range({LIMIT}) if is_open(n)])
def is_open(n):
    import os
    try: os.fstat(n)
    except OSError: return False
    return True
"""
HTTP = (
    PREAMBLE
    + """
from fakes.gateway import FakeGateway
from horologe_frontend.http.server import HttpServer
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip.handler import OipHandler
async def main():
    settings = HttpSettings(port=0, client_share=1.0)
    server = HttpServer(settings, OipHandler(FakeGateway(), settings))
    await server.start()
    print(server.url.rpartition(":")[2], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print(count_open(), flush=True)
    await asyncio.Event().wait()
import uvloop
uvloop.run(main())
"""
)
LINKS = (
    PREAMBLE
    + """
import zmq
from horologe_common.transport.links import Links
from horologe_common.transport.sockets import LinkSettings
async def main():
    links = Links("selector/0", "", LinkSettings(bind=("tcp://127.0.0.1:*",), allow_open=True))
    links.open(["selector/0"])
    [router] = links._sockets.monitors
    for monitor in links._sockets.monitors.values():
        asyncio.get_running_loop().add_reader(monitor.FD, links.read_monitors)
    links.read_monitors()
    print(router.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    print(count_open(), flush=True)
    while True:
        links.read_monitors()
        await asyncio.sleep(0.05)
asyncio.run(main())
"""
)


class Server:
    """A process with few descriptors. It prints its port when it is ready, and on request its number of descriptors."""

    def __init__(self, program: str) -> None:
        command = [sys.executable, "-c", program]
        paths = ":".join(path for path in sys.path if path)
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": paths}
        )
        self.ready = self.read_line()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: Any) -> None:
        self.process.kill()
        self.process.communicate()

    def read_line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def open_descriptors(self) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return int(self.read_line())


def flood(connect: Callable[[], socket.socket], misses: int = ATTEMPTS) -> list[socket.socket]:
    """Return as many connections as the server lets one have, until it has not accepted `misses` of them."""
    socks = []
    for _ in range(ATTEMPTS):
        try:
            socks.append(connect())
        except OSError:
            misses -= 1
            if not misses:
                break
    return socks


def connect_slowly(address: tuple[str, int]) -> socket.socket:
    """Connect after a pause. A ROUTER accepts in a thread of libzmq, and its loop has to see each connection."""
    time.sleep(0.01)
    return socket.create_connection(address, 0.5)


def test_http_refuses_connections_before_descriptors_run_out() -> None:
    with Server(HTTP) as server:
        address = ("127.0.0.1", int(server.ready))
        socks = flood(lambda: socket.create_connection(address, 5))
        assert len(socks) == ATTEMPTS
        assert read_response(socks[-1])[0] == 429
        assert server.open_descriptors() < LIMIT - 40
        for sock in socks:
            sock.close()
        until(lambda: is_live(address), 10, (ConnectionError,))


def is_live(address: tuple[str, int]) -> bool:
    """Return whether a request is answered. It is, once the server has noticed the closed connections."""
    with socket.create_connection(address, 5) as sock:
        sock.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n")
        return read_response(sock)[0] == 200


@needs_socket_filters
def test_a_router_accepts_again_once_it_has_few_connections() -> None:
    with Server(LINKS) as server:
        address = ("127.0.0.1", int(server.ready))
        socks = flood(lambda: connect_slowly(address), misses=2)
        try:
            assert server.open_descriptors() < LIMIT
            assert len(socks) < ATTEMPTS
        finally:
            for sock in socks:
                sock.close()
        with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.IMMEDIATE, 1)
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(f"tcp://127.0.0.1:{server.ready}")
            assert dealer.poll(10_000, zmq.POLLOUT)
        assert server.process.poll() is None
