"""HTTP requests while they arrive, and the limits that all connections share."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import httptools
import msgspec

from horologe_common.clock import s
from horologe_common.status import InvalidInput, Refused, TooLarge
from horologe_frontend.http.http_responses import HttpResponse, error_response, failure

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horologe_frontend.http.settings import HttpSettings

DISCARD_BYTES = 256 << 10
"""Bodies of refused requests are read up to this size, so that the connection stays usable."""
MAX_LENGTH_DIGITS = 18
"""A Content-Length with more digits exceeds every limit."""
RETRY_NS = s(1)
HEAD_END = b"\r\n\r\n"
KNOWN_HEADS, KNOWN_HEAD_BYTES = 1024, 2048
"""Maximum number of known heads and maximum size of each: 4 MB together with their parsed headers."""


class HttpRequest(msgspec.Struct, frozen=True):
    """`path` is still percent-encoded. Header names are in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[bytes, bytes]
    body: bytes = b""


class HttpHandler(Protocol):
    """The application behind the HTTP server."""

    draining: bool
    """Set by the server when its shutdown begins. The readiness check fails from then on."""

    def refuse(self, head: HttpRequest) -> HttpResponse | None:
        """Return the response to a request that is refused because of its headers, before its body is read."""

    def start(
        self, request: HttpRequest, respond: Callable[[HttpResponse], None]
    ) -> HttpResponse | Callable[[], object]:
        """Return the response, or begin a longer operation and return a function that cancels it.

        `respond` gets the response of the operation after this method has returned. It ignores the response of an
        operation that was cancelled.
        """


class StopReading(Exception):
    """Raised inside the parser: the connection reads nothing more."""


class KnownHeads:
    """Parsed heads by their bytes, because a client sends equal heads. Parsing a head of four headers takes 6 us.

    Stores only heads of requests that arrived in one read, whose body has a Content-Length or is empty, and after which
    HTTP/1.1 keeps the connection. Such a request depends on nothing but its bytes.
    """

    def __init__(self) -> None:
        self._heads: dict[bytes, tuple[HttpRequest, int]] = {}

    def find_request(self, data: bytes) -> HttpRequest | None:
        """Return the request if `data` is a known head and its whole body."""
        end = data.find(HEAD_END) + len(HEAD_END)
        head, length = self._heads.get(data[:end], (None, 0))
        if head is None or len(data) - end != length:
            return None
        return HttpRequest(head.method, head.path, head.query, head.headers, data[end:])

    def add_head(self, data: bytes, request: HttpRequest) -> None:
        """Store the head of a request that the parser read from `data`, unless `data` holds anything else."""
        end = data.find(HEAD_END) + len(HEAD_END)
        headers = request.headers
        if end > KNOWN_HEAD_BYTES or len(data) - end != len(request.body):
            return
        if b"transfer-encoding" in headers or b"expect" in headers:
            return
        if len(self._heads) >= KNOWN_HEADS:
            self._heads.clear()
        self._heads[data[:end]] = msgspec.structs.replace(request, body=b""), len(request.body)


