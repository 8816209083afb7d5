"""Requests, their known heads, and the limits that all connections share."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from horologe_common.status import InvalidInput, Refused, TooLarge
from horologe_frontend.http.accounts import RETRY_NS, Account, ClientAccounts
from horologe_frontend.http.http_responses import HttpResponse, error_response

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horologe_frontend.http.settings import HttpSettings

MAX_LENGTH_DIGITS = 18
"""A Content-Length with more digits exceeds every limit."""
HEAD_END = b"\r\n\r\n"
KNOWN_HEADS, KNOWN_HEAD_BYTES = 1024, 2048
"""Maximum number of known heads and maximum size of each: 4 MB together with their parsed headers."""
MAX_PIPELINED = 64
KNOWN_BYTES = 32 << 10
"""Maximum size of a read that is compared with known heads. Larger requests wait for the fair turn of their client."""


class HttpRequest(msgspec.Struct, frozen=True):
    """`path` is still percent-encoded. Header names are in lower case. `account` is that of the client."""

    method: str
    path: str
    query: str
    headers: Mapping[bytes, bytes]
    body: bytes = b""
    account: Account = msgspec.field(default_factory=Account)


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


NO_ACCOUNT = Account()


class KnownHeads:
    """Parsed heads by their bytes, because a client sends equal heads. Parsing a head of four headers takes 6 us.

    Stores only heads of requests that arrived in one read, whose body has a Content-Length or is empty, and after which
    HTTP/1.1 keeps the connection. Such a request depends on nothing but its bytes.
    """

    def __init__(self) -> None:
        self._heads: dict[bytes, tuple[HttpRequest, int]] = {}

    def find_request(self, data: bytes, account: Account) -> HttpRequest | None:
        """Return the request if `data` is a known head and its whole body."""
        end = data.find(HEAD_END) + len(HEAD_END)
        head, length = self._heads.get(data[:end], (None, 0))
        if head is None or len(data) - end != length:
            return None
        return HttpRequest(head.method, head.path, head.query, head.headers, data[end:], account)

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
        self._heads[data[:end]] = msgspec.structs.replace(request, body=b"", account=NO_ACCOUNT), len(request.body)


class RequestLimits:
    """Count the requests in flight and the bytes that they hold, and refuse requests beyond the settings."""

    def __init__(self, settings: HttpSettings, handler: HttpHandler) -> None:
        self.settings = settings
        self.handler = handler
        self.known_heads = KnownHeads()
        self.clients = ClientAccounts(settings)
        self.total = self.clients.total
        self._idle = asyncio.Event()
        self._idle.set()

    def admit_request(self, head: HttpRequest) -> HttpResponse | None:
        """Count a request whose headers have arrived, or return the response that refuses it."""
        if refusal := self.handler.refuse(head):
            return refusal
        length, account = head.headers.get(b"content-length", b"0"), head.account
        if not length.isdigit():
            return error_response(InvalidInput("Content-Length: wanted a number"))
        if len(length) > MAX_LENGTH_DIGITS or int(length) > self.settings.body_limit_bytes:
            return self.refuse_large_body()
        if self.total.requests >= self.total.max_requests:
            return error_response(Refused(f"{self.total.requests} requests are in flight already", RETRY_NS))
        if account.requests >= account.max_requests:
            return error_response(Refused(f"{account.requests} requests of this client are in flight", RETRY_NS))
        if not account.has_room(int(length)):
            return refuse_full()
        account.requests += 1
        self.total.requests += 1
        self._idle.clear()
        return None

    def admit_complete(self, request: HttpRequest) -> bool:
        """Count a request whose body has arrived too. Return False if `admit_request` would refuse it."""
        size, account, total = len(request.body), request.account, self.total
        if (
            total.requests >= total.max_requests
            or account.requests >= account.max_requests
            or total.held_bytes + size > total.max_held_bytes
            or account.held_bytes + size > account.max_held_bytes
            or size > self.settings.body_limit_bytes
            or self.handler.refuse(request)
        ):
            return False
        account.requests += 1
        total.requests += 1
        account.held_bytes += size
        total.held_bytes += size
        self._idle.clear()
        return True

    def release_request(self, account: Account, held_bytes: int) -> None:
        """End an admitted request for which `held_bytes` are reserved."""
        total = self.total
        account.requests -= 1
        total.requests -= 1
        account.held_bytes -= held_bytes
        total.held_bytes -= held_bytes
        if not total.requests:
            self._idle.set()

    def refuse_large_body(self) -> HttpResponse:
        return error_response(TooLarge(f"body: at most {self.settings.body_limit_bytes} bytes"))

    async def wait_until_idle(self, timeout_ns: int) -> None:
        """Wait until no request is in flight, or until the timeout."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ns / 1e9):
                await self._idle.wait()


def refuse_full() -> HttpResponse:
    """Return the response to a request for which there is no memory."""
    return error_response(Refused("too many bytes of requests and responses are in memory already", RETRY_NS))
