"""HTTP/1.1 on an asyncio transport: httptools parses, the handler answers, one request of a connection at a time.

What a public server has to check is checked here: sizes of head and body while they arrive, time-outs for slow heads,
bodies and readers, pipelining in order and bounded, 100-continue, malformed bytes, clients that leave.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, cast

import httptools

from horologe_common.clock import NEVER_NS, monotonic_ns, s
from horologe_frontend.http.request_reader import Incoming, Stop
from horologe_frontend.http.responses import CONTINUE, failure, head_of

if TYPE_CHECKING:
    from horologe_frontend.http.request_reader import Request
    from horologe_frontend.http.responses import Response
    from horologe_frontend.http.server import HttpServer

MAX_PIPELINED = 64
LINGER_NS = s(2)
"""Closing with unread bytes resets the connection, and the client might lose the answer: first they are read."""
WRITE_TOGETHER = 64 << 10


class Connection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._gate = server.gate
        self._settings = server.gate.settings
        self._parser = httptools.HttpRequestParser(self)
        self._incoming: Incoming | None = None
        self._queue: deque[Exchange] = deque()
        self._task: asyncio.Task[None] | None = None
        self._deaf = self._leaving = self._write_paused = self._read_paused = self._completed = False
        self._raw_head_bytes = self._held = 0
        self._armed, self.expires_ns = "", NEVER_NS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._server.join(self):
            self._refuse(failure(503, "too many connections", ((b"retry-after", b"1"),)))
        self._arm()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.part(self)
        self._deaf = self._leaving = True
        if self._incoming is not None:
            self._incoming.drop()
        while self._queue:
            if (exchange := self._queue.popleft()).request is not None:
                self._gate.leave(exchange.held)
        if self._task is not None:
            self._task.cancel()
            self._over()
        del self._parser  # it holds this object's methods: a cycle that only the collector would free

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._completed = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._deaf = True
        except httptools.HttpParserError as error:
            if not self._deaf:
                self._refuse(failure(400, f"malformed HTTP request: {error}"))
        else:
            self._bound_head(len(data))
        if self._queue and not self._leaving:
            self._read_paused = True
            self._transport.pause_reading()
        self._arm()

    def _bound_head(self, size: int) -> None:
        """The parser tells of a header only when it is complete, so what has arrived of the head is counted here.

        A read that ended an earlier request is not counted: how much of it belongs to this one is not known.
        """
        incoming = self._incoming
        if incoming is None or incoming.head is not None or self._completed:
            self._raw_head_bytes = 0
            return
        self._raw_head_bytes += size
        if self._raw_head_bytes > self._settings.header_limit_bytes:
            self._refuse(incoming.too_long())

    # What httptools calls, inside feed_data.

    def on_message_begin(self) -> None:
        self._incoming = Incoming(self._gate)

    def on_url(self, url: bytes) -> None:
        self._now().add_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._stop_if(self._now().add_header(name, value))

    def on_headers_complete(self) -> None:
        incoming = self._now()
        self._stop_if(incoming.complete_head(self._parser.get_method().decode(), self._parser.should_upgrade()))
        if incoming.expects_continue and self._task is None and not self._queue:
            self._transport.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._stop_if(self._now().add_body(body))

    def on_message_complete(self) -> None:
        incoming = self._now()
        if len(self._queue) >= MAX_PIPELINED:
            self._stop_if(failure(503, f"more than {MAX_PIPELINED} requests sent ahead"))
        keep_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        connection = b"" if keep_alive else b"close"
        if keep_alive and self._parser.get_http_version() == "1.0":
            connection = b"keep-alive"
        body_wanted = incoming.head is not None and incoming.head.method != "HEAD"
        request = incoming.take() if incoming.refusal is None else None
        exchange = Exchange(request, incoming.refusal, keep_alive, connection, body_wanted, incoming.size)
        self._incoming, self._completed = None, True
        self._queue.append(exchange)
        self._next()

    def _now(self) -> Incoming:
        if self._incoming is None:
            raise Stop
        return self._incoming

    def _stop_if(self, refusal: Response | None) -> None:
        if refusal is not None:
            self._refuse(refusal)
            raise Stop

    def _refuse(self, response: Response) -> None:
        """Answer with this after what is in flight, read nothing more, and close."""
        if self._incoming is not None:
            self._incoming.drop()
            self._incoming = None
        self._deaf = True
        self._queue.append(Exchange(None, response, False, b"close", True, read=False))
        self._next()

    def _next(self) -> None:
        while self._queue and self._task is None and not self._write_paused and not self._leaving:
            exchange = self._queue.popleft()
            if exchange.request is None:
                assert exchange.response is not None
                self._write(exchange, exchange.response)
            else:
                self._held = exchange.held
                self._task = self._server.loop.create_task(self._run(exchange, exchange.request))
        if self._read_paused and not self._queue and not self._leaving:
            self._read_paused = False
            self._transport.resume_reading()

    async def _run(self, exchange: Exchange, request: Request) -> None:
        try:
            response = await self._gate.handler.handle(request)
        finally:
            self._over()
        if not self._leaving:
            self._write(exchange, response)
            self._next()
            self._arm()

    def _over(self) -> None:
        """The request under way is so no more; that of a task that is cancelled before it begins too."""
        if self._task is not None:
            self._task = None
            self._gate.leave(self._held)

    def _write(self, exchange: Exchange, response: Response) -> None:
        closing = self._server.closing or not exchange.keep_alive
        head = head_of(response, self._server.date.line(), b"close" if closing else exchange.connection)
        if not exchange.body_wanted:
            self._transport.write(head)
        elif len(response.body) < WRITE_TOGETHER:
            self._transport.write(head + response.body)
        else:
            self._transport.writelines((head, response.body))
        self._armed = ""
        if closing:
            self._leave(exchange.read)

    def _leave(self, read: bool) -> None:
        """Close when everything is written; with unread bytes, when the client has had its answer."""
        self._leaving = self._deaf = True
        if read or not self._transport.can_write_eof():
            self._transport.close()
        else:
            self._transport.resume_reading()
            self._transport.write_eof()

    def eof_received(self) -> None:
        """A client that closes its side has left: its request is cancelled in `connection_lost`."""

    def pause_writing(self) -> None:
        self._write_paused = True
        self._arm()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._next()
        self._arm()

    def _arm(self) -> None:
        """When to give up on the client, from the beginning of each state."""
        state, timeout_ns = self._state()
        if state != self._armed:
            self._armed = state
            self.expires_ns = monotonic_ns() + timeout_ns

    def _state(self) -> tuple[str, int]:
        if self._write_paused:
            return "writing", self._settings.write_timeout_ns
        if self._leaving:
            return "leaving", LINGER_NS
        if self._task is not None or self._queue:
            return "working", NEVER_NS
        if self._incoming is None:
            return "idle", self._settings.idle_timeout_ns
        if self._incoming.head is None:
            return "head", self._settings.header_timeout_ns
        return "body", self._settings.body_timeout_ns

    def expire(self) -> None:
        """Time is up: say so to a slow sender, close an idle connection, drop a reader that does not read."""
        if self._leaving or self._write_paused:
            self._transport.abort()
        elif self._incoming is not None:
            self._refuse(failure(408, "the request did not arrive in time"))
            self._arm()
        else:
            self._transport.close()

    def drain(self) -> None:
        """The server stops: an idle connection closes now, another after its answer."""
        if self._task is None and not self._queue and self._incoming is None and not self._leaving:
            self._leave(read=True)

    def abort(self) -> None:
        self._transport.abort()


class Exchange(NamedTuple):
    """A request whose turn will come, or the response that it gets without a turn."""

    request: Request | None
    response: Response | None
    keep_alive: bool
    connection: bytes
    body_wanted: bool
    held: int = 0
    read: bool = True
    """Whether all of the request has been read."""