class RequestLimits:
    """Count the requests in flight and the bytes of their bodies, and refuse requests beyond the settings."""

    def __init__(self, settings: HttpSettings, handler: HttpHandler) -> None:
        self.settings = settings
        self.handler = handler
        self.known_heads = KnownHeads()
        self.in_flight = 0
        self.held_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def admit_request(self, head: HttpRequest) -> HttpResponse | None:
        """Count a request whose headers have arrived, or return the response that refuses it."""
        if refusal := self.handler.refuse(head):
            return refusal
        length = head.headers.get(b"content-length", b"0")
        if not length.isdigit():
            return error_response(InvalidInput("Content-Length: wanted a number"))
        if len(length) > MAX_LENGTH_DIGITS or int(length) > self.settings.body_limit_bytes:
            return self._refuse_large_body()
        if self.in_flight >= self.settings.max_requests:
            return error_response(Refused(f"{self.in_flight} requests are in flight already", RETRY_NS))
        if self.held_bytes + int(length) > self.settings.held_limit_bytes:
            return self._refuse_full()
        self.in_flight += 1
        self._idle.clear()
        return None

    def admit_complete(self, request: HttpRequest) -> bool:
        """Count a request whose body has arrived too. Return False if `admit_request` would refuse it."""
        held_bytes, settings = self.held_bytes + len(request.body), self.settings
        if (
            self.in_flight >= settings.max_requests
            or held_bytes > settings.held_limit_bytes
            or len(request.body) > settings.body_limit_bytes
            or self.handler.refuse(request)
        ):
            return False
        self.in_flight += 1
        self.held_bytes = held_bytes
        self._idle.clear()
        return True

    def reserve_bytes(self, size: int, total: int) -> HttpResponse | None:
        """Count `size` more bytes of a body of `total` bytes so far, or return the response that refuses them.

        Refused bytes are not counted.
        """
        if total > self.settings.body_limit_bytes:
            return self._refuse_large_body()
        if self.held_bytes + size > self.settings.held_limit_bytes:
            return self._refuse_full()
        self.held_bytes += size
        return None

    def release_request(self, body_bytes: int) -> None:
        """End an admitted request for which `body_bytes` were reserved."""
        self.in_flight -= 1
        self.held_bytes -= body_bytes
        if not self.in_flight:
            self._idle.set()

    def _refuse_large_body(self) -> HttpResponse:
        return error_response(TooLarge(f"body: at most {self.settings.body_limit_bytes} bytes"))

    def _refuse_full(self) -> HttpResponse:
        return error_response(Refused("too many bytes of request bodies are in memory already", RETRY_NS))

    async def wait_until_idle(self, timeout_ns: int) -> None:
        """Wait until no request is in flight, or until the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ns / 1e9):
                await self._idle.wait()

    def check(self) -> None:
        assert self.in_flight >= 0
        assert self.held_bytes >= 0
        assert self.in_flight or not self.held_bytes


class RequestReader:
    """Collect the headers and the body of one request.

    `add_*` and `finish_head` return a response if the connection must send it, stop reading and close.

    Invariant: a request that `RequestLimits` admitted is released by `discard`, or by the caller of `pop_request`.
    """

    __slots__ = ("_admitted", "_chunks", "_head_bytes", "_headers", "_limits", "_url", "body_bytes", "head", "refusal")

    def __init__(self, limits: RequestLimits) -> None:
        self._limits = limits
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._chunks: list[bytes] = []
        self._admitted = False
        self.body_bytes = 0
        self.head: HttpRequest | None = None
        """The request without its body. Set when all headers have arrived."""
        self.refusal: HttpResponse | None = None
        """The response to a refused request, whose body is read and discarded."""

    def add_url(self, part: bytes) -> None:
        self._url += part
        self._head_bytes += len(part)

    def add_header(self, name: bytes, value: bytes) -> HttpResponse | None:
        """Add a header. Repeated headers are joined by commas (RFC 9110 5.3). Trailers are counted and ignored."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._limits.settings.header_limit_bytes:
            return self.refuse_long_header()
        if self.head is None:
            name = name.lower()
            previous = self._headers.get(name)
            self._headers[name] = value if previous is None else previous + b", " + value
        return None

    def refuse_long_header(self) -> HttpResponse:
        return failure(431, f"headers: at most {self._limits.settings.header_limit_bytes} bytes")

    def finish_head(self, method: str, upgrade: bool) -> HttpResponse | None:
        """Check the request against the limits, now that all its headers have arrived."""
        path, _, query = self._url.decode("latin-1").partition("?")
        headers = self._headers
        self.head = HttpRequest(method, path if path[:1] == "/" else _path_of(self._url), query, headers)
        length = headers.get(b"content-length", b"0")
        if upgrade and length != b"0":
            return failure(400, "Upgrade: not supported for a request with a body")
        self.refusal = self._limits.admit_request(self.head)
        if self.refusal is None:
            self._admitted = True
        elif (
            self.expects_continue
            or not length.isdigit()
            or len(length) > MAX_LENGTH_DIGITS
            or int(length) > DISCARD_BYTES
        ):
            return self.refusal
        return None

    @property
    def expects_continue(self) -> bool:
        return self._headers.get(b"expect", b"").lower() == b"100-continue"

    def add_body(self, chunk: bytes) -> HttpResponse | None:
        total = self.body_bytes + len(chunk)
        if not self._admitted:
            self.body_bytes = total
            return self.refusal if total > DISCARD_BYTES else None
        if refusal := self._limits.reserve_bytes(len(chunk), total):
            return refusal
        self.body_bytes = total
        self._chunks.append(chunk)
        return None

    def pop_request(self) -> HttpRequest:
        """Return the complete request. From then on the caller must release its `body_bytes` from the limits."""
        assert self.head is not None
        self._admitted = False
        chunks = self._chunks
        return msgspec.structs.replace(self.head, body=chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def discard(self) -> None:
        """Release a request that will never be complete."""
        if self._admitted:
            self._admitted = False
            self._limits.release_request(self.body_bytes)


def _path_of(url: bytes) -> str:
    """Return the path of a URL in absolute form. Any other URL is returned unchanged, and matches no route."""
    try:
        return (httptools.parse_url(url).path or b"/").decode("latin-1")
    except httptools.HttpParserError:
        return url.decode("latin-1")
