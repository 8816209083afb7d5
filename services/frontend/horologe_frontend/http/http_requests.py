"""HTTP requests, and the interface of what handles them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from horologe_frontend.http.client_accounts import ClientAccount

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horologe_frontend.http.http_responses import HttpResponse


class HttpRequest(msgspec.Struct, frozen=True):
    """`path` is still percent-encoded. Header names are in lower case. `account` is that of the client."""

    method: str
    path: str
    query: str
    headers: Mapping[bytes, bytes]
    body: bytes = b""
    account: ClientAccount = msgspec.field(default_factory=ClientAccount)


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
