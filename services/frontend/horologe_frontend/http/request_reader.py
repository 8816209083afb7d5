"""A request while it arrives."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, Protocol

import httptools

from horologe_common.status import InvalidInput, Refused, TooLarge
from horologe_frontend.http.responses import Response, error_response, failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_frontend.http.settings import HttpSettings


class Request(NamedTuple):
    """`path` is still percent-encoded; header names are lower-case."""

    method: str
    path: str
    query: str
    headers: Mapping[bytes, bytes]
    body: bytes = b""


class Handler(Protocol):
    """What an HTTP server needs to know of the application behind it."""

    draining: bool
    """Set by the server when it begins to stop: readiness is false from then on."""

    def refuse(self, head: Request) -> Response | None:
        """The answer to a request that its head alone disqualifies, before any of its body is read."""

    async def handle(self, request: Request) -> Response:
        """The answer. Never raises, except for the cancellation of the awaiting task."""


DISCARD_BYTES = 256 << 10
"""The body of a refused request is read up to this size, so that the connection can stay."""


class Stop(Exception):
    """Raised into the parser: nothing more of this connection is read."""


class Incoming:
    """Collects head and body and keeps the gate's account of them until it is `taken` or `dropped`.

    The methods return a response where the connection must answer it, read no further and close.
    """

    __slots__ = ("_chunks", "_entered", "_gate", "_head_bytes", "_headers", "_url", "head", "refusal", "size")

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = 0
        self._chunks: list[bytes] = []
        self._entered = False
        self.size = 0
        self.head: Request | None = None
        """Set when all headers are here."""
        self.refusal: Response | None = None
        """The answer to a request whose body is read only to be thrown away."""

    def add_url(self, part: bytes) -> None:
        self._url += part
        self._head_bytes += len(part)

    def add_header(self, name: bytes, value: bytes) -> Response | None:
        """Repeated headers are joined by commas (RFC 9110 5.3); trailers count, but change nothing any more."""
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > self._gate.settings.header_limit_bytes:
            return self.too_long()
        if self.head is None:
            name = name.lower()
            known = self._headers.get(name)
            self._headers[name] = value if known is None else known + b", " + value
        return None

    def too_long(self) -> Response:
        return failure(431, f"headers: at most {self._gate.settings.header_limit_bytes} bytes")

    def complete_head(self, method: str, upgrade: bool) -> Response | None:
        path, _, query = self._url.decode("latin-1").partition("?")
        headers = self._headers
        self.head = Request(method, path if path[:1] == "/" else path_of(self._url), query, headers)
        length = headers.get(b"content-length", b"0")
        if upgrade and length != b"0":
            return failure(400, "Upgrade: not supported, least of all with a body")
        self.refusal = self._gate.enter(self.head)
        if self.refusal is None:
            self._entered = True
        elif self.expects_continue or not length.isdigit() or len(length) > 18 or int(length) > DISCARD_BYTES:
            return self.refusal
        return None

    @property
    def expects_continue(self) -> bool:
        return self._headers.get(b"expect", b"").lower() == b"100-continue"

    def add_body(self, chunk: bytes) -> Response | None:
        size = self.size + len(chunk)
        if not self._entered:
            self.size = size
            return self.refusal if size > DISCARD_BYTES else None
        if refusal := self._gate.take(len(chunk), size):
            return refusal
        self.size = size
        self._chunks.append(chunk)
        return None

    def take(self) -> Request:
        """The whole request; from now on the caller answers for the gate's account of `size` bytes."""
        assert self.head is not None
        self._entered = False
        chunks = self._chunks
        return self.head._replace(body=chunks[0] if len(chunks) == 1 else b"".join(chunks))

    def drop(self) -> None:
        """It will never be complete."""
        if self._entered:
            self._entered = False
            self._gate.leave(self.size)


BUSY_NS = 1_000_000_000


class Gate:
    """Counts requests in flight and the bytes of their bodies, and lets no more in than the settings allow."""

    def __init__(self, settings: HttpSettings, handler: Handler) -> None:
        self.settings = settings
        self.handler = handler
        self.requests = 0
        self.held_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self, head: Request) -> Response | None:
        """Count a request whose head has been read, or give the response that refuses it."""
        if refusal := self.handler.refuse(head):
            return refusal
        length = head.headers.get(b"content-length", b"0")
        if not length.isdigit():
            return error_response(InvalidInput("Content-Length: wanted a number"))
        if len(length) > 18 or int(length) > self.settings.body_limit_bytes:
            return self.too_large()
        if self.requests >= self.settings.max_requests:
            return error_response(Refused(f"{self.requests} requests are in flight already", BUSY_NS))
        if self.held_bytes + int(length) > self.settings.held_limit_bytes:
            return self.full()
        self.requests += 1
        self._idle.clear()
        return None

    def take(self, size: int, total: int) -> Response | None:
        """Account for `size` more bytes of a body that is then `total` long, or give the response that refuses it.

        Bytes that were refused are not accounted for.
        """
        if total > self.settings.body_limit_bytes:
            return self.too_large()
        if self.held_bytes + size > self.settings.held_limit_bytes:
            return self.full()
        self.held_bytes += size
        return None

    def leave(self, held: int) -> None:
        """A request that had entered, and took `held` bytes, is over."""
        self.requests -= 1
        self.held_bytes -= held
        if not self.requests:
            self._idle.set()

    def too_large(self) -> Response:
        return error_response(TooLarge(f"body: at most {self.settings.body_limit_bytes} bytes"))

    def full(self) -> Response:
        return error_response(Refused("too many request bodies are held already", BUSY_NS))

    async def idle(self, timeout_ns: int) -> bool:
        """Wait until no request is in flight; False if that took longer than the timeout."""
        try:
            async with asyncio.timeout(timeout_ns / 1e9):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def check(self) -> None:
        assert self.requests >= 0
        assert self.held_bytes >= 0
        assert self.requests or not self.held_bytes


def path_of(url: bytes) -> str:
    """Path of an absolute-form target; anything else stays what it is, and is unknown."""
    try:
        return (httptools.parse_url(url).path or b"/").decode("latin-1")
    except httptools.HttpParserError:
        return url.decode("latin-1")
