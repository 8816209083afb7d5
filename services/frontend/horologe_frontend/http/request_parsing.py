"""The reading half of an HTTP/1.1 connection: httptools parses what arrives, and the requests are queued in order.

It enforces what a public server must while a request arrives: the limits of headers and body, bounded pipelining,
100-continue.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import httptools

from horologe_frontend.http.http_messages import CONTINUE, REFUSED, HttpRequest, HttpResponse, failure
from horologe_frontend.http.request_reader import QueuedRequest, RequestReader, StopReading

if TYPE_CHECKING:
    from horologe_frontend.http.client_accounts import ClientAccount
    from horologe_frontend.http.server import HttpServer

MAX_PIPELINED = 64
KNOWN_HEAD_BYTES = 2048
"""Maximum size of a known head."""


class RequestParsing(asyncio.Protocol):
    """Queues the requests of one connection. The `on_*` methods are callbacks of httptools.

    `HttpConnection` starts the queued requests, and writes the responses.
    """

    _transport: asyncio.Transport

    def __init__(self, server: HttpServer, account: ClientAccount) -> None:
        self.account = account
        self._server = server
        self._turns = account.turns
        self._parser = httptools.HttpRequestParser(self)
        self._reader: RequestReader | None = None
        self._queue: deque[QueuedRequest] = deque()
        self._current: QueuedRequest | None = None
        self._read_closed = self._closing = self._read_paused = self._request_ended = False
        self._input_ended = False
        """The client sends nothing more, but may read."""
        self._arrived_bytes = 0
        self._message_begin = b""
        """The first `KNOWN_HEAD_BYTES` of the read with which the present request has begun."""
        self._refusal: HttpResponse | None = None
        """Response to a request whose body is discarded, as soon as it has arrived."""
        self._undiscarded_bytes = 0

    def _start_next(self) -> None:
        """Start the next request, if none is in flight."""
        raise NotImplementedError

    def _parse(self, data: bytes) -> None:
        self._request_ended = False
        if self._reader is None:
            self._message_begin = data[:KNOWN_HEAD_BYTES]
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._read_closed = self._reader is None
            if self._reader is not None:
                head, self._reader = self._reader.discard_upgrade(self._parser), None
                self._parser = httptools.HttpRequestParser(self)
                self._parse(head + data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            if not self._read_closed:
                self._refuse(failure(400, f"malformed HTTP request: {error}"))
        else:
            self._check_arrived(len(data))
        if self._queue and not self._closing:
            self._read_paused = True
            self._transport.pause_reading()
            self._turns.defer(self.account, self._start_next)

    def _check_arrived(self, size: int) -> None:
        """Count what the parser does not report: incomplete headers and chunk extensions, from the next read on."""
        if self._reader is None or self._request_ended:
            self._arrived_bytes = 0
            return
        self._arrived_bytes += size
        if refusal := self._reader.check_arrived(self._arrived_bytes):
            self._refuse(refusal)

    def on_message_begin(self) -> None:
        self._reader = RequestReader(self._server.settings, self._server.handler, self.account)

    def on_url(self, url: bytes) -> None:
        self._stop_reading_if(self._current_reader().add_url(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._stop_reading_if(self._current_reader().add_header(name, value))

    def on_headers_complete(self) -> None:
        reader = self._current_reader()
        self._stop_reading_if(reader.finish_head(self._parser))
        if reader.expects_continue and self._current is None and not self._queue:
            self._transport.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        self._stop_reading_if(self._current_reader().add_body(body))

    def on_message_complete(self) -> None:
        reader = self._current_reader()
        if reader.head is None:  # it asks for an upgrade: `_parse` parses it again
            return
        if len(self._queue) >= MAX_PIPELINED:
            self._stop_reading_if(failure(REFUSED, f"more than {MAX_PIPELINED} pipelined requests"))
        keep_alive, connection = reader.persistence(self._parser)
        body_wanted = reader.head.method != "HEAD"
        content = reader.refusal or reader.pop_request()
        if reader.refusal:
            reader.discard()
        if isinstance(content, HttpRequest) and keep_alive and body_wanted and not connection:
            self._server.known_heads.add_head(self._message_begin, content)
        self._message_begin = b""
        is_first, self._reader, self._request_ended = not self._request_ended, None, True
        takes_interim = self._parser.get_http_version() != "1.0"
        self._queue.append(
            QueuedRequest(content, keep_alive, connection, body_wanted, reader.held_bytes, takes_interim)
        )
        if is_first:  # the others wait for the client's turn
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
        self._reader, self._refusal, self._read_closed = None, None, True
        self._queue.append(QueuedRequest(response, False, b"close", True))
        self._start_next()
