"""Frontends of one machine that share their ports: `frontend.reuse_port`."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack

import httpx
import pytest

from horologe_common.service.settings import SettingsError
from horologe_common.transport.clients.client_server import listen
from horologe_frontend.http.server import HttpServer
from horologe_frontend.http.settings import HttpSettings
from system.http_server_thread import HttpServerThread

CONNECTIONS = 64
"""The kernel gives each connection to a listener by a hash of its addresses."""


def address_of(listener: socket.socket) -> tuple[str, int]:
    host, port = listener.getsockname()
    return host, port


def test_connections_to_a_shared_client_port_are_spread() -> None:
    with ExitStack() as stack:
        first = stack.enter_context(listen("tcp://127.0.0.1:0", reuse_port=True))
        host, port = address_of(first)
        second = stack.enter_context(listen(f"tcp://{host}:{port}", reuse_port=True))
        for listener in (first, second):
            listener.listen(CONNECTIONS)
            listener.settimeout(0)
        for _ in range(CONNECTIONS):
            stack.enter_context(socket.create_connection((host, port), 10))
        counts = [count_accepted(listener, stack) for listener in (first, second)]
    assert sum(counts) == CONNECTIONS
    assert min(counts) > 0


def count_accepted(listener: socket.socket, stack: ExitStack) -> int:
    count = 0
    while True:
        try:
            stack.enter_context(listener.accept()[0])
        except BlockingIOError:
            return count
        count += 1


@pytest.mark.parametrize(("first", "second"), [(False, False), (True, False), (False, True)])
def test_a_client_port_is_shared_only_if_both_frontends_set_it(first: bool, second: bool) -> None:
    with listen("tcp://127.0.0.1:0", reuse_port=first) as listener:
        listener.listen()
        host, port = address_of(listener)
        with pytest.raises(OSError, match="in use"):
            listen(f"tcp://{host}:{port}", reuse_port=second)


def test_connections_to_a_shared_http_port_are_spread_and_go_to_the_frontend_that_is_left() -> None:
    with HttpServerThread(reuse_port=True) as first:
        port = int(first.address.rpartition(":")[2])
        with HttpServerThread(reuse_port=True, port=port) as second, ExitStack() as stack:
            for _ in range(CONNECTIONS):
                stack.enter_context(first.connect())
            tables = [http.server._connections for http in (first, second)]
            first.wait(lambda: sum(len(table) for table in tables) == CONNECTIONS)
            assert min(len(table) for table in tables) > 0
            stack.close()
        for _ in range(CONNECTIONS):
            assert httpx.get(f"{first.server.url}/v2/health/live").status_code == 200


def test_an_http_port_is_shared_only_if_both_frontends_set_it() -> None:
    with HttpServerThread() as first:
        port = int(first.address.rpartition(":")[2])
        second = HttpServer(HttpSettings(port=port), first.oip, reuse_port=True)
        with pytest.raises(SettingsError, match=r"http\.port"):
            asyncio.run(second.start())
