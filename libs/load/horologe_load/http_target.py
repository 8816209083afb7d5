"""Load over persistent HTTP/1.1 connections, each with one request in flight at a time."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, cast

from horologe_load.samples import ClientOutcome

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from horologe_load.targets import OnAnswer

OUTCOMES = {
    200: ClientOutcome.OK,
    503: ClientOutcome.REFUSED,
    429: ClientOutcome.REFUSED,
    504: ClientOutcome.LATE,
    408: ClientOutcome.LATE,
}
LOST = b"\r\nhorologe-status: LOST"
"""Header of Horologe's responses 503 to requests that may have been executed."""
LENGTH = b"content-length:"


def parse_response(data: bytes) -> tuple[bytes, bytes] | None:
    """Return head and body of the response in `data`, or None while it is incomplete.

    Supports both framings of HTTP/1.1: Content-Length and chunks. Raises `ValueError` for anything else.
    """
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = data[:end]
    if not head.startswith(b"HTTP/1."):
        raise ValueError(f"response: got {head[:40]!r}, wanted HTTP/1.1")
    lower = head.lower()
    at = lower.find(LENGTH)
    if at >= 0:
        stop = lower.find(b"\r\n", at)
        size = int(lower[at + len(LENGTH) : stop if stop >= 0 else None])
        return (head, data[end + 4 :]) if len(data) - end - 4 >= size else None
    if b"transfer-encoding: chunked" not in lower:
        raise ValueError("response: neither Content-Length nor chunked")
    body = join_chunks(data[end + 4 :])
    return None if body is None else (head, body)


def join_chunks(data: bytes) -> bytes | None:
    """Return the body of a chunked message, or None while its last chunk is missing."""
    parts: list[bytes] = []
    at = 0
    while (end := data.find(b"\r\n", at)) >= 0:
        size = int(data[at:end].split(b";")[0], 16)
        if size == 0:
            return b"".join(parts) if data.endswith(b"\r\n\r\n") else None
        parts.append(data[end + 2 : end + 2 + size])
        at = end + 4 + size
    return None


class Connection(asyncio.Protocol):
    """A connection with one request at a time. Calls `on_idle` and `on_answer` after each response."""

    def __init__(
        self, on_idle: Callable[[Connection], None], on_lost: Callable[[Connection], None], on_answer: OnAnswer
    ) -> None:
        self._on_idle, self._on_lost, self._on_answer = on_idle, on_lost, on_answer
        self._index = -1
        self._data = b""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def send(self, index: int, request: bytes) -> None:
        self._index = index
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        if self._data:
            data = self._data + data
        try:
            response = parse_response(data)
        except ValueError:
            self.transport.abort()
            return
        if response is None:
            self._data = data
            return
        self._data = b""
        index, self._index = self._index, -1
        outcome = OUTCOMES.get(int(data[9:12]), ClientOutcome.FAILED)
        if outcome is ClientOutcome.REFUSED and LOST in response[0]:
            outcome = ClientOutcome.FAILED
        self._on_idle(self)
        self._on_answer(index, now_ns, outcome, response)

    def connection_lost(self, exc: Exception | None) -> None:
        index, self._index = self._index, -1
        self._on_lost(self)
        if index >= 0:
            self._on_answer(index, time.monotonic_ns(), ClientOutcome.FAILED, None)


class HttpTarget:
    """A pool of connections to an address. `request_at(index)` returns all bytes of a request.

    A request that finds no idle connection opens one. If `connections` are open, it waits; its latency counts from its
    due time. `tls`: for https.
    """

    cached = 0

    def __init__(
        self,
        host: str,
        port: int,
        request_at: Callable[[int], bytes],
        connections: int = 512,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self._request_at = request_at
        self._limit = connections
        self._idle: list[Connection] = []
        self._waiting: deque[int] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._open = 0
        self._on_answer: OnAnswer
        self._closing = False
        self.held_back = 0
        """Requests that waited because all connections were in use."""

    async def start(self, clients: int, on_answer: OnAnswer) -> None:
        """Open `clients` connections. More follow while requests wait, up to the limit."""
        self._on_answer = on_answer
        self._limit = max(self._limit, clients)
        await asyncio.gather(*(self._connect() for _ in range(clients)))

    async def _connect(self) -> None:
        self._open += 1
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self._on_idle, self._on_lost, self._on_answer),
                self._host,
                self._port,
                ssl=self._tls,
            )
        except OSError:
            self._open -= 1
            while self._waiting and not self._open:
                self._on_answer(self._waiting.popleft(), time.monotonic_ns(), ClientOutcome.FAILED, None)
            return
        self._on_idle(connection)

    def send(self, index: int, due_ns: int = 0) -> None:
        """See `Target`. The request states its whole SLO, whatever `due_ns` is."""
        if self._idle:
            self._idle.pop().send(index, self._request_at(index))
            return
        self._waiting.append(index)
        if self._open >= self._limit:
            self.held_back += 1
        elif len(self._opening) < len(self._waiting):
            task = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _on_idle(self, connection: Connection) -> None:
        if self._waiting:
            index = self._waiting.popleft()
            connection.send(index, self._request_at(index))
        else:
            self._idle.append(connection)

    def _on_lost(self, connection: Connection) -> None:
        self._open -= 1
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._closing and self._waiting:
            index = self._waiting.popleft()
            asyncio.get_running_loop().call_soon(self.send, index)

    async def stop(self) -> None:
        """Close every connection. Requests in flight stay unanswered."""
        self._closing = True
        self._waiting.clear()
        for task in self._opening:
            task.cancel()
        for connection in self._idle:
            connection.transport.abort()
        await asyncio.sleep(0.05)
