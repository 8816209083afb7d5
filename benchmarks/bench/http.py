"""Requests over persistent HTTP/1.1 connections, each with one request in flight at a time."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections import deque
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from bench.dialect import DIALECTS
from bench.samples import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.target import Done
    from bench.workload import Inputs, Scenario

CODES = {200: Code.OK, 503: Code.REFUSED, 429: Code.REFUSED, 504: Code.LATE, 408: Code.LATE}
LENGTH = b"content-length:"


def complete(data: bytes) -> tuple[bytes, bytes] | None:
    """Head and body of the response in `data` if it is all there. Raises `ValueError` for what is none.

    Both framings of HTTP/1.1: a Content-Length, or chunks.
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
    body = dechunked(data[end + 4 :])
    return None if body is None else (head, body)


def dechunked(data: bytes) -> bytes | None:
    """The body of a chunked message, or None if its last chunk is not there yet."""
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
    """One request at a time; tells its pool what came back and that it is free again."""

    def __init__(self, free: Callable[[Connection], None], gone: Callable[[Connection], None], done: Done) -> None:
        self._free, self._gone, self._done = free, gone, done
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
            response = complete(data)
        except ValueError:
            self.transport.abort()
            return
        if response is None:
            self._data = data
            return
        self._data = b""
        index, self._index = self._index, -1
        code = CODES.get(int(data[9:12]), Code.FAILED)
        self._free(self)
        self._done(index, now_ns, code, response)

    def connection_lost(self, exc: Exception | None) -> None:
        index, self._index = self._index, -1
        self._gone(self)
        if index >= 0:
            self._done(index, time.monotonic_ns(), Code.FAILED, None)


class HttpTarget:
    """A pool of connections to `url`. What finds none free waits here; its latency counts from before."""

    def __init__(self, url: str, dialect: str, scenario: Scenario, inputs: Inputs, connections: int = 512) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        self._limit = connections
        self._stats = f"http://{parts.netloc}/v2/models/{scenario.model}/stats" if dialect.endswith("-slo") else ""
        self._hits_before = self._cache_hits()
        self._dialect = DIALECTS[dialect](scenario, inputs, f"{self._host}:{self._port}", parts.path)
        self._idle: list[Connection] = []
        self._waiting: deque[int] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._open = 0
        self._done: Done
        self._closing = False

    async def start(self, clients: int, done: Done) -> None:
        """Connect `clients` times; more follow as requests wait, up to the limit."""
        self._done = done
        self._limit = max(self._limit, clients)
        await asyncio.gather(*(self._connect() for _ in range(clients)))

    async def _connect(self) -> None:
        self._open += 1
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: Connection(self._freed, self._lost, self._done), self._host, self._port
            )
        except OSError:
            self._open -= 1
            while self._waiting and not self._open:
                self._done(self._waiting.popleft(), time.monotonic_ns(), Code.FAILED, None)
            return
        self._freed(connection)

    def send(self, index: int) -> None:
        if self._idle:
            self._idle.pop().send(index, self._dialect.request(index))
            return
        self._waiting.append(index)
        if self._open < self._limit and len(self._opening) < len(self._waiting):
            task = asyncio.get_running_loop().create_task(self._connect())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    def _freed(self, connection: Connection) -> None:
        if self._waiting:
            index = self._waiting.popleft()
            connection.send(index, self._dialect.request(index))
        else:
            self._idle.append(connection)

    def _lost(self, connection: Connection) -> None:
        self._open -= 1
        if connection in self._idle:
            self._idle.remove(connection)
        if not self._closing and self._waiting:
            index = self._waiting.popleft()
            asyncio.get_running_loop().call_soon(self.send, index)

    def _cache_hits(self) -> int:
        if not self._stats:
            return 0
        with urllib.request.urlopen(self._stats, timeout=5) as response:
            rows = json.load(response)["model_stats"]
        return sum(row["inference_stats"]["cache_hit"]["count"] for row in rows)

    def hits(self) -> int:
        """How many answers since the start came from the server's cache, as its statistics say; peers have none."""
        return self._cache_hits() - self._hits_before

    def decode(self, answer: object) -> object:
        """Numbers of a kept answer; called after the run."""
        assert isinstance(answer, tuple)
        return self._dialect.answer(*answer)

    async def stop(self) -> None:
        """Break every connection; whatever is still open stays silent."""
        self._closing = True
        self._waiting.clear()
        for task in self._opening:
            task.cancel()
        for connection in self._idle:
            connection.transport.abort()
        await asyncio.sleep(0.05)
