"""One HTTP/1.1 connection on an asyncio transport: httptools parses, the handler answers one request at a time.

The connection enforces what a public server must: size limits while headers and body arrive, timeouts for slow
senders and slow readers, bounded pipelining in order, 100-continue, and cancellation when the client disconnects.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from email.utils import formatdate
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple, cast

import httptools

from horologe_common.clock import NEVER_NS, monotonic_ns, s
from horologe_frontend.http.http_responses import failure
from horologe_frontend.http.request_reader import RequestReader, StopReading

if TYPE_CHECKING:
    from horologe_frontend.http.http_responses import HttpResponse
    from horologe_frontend.http.request_reader import HttpRequest
    from horologe_frontend.http.server import HttpServer

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS_LINES = {int(status): b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
MAX_PIPELINED = 64
LINGER_NS = s(2)
"""Closing a socket with unread bytes resets the connection, and the client may lose the response. So the connection
reads and discards what arrives for this long after an early refusal."""
JOIN_BYTES = 64 << 10
"""Bodies below this size are copied behind their headers and written in one call."""


class QueuedRequest(NamedTuple):
    """A request that waits for the one before it, or the response that refuses it."""

    request: HttpRequest | None
    response: HttpResponse | None
    keep_alive: bool
    connection: bytes
    """Value of the Connection header of the response. Empty: the default of the HTTP version."""
    body_wanted: bool
    body_bytes: int = 0
    fully_read: bool = True


class HttpConnection(asyncio.Protocol):
    """One client connection."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._limits = server.limits
        self._settings = server.limits.settings
        self._parser = httptools.HttpRequestParser(self)
        self._reader: RequestReader | None = None
        self._queue: deque[QueuedRequest] = deque()
        self._task: asyncio.Task[None] | None = None
        self._read_closed = self._closing = self._write_paused = self._read_paused = self._request_ended = False
        self._raw_head_bytes = self._task_body_bytes = 0
        self._timed_state, self.expires_ns = "", NEVER_NS

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._server.add_connection(self):
            self._refuse(failure(503, "too many connections", ((b"retry-after", b"1"),)))
        self._update_timeout()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.remove_connection(self)
        self._read_closed = self._closing = True
        if self._reader is not None:
            self._reader.discard()
        while self._queue:
            if (queued := self._queue.popleft()).request is not None:
                self._limits.release_request(queued.body_bytes)
        if self._task is not None:
            self._task.cancel()
            self._release_task()
        del self._parser  # it holds this object's methods: a cycle that only the garbage collector would free

    def data_received(self, data: bytes) -> None:
        if self._read_closed:
            return
        self._request_ended = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._read_closed = True
        except httptools.HttpParserError as error:
            if not self._read_closed:
                self._refuse(failure(400, f"malformed HTTP request: {error}"))
        else:
            self._check_head_size(len(data))
        if self._queue and not self._closing:
            self._read_paused = True
            self._transport.pause_reading()
        self._update_timeout()

    def _check_head_size(self, size: int) -> None:
        """Count received bytes until the headers are complete, because the parser reports only complete headers.

        A read in which an earlier request ended is not counted: the parser does not report how much of it belongs to
        the next request.
        """
        reader = self._reader
        if reader is None or reader.head is not None or self._request_ended:
            self._raw_head_bytes = 0
            return
        self._raw_head_bytes += size
        if self._raw_head_bytes > self._settings.header_limit_bytes:
            self._refuse(reader.refuse_long_header())

    # Callbacks of httptools, inside feed_data.

    def on_message_begin(self) -> None:
        self._reader = RequestReader(self._limits)

    def on_url(self, url: bytes) -> None:
        self._current_reader().add_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._stop_reading_if(self._current_reader().add_header(name, value))

    def on_headers_complete(self) -> None:
        reader = self._current_reader()
        self._stop_reading_if(reader.finish_head(self._parser.get_method().decode(), self._parser.should_upgrade()))
        if reader.expects_continue and self._task is None and not self._queue:
            self._transport.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._stop_reading_if(self._current_reader().add_body(body))

    def on_message_complete(self) -> None:
        reader = self._current_reader()
        if len(self._queue) >= MAX_PIPELINED:
            self._stop_reading_if(failure(503, f"more than {MAX_PIPELINED} pipelined requests"))
        keep_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        connection = b"" if keep_alive else b"close"
        if keep_alive and self._parser.get_http_version() == "1.0":
            connection = b"keep-alive"
        body_wanted = reader.head is not None and reader.head.method != "HEAD"
        request = reader.pop_request() if reader.refusal is None else None
        queued = QueuedRequest(request, reader.refusal, keep_alive, connection, body_wanted, reader.body_bytes)
        self._reader, self._request_ended = None, True
        self._queue.append(queued)
        self._start_next()

    def _current_reader(self) -> RequestReader:
        if self._reader is None:
            raise StopReading
        return self._reader

    def _stop_reading_if(self, refusal: HttpResponse | None) -> None:
        if refusal is not None:
            self._refuse(refusal)
            raise StopReading

    def _refuse(self, response: HttpResponse) -> None:
        """Stop reading, send this response after those in flight, and close."""
        if self._reader is not None:
            self._reader.discard()
            self._reader = None
        self._read_closed = True
        self._queue.append(QueuedRequest(None, response, False, b"close", True, fully_read=False))
        self._start_next()

    def _start_next(self) -> None:
        while self._queue and self._task is None and not self._write_paused and not self._closing:
            queued = self._queue.popleft()
            if queued.request is None:
                assert queued.response is not None
                self._write(queued, queued.response)
            else:
                self._task_body_bytes = queued.body_bytes
                self._task = self._server.loop.create_task(self._handle(queued, queued.request))
        if self._read_paused and not self._queue and not self._closing:
            self._read_paused = False
            self._transport.resume_reading()

    async def _handle(self, queued: QueuedRequest, request: HttpRequest) -> None:
        try:
            response = await self._limits.handler.handle(request)
        finally:
            self._release_task()
        if not self._closing:
            self._write(queued, response)
            self._start_next()
            self._update_timeout()

    def _release_task(self) -> None:
        """End the request in flight, once: a task that is cancelled before it starts does not run its `finally`."""
        if self._task is not None:
            self._task = None
            self._limits.release_request(self._task_body_bytes)

    def _write(self, queued: QueuedRequest, response: HttpResponse) -> None:
        closing = self._server.closing or not queued.keep_alive
        head = encode_head(response, b"close" if closing else queued.connection)
        if not queued.body_wanted:
            self._transport.write(head)
        elif len(response.body) < JOIN_BYTES:
            self._transport.write(head + response.body)
        else:
            self._transport.writelines((head, response.body))
        self._timed_state = ""
        if closing:
            self._close(queued.fully_read)

    def _close(self, fully_read: bool) -> None:
        """Close when everything is written. With unread bytes, half-close first: see `LINGER_NS`."""
        self._closing = self._read_closed = True
        if fully_read or not self._transport.can_write_eof():
            self._transport.close()
        else:
            self._transport.resume_reading()
            self._transport.write_eof()

    def eof_received(self) -> None:
        """Let the transport close. `connection_lost` then cancels the request in flight."""

    def pause_writing(self) -> None:
        self._write_paused = True
        self._update_timeout()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._start_next()
        self._update_timeout()

    def _update_timeout(self) -> None:
        """Set `expires_ns` when the connection enters another state."""
        state, timeout_ns = self._state_timeout()
        if state != self._timed_state:
            self._timed_state = state
            self.expires_ns = monotonic_ns() + timeout_ns

    def _state_timeout(self) -> tuple[str, int]:
        if self._write_paused:
            return "writing", self._settings.write_timeout_ns
        if self._closing:
            return "closing", LINGER_NS
        if self._task is not None or self._queue:
            return "handling", NEVER_NS
        if self._reader is None:
            return "idle", self._settings.idle_timeout_ns
        if self._reader.head is None:
            return "head", self._settings.header_timeout_ns
        return "body", self._settings.body_timeout_ns

    def expire(self) -> None:
        """Handle a timeout: answer 408 to a slow sender, close an idle connection, abort a slow reader."""
        if self._closing or self._write_paused:
            self._transport.abort()
        elif self._reader is not None:
            self._refuse(failure(408, "the request did not arrive in time"))
            self._update_timeout()
        else:
            self._transport.close()

    def drain(self) -> None:
        """Close an idle connection at shutdown. A busy one closes after its response."""
        if self._task is None and not self._queue and self._reader is None and not self._closing:
            self._close(fully_read=True)

    def abort(self) -> None:
        self._transport.abort()


def encode_head(response: HttpResponse, connection: bytes) -> bytes:
    """Return status line and headers. `connection` is the Connection header; empty: the default of the version."""
    parts = [
        STATUS_LINES[response.status],
        b"content-length: %d\r\ncontent-type: %s\r\n" % (len(response.body), response.content_type),
        _date_line(int(time.time())),
    ]
    parts += [b"%s: %s\r\n" % header for header in response.headers]
    if connection:
        parts.append(b"connection: %s\r\n" % connection)
    parts.append(b"\r\n")
    return b"".join(parts)


@lru_cache(maxsize=1)
def _date_line(second: int) -> bytes:
    """Return the Date header. The cache formats it once per second."""
    return b"date: %s\r\n" % formatdate(second, usegmt=True).encode()
