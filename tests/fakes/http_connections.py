"""An HTTP server without sockets: connections whose bytes a test passes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fakes.gateway import FakeGateway
from horologe_frontend.http.connection import HttpConnection
from horologe_frontend.http.server import HttpServer
from horologe_frontend.http.settings import HttpSettings
from horologe_frontend.oip.handler import OipHandler

if TYPE_CHECKING:
    from collections.abc import Callable


class Door:
    """A server and one connection with a transport that records what is written, and whether it was aborted."""

    def __init__(self, **settings: Any) -> None:
        self.server = HttpServer(values := HttpSettings(**settings), OipHandler(FakeGateway(), values))
        self.total = self.server.clients.total
        account = self.server.clients.add_connection("10.0.0.1")
        assert account is not None
        self.account = account
        self.connection = HttpConnection(self.server, account)
        self.written = b""
        self.aborted = False
        self.unsent = 0
        self.is_read = True
        transport: Any = SimpleNamespace(
            write=self._write,
            writelines=lambda parts: self._write(b"".join(parts)),
            abort=self._abort,
            can_write_eof=lambda: False,
            get_write_buffer_size=lambda: self.unsent,
            pause_reading=lambda: self._read(False),
            resume_reading=lambda: self._read(True),
            close=lambda: None,
            is_closing=lambda: False,
        )
        self.connection.connection_made(transport)

    def _write(self, data: bytes) -> None:
        self.written += data

    def _abort(self) -> None:
        self.aborted = True

    def _read(self, is_read: bool) -> None:
        self.is_read = is_read

    async def send(self, data: bytes, size: int = 50_000) -> bytes:
        """Pass `data` to the connection in reads of `size` bytes. Return what was written."""
        for at in range(0, len(data), size):
            self.connection.data_received(data[at : at + size])
            for _ in range(4):
                await asyncio.sleep(0)
        return self.written

    def close(self) -> None:
        self.connection.connection_lost(None)
        self.total.check()
        assert (self.total.requests, self.total.held_bytes, self.total.connections) == (0, 0, 0)


async def until(condition: Callable[[], bool]) -> None:
    """Wait until the condition is true, at most 1,000 iterations of the loop."""
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("the condition did not become true")
