"""A request while it arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_frontend.http.exchange import Request, Response, failure
from horologe_frontend.http.queued_exchange import path_of

if TYPE_CHECKING:
    from horologe_frontend.http.limits import Gate

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
