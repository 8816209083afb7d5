"""One HTTP/1.1 connection on an asyncio transport: the handler answers its requests one at a time, in order.

`KnownHeads` reads requests with known heads, and request_parsing.py parses and limits all others. timeouts.py closes
slow senders and slow readers. If the client disconnects, the request in flight is cancelled.
"""

from __future__ import annotations

import asyncio
import socket
import time
from email.utils import formatdate
from functools import lru_cache, partial
from typing import TYPE_CHECKING, cast

import msgspec

from horologe_common.clock import monotonic_ns
from horologe_frontend.http.client_accounts import ClientAccount, no_room
from horologe_frontend.http.event_stream import EventStream
from horologe_frontend.http.http_messages import (
    CONTINUE,
    REFUSED,
    STATUS_LINES,
    HttpRequest,
    HttpResponse,
    error_response,
    failure,
)
from horologe_frontend.http.request_parsing import KNOWN_HEAD_BYTES, RequestParsing
from horologe_frontend.http.request_reader import LINGER_BYTES, QueuedRequest
from horologe_frontend.http.timeouts import ConnectionState
from horologe_frontend.oip.binary_encoding import HEADER_LENGTH
from horologe_frontend.oip.known_requests import TEMPLATE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_frontend.http.server import HttpServer

HEAD_END = b"\r\n\r\n"
KNOWN_HEADS = 1024
"""Maximum number of known heads: 4 MB together with their parsed headers."""
KNOWN_BYTES = 32 << 10
"""Maximum size of a read that is compared with known heads. Larger requests wait for the fair turn of their client."""
PAUSE_S = 0.02
"""Time for which what follows a refusal that was repeated is held. Without, 16 clients that ask again at once
send 16,000 requests/s, and two cores that can serve 165 images/s serve 59. With 64 clients they serve 53, 110 with 10
ms, 140 with 20 ms, 143 with 30 ms (benchmarks/results/capacity.md)."""
PROBE_S = 1.0
"""A client that ends its side is probed after this time, unless it has its answer before."""
READ_NS = 100_000
"""Time of a read of 256 kB into new memory, which libuv makes between the calls."""
JOIN_BYTES = 64 << 10
"""Bodies below this size are copied behind their headers and written in one call."""
NO_ACCOUNT = ClientAccount()


class KnownHeads:
    """Parsed heads by their bytes, because a client sends equal heads. Parsing a head of four headers takes 6 us.

    Stores only heads that arrived in one read, whose body has a Content-Length or is empty, and after which HTTP/1.1
    keeps the connection. Such a request depends on nothing but its bytes.
    """

    def __init__(self) -> None:
        self._heads: dict[bytes, tuple[HttpRequest, int]] = {}

    def find_request(self, data: bytes, account: ClientAccount) -> HttpRequest | None:
        """Return the request if `data` is a known head and its whole body."""
        end = data.find(HEAD_END) + len(HEAD_END)
        head, length = self._heads.get(data[:end], (None, 0))
        if head is None or len(data) - end != length:
            return None
        return HttpRequest(head.method, head.path, head.query, head.headers, data[end:], account)

    def find_begin(self, data: bytes, at: int, account: ClientAccount) -> tuple[HttpRequest, int, int] | None:
        """Return a request, the end of its head and the length of its body if a known head is in `data` from `at` on.

        Of its body it has the first `TEMPLATE_BYTES` or less.
        """
        end = data.find(HEAD_END, at) + len(HEAD_END)
        head, length = self._heads.get(data[at:end], (None, 0))
        if head is None:
            return None
        body = data[end : end + min(length, TEMPLATE_BYTES)]
        return HttpRequest(head.method, head.path, head.query, head.headers, body, account), end, length

    def add_head(self, data: bytes, request: HttpRequest) -> None:
        """Store the head of a request that the parser read from `data`, unless `data` has only a part of it."""
        end = data.find(HEAD_END) + len(HEAD_END)
        headers = request.headers
        if end < len(HEAD_END) or end > KNOWN_HEAD_BYTES:
            return
        if b"transfer-encoding" in headers or b"expect" in headers:
            return
        if len(self._heads) >= KNOWN_HEADS:
            self._heads.clear()
        self._heads[data[:end]] = msgspec.structs.replace(request, body=b"", account=NO_ACCOUNT), len(request.body)


