"""One HTTP request while it arrives."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import httptools
import msgspec
import numpy as np

from horologe_common.status import InvalidInput, Refused, TooLarge
from horologe_frontend.http.client_accounts import RETRY_NS
from horologe_frontend.http.http_messages import HttpRequest, HttpResponse, error_response, failure

if TYPE_CHECKING:
    from horologe_frontend.http.client_accounts import ClientAccount
    from horologe_frontend.http.settings import HttpSettings
    from horologe_frontend.oip.handler import OipHandler

TRANSFER_ENCODING, EXPECT = b"transfer-encoding", b"expect"
CHUNKED, CONTINUE = b"chunked", b"100-continue"
"""The only transfer coding and the only expectation that are served."""
MAX_LENGTH_DIGITS = 18
"""A Content-Length with more digits exceeds every limit."""
HOST = re.compile(rb"[A-Za-z0-9._~%!$&'()*+,;=:\[\]-]*")
DISCARD_BYTES = 256 << 10
"""Bodies of refused requests are read up to this size, so that the connection stays usable."""
HEADER_LIMIT_BYTES = 64 << 10
"""Maximum size of the request line and headers together."""
MAX_HEADERS = 256
"""A header takes up to 300 bytes of memory besides its text. Browsers and proxies send below 50."""
CHUNK_FRAMING = 64
"""A chunk counts as this many bytes of framing. It costs 1.5 us, however small it is."""
FRAMING_PART = 8
"""A body may have an eighth of its size in framing (chunk sizes, extensions, trailers) beyond the limit of headers."""
RESERVED_FROM = 64 << 10
"""Memory for as many further bytes of a body is reserved at once."""
LINGER_BYTES = 1 << 20
"""A connection discards this much of what arrives after its last response. Then it is not read."""


class QueuedRequest(msgspec.Struct, frozen=True):
    """A request, or the response that refuses it, until the requests before it are answered."""

    content: HttpRequest | HttpResponse
    keep_alive: bool
    connection: bytes
    """Value of the Connection header of the response. Empty: the default of the HTTP version."""
    body_wanted: bool
    held_bytes: int = 0
    takes_interim: bool = True
    """The client may get interim responses, because its request is of HTTP/1.1."""


class StopReading(Exception):
    """Raised inside the parser: the connection reads nothing more."""


class Body:
    """A body while it arrives. If its length is known, its memory is reserved at once: what has arrived is resident.

    A `bytearray` that grows leaves up to the same amount unused: 64 bodies of 8 MB took 1,088 MB.
    """

    __slots__ = ("_parts", "_size", "length")

    def __init__(self) -> None:
        self.length = 0
        """Value of Content-Length. 0: not known."""
        self._parts: bytes | bytearray | memoryview = b""
        self._size = 0

    def append(self, part: bytes) -> None:
        """Add a part. The parts are not longer than `length`, if that is known."""
        parts, begin = self._parts, self._size
        self._size = end = begin + len(part)
        if isinstance(parts, memoryview):
            parts[begin:end] = part
        elif not parts:
            self._parts = part
            if self.length - end >= RESERVED_FROM:
                self._parts = np.empty(self.length, np.uint8).data
                self._parts[:end] = part
        elif isinstance(parts, bytearray):
            parts += part
        else:
            self._parts = bytearray(parts + part)

    def pop(self) -> bytes:
        """Return the complete body."""
        return bytes(self._parts)


class RequestReader:
    """Collect the headers and the body of one request.

    `add_*`, `finish_head` and `check_framing` return a response if the connection must send it, stop reading and close.

    Invariant: `held_bytes` are reserved in the account, and an admitted request is counted, until `discard`, or until
    the caller of `pop_request` releases them.
    """

    __slots__ = (
        "_account", "_admitted", "_body", "_body_bytes", "_chunks", "_handler", "_head_bytes", "_header_count",
        "_headers", "_settings", "_url", "expects_continue", "head", "held_bytes", "refusal",
    )  # fmt: skip

    def __init__(self, settings: HttpSettings, handler: OipHandler, account: ClientAccount) -> None:
        self._settings = settings
        self._handler = handler
        self._account = account
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._head_bytes = self._header_count = self._body_bytes = self._chunks = 0
        self._body = Body()
        self._admitted = self.expects_continue = False
        self.held_bytes = 0
        self.head: HttpRequest | None = None
        """The request without its body. Set when all headers have arrived."""
        self.refusal: HttpResponse | None = None
        """The response to a refused request, whose body is read and discarded."""

    def add_url(self, part: bytes) -> HttpResponse | None:
        self._url += part
        return self._count_head(len(part))

    def add_header(self, name: bytes, value: bytes) -> HttpResponse | None:
        """Add a header. Repeated headers are joined by commas (RFC 9110 5.3). Trailers are counted and ignored."""
        self._header_count += 1
        if self._header_count > MAX_HEADERS:
            return failure(431, f"headers: got more than {MAX_HEADERS}")
        if self.head is None:
            name = name.lower()
            previous = self._headers.get(name)
            if name == b"host" and previous is not None:
                return failure(400, "Host: got two headers, wanted one")
            self._headers[name] = value if previous is None else previous + b", " + value
        return self._count_head(len(name) + len(value) + 4)

    def _count_head(self, size: int) -> HttpResponse | None:
        self._head_bytes += size
        limit = HEADER_LIMIT_BYTES
        return failure(431, f"headers: at most {limit} bytes") if self._head_bytes > limit else None

    def finish_head(self, parser: httptools.HttpRequestParser) -> HttpResponse | None:
        """Check the request against the limits, now that all its headers have arrived.

        Does nothing if it asks for an upgrade. httptools leaves out the body of such a request, which Java's HttpClient
        and `curl --http2` send, so it is parsed again with the head of `discard_upgrade`.
        """
        method = parser.get_method().decode()
        if parser.should_upgrade() and method != "CONNECT":  # CONNECT counts as an upgrade, but has no such header
            return None
        path, _, query = self._url.decode("latin-1").partition("?")
        headers = self._headers
        if refusal := (
            _check_host(headers.get(b"host"), parser.get_http_version())
            or _check_codings(headers.get(TRANSFER_ENCODING))
            or _check_expectations(headers.get(EXPECT))
        ):
            return refusal
        path = path if path[:1] == "/" else _path_of(self._url)
        self.head = HttpRequest(method, path, query, headers, b"", self._account)
        length = headers.get(b"content-length", b"0")
        self.expects_continue = CONTINUE in headers.get(EXPECT, b"").lower() and parser.get_http_version() != "1.0"
        self._body.length = int(length) if length.isdigit() and len(length) <= MAX_LENGTH_DIGITS else 0
        if not self._hold(self._head_bytes - self.held_bytes):
            return _refuse_full()
        self.refusal = self._admit(self.head)
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

    def _admit(self, head: HttpRequest) -> HttpResponse | None:
        """Count a request whose headers have arrived, or return the response that refuses it."""
        if refusal := self._handler.refuse(head):
            return refusal
        length, account = head.headers.get(b"content-length", b"0"), self._account
        if not length.isdigit():
            return error_response(InvalidInput("Content-Length: wanted a number"))
        if len(length) > MAX_LENGTH_DIGITS or int(length) > self._settings.body_limit_bytes:
            return self._refuse_large_body()
        if not account.may_request():
            reason = f"{account.total.requests} requests are in flight already, {account.requests} of this client"
            return error_response(Refused(reason, RETRY_NS))
        if not account.has_room(int(length)):
            return _refuse_full()
        account.try_begin(0)
        return None

    def _refuse_large_body(self) -> HttpResponse:
        return error_response(TooLarge(f"body: at most {self._settings.body_limit_bytes} bytes"))

    def persistence(self, parser: httptools.HttpRequestParser) -> tuple[bool, bytes]:
        """Return whether the connection stays open after the parsed request, and the response's header Connection.

        An HTTP/1.0 request with Transfer-Encoding is the last one: what follows may be part of it (RFC 9112 6.1).
        """
        is_old = parser.get_http_version() == "1.0"
        if not parser.should_keep_alive() or parser.should_upgrade() or (is_old and TRANSFER_ENCODING in self._headers):
            return False, b"close"
        return True, b"keep-alive" if is_old else b""

    def discard_upgrade(self, parser: httptools.HttpRequestParser) -> bytes:
        """Discard the request. Return its head without Upgrade (RFC 9110 7.8), as the last one of its connection."""
        kept = [b"%s: %s\r\n" % item for item in self._headers.items() if item[0] not in (b"connection", b"upgrade")]
        line = b"%s %s HTTP/%s\r\n" % (parser.get_method(), self._url, parser.get_http_version().encode())
        self.discard()
        return b"%s%sconnection: close\r\n\r\n" % (line, b"".join(kept))

    def add_body(self, part: bytes) -> HttpResponse | None:
        """Add a part of the body: a chunk, or what one read has brought."""
        self._body_bytes += len(part)
        self._chunks += 1
        if TRANSFER_ENCODING in self._headers and (refusal := self.check_framing(self._chunks * CHUNK_FRAMING)):
            return refusal
        if not self._admitted:
            return self.refusal if self._body_bytes > DISCARD_BYTES else None
        if self._body_bytes > self._settings.body_limit_bytes:
            return self._refuse_large_body()
        if not self._hold(len(part)):
            return _refuse_full()
        self._body.append(part)
        return None

    def check_arrived(self, size: int) -> HttpResponse | None:
        """Check the memory and the framing of a request of which at least `size` bytes have arrived."""
        if self.head is not None:
            return self.check_framing(size - self._body_bytes)
        limit = HEADER_LIMIT_BYTES
        if size > limit:
            return failure(431, f"headers: at most {limit} bytes")
        return None if self._hold(size - self.held_bytes) else _refuse_full()

    def check_framing(self, size: int) -> HttpResponse | None:
        """Refuse more framing than `HEADER_LIMIT_BYTES` and an eighth of the body: tiny chunks, long extensions."""
        if size <= HEADER_LIMIT_BYTES + self._body_bytes // FRAMING_PART:
            return None
        return failure(400, f"body: got {size} bytes of chunk sizes and extensions for {self._body_bytes} bytes")

    def _hold(self, size: int) -> bool:
        if size > 0:
            if not self._account.try_reserve(size):
                return False
            self.held_bytes += size
        return True

    def pop_request(self) -> HttpRequest:
        """Return the complete request. From then on the caller must release its `held_bytes` from the limits."""
        assert self.head is not None
        self._admitted = False
        return msgspec.structs.replace(self.head, body=self._body.pop())

    def discard(self) -> None:
        """Release a request that is refused, or that will never be complete."""
        if self._admitted:
            self._admitted = False
            self._account.finish(self.held_bytes)
        else:
            self._account.release(self.held_bytes)
        self.held_bytes = 0


def _refuse_full() -> HttpResponse:
    return error_response(Refused("too many bytes of requests and responses are in memory already", RETRY_NS))


def _check_host(host: bytes | None, version: str) -> HttpResponse | None:
    """Return the refusal of a request without a valid Host (RFC 9112 3.2). HTTP/1.0 has none."""
    if host is None:
        return failure(400, "Host: got none, wanted one header") if version == "1.1" else None
    if not HOST.fullmatch(host):
        return failure(400, f"Host: got {_shown(host)}, wanted a name or address with a port")
    return None


def _elements(value: bytes) -> list[bytes]:
    """Return the elements of a header that is a list, in lower case. Empty ones do not count (RFC 9110 5.6.1)."""
    return [element for part in value.lower().split(b",") if (element := part.strip())]


def _check_codings(value: bytes | None) -> HttpResponse | None:
    """Return the refusal of a body in another transfer coding than `chunked` alone (RFC 9112 6.1).

    Where `chunked` is not the last one, or is not the only one of its name, the end of the body is not known (6.3).
    """
    if value is None or (codings := _elements(value)) == [CHUNKED]:
        return None
    is_framed = codings[-1:] == [CHUNKED] and codings.count(CHUNKED) == 1
    return failure(501 if is_framed else 400, f"Transfer-Encoding: got {_shown(value)}, wanted chunked alone")


def _check_expectations(value: bytes | None) -> HttpResponse | None:
    """Return the refusal of another expectation than 100-continue (RFC 9110 10.1.1)."""
    if value is None or all(element == CONTINUE for element in _elements(value)):
        return None
    return failure(417, f"Expect: got {_shown(value)}, wanted 100-continue")


def _shown(value: bytes) -> str:
    return repr(value[:80].decode("latin-1"))


def _path_of(url: bytes) -> str:
    """Return the path of a URL in absolute form. Any other URL is returned unchanged, and matches no route."""
    try:
        return (httptools.parse_url(url).path or b"/").decode("latin-1")
    except httptools.HttpParserError:
        return url.decode("latin-1")