class HttpConnection(RequestParsing):
    """One connection of a client, which `account` counts already."""

    def __init__(self, server: HttpServer, account: ClientAccount) -> None:
        super().__init__(server, account)
        self._known_heads, self._handler = server.known_heads, server.handler
        self.responses = 0
        self._cancel_current: Callable[[], object] | None = None
        self._write_paused = self._may_start = False
        """`_may_start`: the handler has decided already that it does not refuse the request that arrives."""
        self._has_room: asyncio.Event | None = None
        """Set while an event stream may write."""
        self._unsent_bytes = 0
        self._probe_timer: asyncio.TimerHandle | None = None
        self._pause_timer: asyncio.TimerHandle | None = None
        """Set after a refusal that was repeated, while nothing that arrives is handled."""
        self._held: tuple[bytes, int] | None = None
        """What has arrived in this pause, and when."""
        self._waited_ns = 0
        """Time for which the begin of the next request was held."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._server.add_connection(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._read_closed = self._closing = True
        for timer in (self._probe_timer, self._pause_timer):
            if timer is not None:
                timer.cancel()
        self.account.release(self._unsent_bytes)
        if self._held is not None:
            self.account.release(len(self._held[0]))
        if self._reader is not None:
            self._reader.discard()
        while self._queue:
            if isinstance((queued := self._queue.popleft()).content, HttpRequest):
                self.account.finish(queued.held_bytes)
        self._cancel_request()
        self._server.remove_connection(self, self.account)
        del self._parser  # it holds this object's methods: a cycle that only the garbage collector would free

    def data_received(self, data: bytes) -> None:
        if self._pause_timer is not None:
            self._hold(data)
            return
        if self._read_closed:
            self._arrived_bytes += len(data)
            self._transport.pause_reading()
            if self._arrived_bytes <= LINGER_BYTES:
                self._turns.defer(self.account, self._resume_reading)
            return
        is_between = self._reader is None and self._refusal is None and self._current is None
        if is_between and not self._write_paused and len(data) <= KNOWN_BYTES:
            request = self._known_heads.find_request(data, self.account)
            if (
                request is not None
                and not self._handler.refuse(request)
                and self.account.try_begin(size := len(request.body))
            ):
                self._start(QueuedRequest(request, True, b"", True, size))
                return
        if self._turns.is_open(self.account):
            self._turns.run(self.account, self._receive, data)
        elif not self.account.try_reserve(len(data)):
            self._transport.abort()
        else:
            self._transport.pause_reading()
            self._turns.defer(self.account, partial(self._parse_deferred, data))

    def _parse_deferred(self, data: bytes) -> None:
        self.account.release(len(data))
        if not self._read_closed:
            self._resume_reading()
            self._receive(data)

    def _receive(self, data: bytes) -> None:
        """Parse the data. Of a request that is refused again, discard the body, and send the refusal after it."""
        at = 0
        while at < len(data) and not self._closing:
            if self._refusal is None and not (at := self._begin_refusal(data, begin := at)):
                self._parse(data[begin:] if begin else data)
                return
            discarded = min(self._undiscarded_bytes, len(data) - at)
            self._undiscarded_bytes -= discarded
            at += discarded
            if self._undiscarded_bytes == 0 and (refusal := self._refusal) is not None:
                self._refusal = None
                self._refuse_again(QueuedRequest(refusal, True, b"", True), refusal)

    def _refuse_again(self, queued: QueuedRequest, refusal: HttpResponse) -> None:
        """Send a refusal that is repeated, and handle what arrives after it when `PAUSE_S` has passed."""
        self._waited_ns = 0
        self._write(queued, refusal)
        if not self._read_closed and self._pause_timer is None:
            self._pause_timer = asyncio.get_running_loop().call_later(PAUSE_S, self._end_pause)

    def _hold(self, data: bytes) -> None:
        """Keep what arrives in a pause until it ends, and read no more. Reading may be resumed for another reason."""
        self._transport.pause_reading()
        if not self.account.try_reserve(len(data)):
            self._transport.abort()
        elif self._held is None:
            self._held = data, monotonic_ns()
        else:
            self._held = self._held[0] + data, self._held[1]

    def _end_pause(self) -> None:
        """Handle what has arrived in a pause. Its wait counts for the deadline of its first request."""
        self._pause_timer = None
        if self._held is None:
            return
        (data, arrived_ns), self._held = self._held, None
        self.account.release(len(data))
        if not self._transport.is_closing():
            self._waited_ns = monotonic_ns() - arrived_ns
            self._transport.resume_reading()
            self.data_received(data)

    def _begin_refusal(self, data: bytes, at: int) -> int:
        """Return the end of the head that begins at `at` if its request is refused again, else 0."""
        if self._reader is not None or self._current is not None or self._queue or self._write_paused:
            return 0
        if (found := self._known_heads.find_begin(data, at, self.account)) is None:
            return 0
        request, end, length = found
        if HEADER_LENGTH not in request.headers:
            return 0  # the end of its body counts too
        self._refusal, self._undiscarded_bytes = self._handler.refuse_again(request, length), length
        self._may_start = self._refusal is None
        return 0 if self._may_start else end

    def _resume_reading(self) -> None:
        self._turns.use(READ_NS)
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def _start_next(self) -> None:
        if self._queue and self._current is None and not self._write_paused and not self._closing:
            self._start(self._queue.popleft())
            if self._queue and self._current is None:
                self._turns.defer(self.account, self._start_next)
        if self._read_paused and not self._queue and not self._closing:
            self._read_paused = False
            self._transport.resume_reading()

    def _start(self, queued: QueuedRequest) -> None:
        """Hand the request to the handler, and write the response if there is one already."""
        response = queued.content
        may_start, self._may_start = self._may_start, False
        waited_ns, self._waited_ns = self._waited_ns, 0
        if isinstance(response, HttpRequest):
            if waited_ns:
                response = msgspec.structs.replace(response, waited_ns=waited_ns)
            if not may_start and (refusal := self._handler.refuse_again(response, len(response.body))):
                self.account.finish(queued.held_bytes)
                self._refuse_again(queued, refusal)
                return
            outcome = self._handler.start(response, self._on_response)
            if not isinstance(outcome, HttpResponse):
                self._current, self._cancel_current = queued, outcome
                return
            self.account.finish(queued.held_bytes)
            response = outcome
        self._write(queued, response)

    def _on_response(self, response: HttpResponse) -> None:
        if self._closing:
            return
        if isinstance(response, EventStream):  # the request stays in flight until the last event
            self._has_room = asyncio.Event()
            if not self._write_paused:
                self._has_room.set()
            self._cancel_current = response.begin(self._transport, self._has_room, self._end_stream)
            return
        self._write(self._end_request(), response)
        if self._queue or self._read_paused:
            self._turns.call(self.account, self._start_next)

    def _end_stream(self) -> None:
        """Close behind the last event. Does nothing if the connection has been lost."""
        if not self._closing:
            self._cancel_request()
            self._close()

    def _cancel_request(self) -> None:
        if self._cancel_current is not None:
            self._cancel_current()
            self._end_request()

    def _end_request(self) -> QueuedRequest:
        queued, self._current, self._cancel_current = self._current, None, None
        assert queued is not None
        self.account.finish(queued.held_bytes)
        return queued

    def _write(self, queued: QueuedRequest, response: HttpResponse) -> None:
        size = response.size if response.parts else len(response.body)
        if size >= JOIN_BYTES and queued.body_wanted and not self.account.has_room(size):
            response = error_response(no_room(self.account, size))
            size = len(response.body)
        closing = self._server.closing or not queued.keep_alive or (self._input_ended and not self._queue)
        head = encode_head(
            response, size, b"close" if closing else queued.connection, self._server.settings.refused_status
        )
        if not queued.body_wanted:
            self._transport.write(head)
        elif size < JOIN_BYTES:
            self._transport.write(b"".join((head, response.body, *response.parts)))
        else:
            self._transport.writelines((head, response.body, *response.parts))
        self.responses += 1
        if closing:
            self._close()

    def _close(self) -> None:
        """Close behind what is written. The client may still send, so half-close first: see `timeouts.LINGER_NS`."""
        self._closing = self._read_closed = True
        if self._input_ended or self._transport.is_closing() or not self._transport.can_write_eof():
            self._transport.close()
        else:
            self._transport.resume_reading()
            self._transport.write_eof()

    def eof_received(self) -> bool:
        """Answer the requests that have arrived, then close. Return False if there are none: the transport closes.

        The client may have closed only its sending side. If it has closed both, the first write fails, and
        `connection_lost` cancels the request in flight.
        """
        if self._reader is not None or self._refusal is not None:
            self._refuse(failure(400, "the client has ended the connection before the end of its request"))
        is_open = not self._closing and (self._current is not None or bool(self._queue))
        is_open = is_open and self._transport.can_write_eof()  # TLS has no half-closed connections
        if is_open and not self._input_ended:
            self._probe_timer = asyncio.get_running_loop().call_later(PROBE_S, self._probe_client)
        self._input_ended = True
        return is_open

    def _probe_client(self, sent: bool = False) -> None:
        """Send an interim response (RFC 9110 15.2: to HTTP/1.1). A client that has closed both sides resets then."""
        if self._closing or self._current is None or not self._current.takes_interim:
            return
        if not sent:
            self._transport.write(CONTINUE)
        elif self._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()  # an ended input is not read, so nothing else reports the reset
            return
        self._probe_timer = asyncio.get_running_loop().call_later(PROBE_S, self._probe_client, True)

    def pause_writing(self) -> None:
        """Count what the client has not read. Abort if that exceeds the limits."""
        self._write_paused = True
        if self._has_room is not None:
            self._has_room.clear()
        self._unsent_bytes = self._transport.get_write_buffer_size()
        if not self.account.try_reserve(self._unsent_bytes):
            self._unsent_bytes = 0
            self._transport.abort()

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._has_room is not None:
            self._has_room.set()
        self.account.release(self._unsent_bytes)
        self._unsent_bytes = 0
        self._turns.call(self.account, self._start_next)

    def state(self) -> ConnectionState:
        """Return what the connection waits for."""
        if self._write_paused:
            return ConnectionState.WRITING
        if self._closing:
            return ConnectionState.CLOSING
        if self._current is not None or self._queue:
            return ConnectionState.HANDLING
        if self._refusal is not None:
            return ConnectionState.BODY
        if self._reader is None:
            return ConnectionState.IDLE
        return ConnectionState.HEAD if self._reader.head is None else ConnectionState.BODY

    def expire(self) -> None:
        """Handle a timeout: answer 408 to a slow sender, close an idle connection, abort a slow reader."""
        if self._closing or self._write_paused:
            self._transport.abort()
        elif self._reader is not None or self._refusal is not None:
            self._refuse(failure(408, "the request did not arrive in time"))
        else:
            self._transport.close()

    def drain(self) -> None:
        """Close an idle connection at shutdown. A busy one closes after its response."""
        has_begun = self._reader is not None or self._refusal is not None or self._held is not None
        if self._current is None and not self._queue and not has_begun and not self._closing:
            self._closing = self._read_closed = True
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()


def encode_head(response: HttpResponse, size: int, connection: bytes, refused_status: int = REFUSED) -> bytes:
    """Return status line and headers for a body of `size` bytes. Empty `connection`: the default of the version."""
    status = refused_status if response.status == REFUSED else response.status
    head = b"%s%d\r\n" % (_head_begin(status, response.content_type, int(time.time())), size)
    if response.headers:
        head += b"".join([b"%s: %s\r\n" % header for header in response.headers])
    if connection:
        head += b"connection: %s\r\n" % connection
    return head + b"\r\n"


@lru_cache(maxsize=16)
def _head_begin(status: int, content_type: bytes, second: int) -> bytes:
    """Return the head up to the number of Content-Length. The cache formats it about once per second."""
    date = formatdate(second, usegmt=True).encode()
    return b"%scontent-type: %s\r\ndate: %s\r\ncontent-length: " % (STATUS_LINES[status], content_type, date)
