"""A request and its response, free of any HTTP server, and how an error becomes a response."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from horologe_common.status import HorologeError, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

JSON = b"application/json"
BINARY = b"application/octet-stream"

HTTP_STATUS: dict[Status, int] = {
    Status.OK: 200,
    Status.INVALID_INPUT: 400,
    Status.UNAUTHENTICATED: 401,
    Status.UNKNOWN_MODEL: 404,
    Status.MISSING_INPUT: 410,
    Status.TOO_LARGE: 413,
    Status.REFUSED: 503,
    Status.LOST: 503,
    Status.CANCELLED: 503,
    Status.LATE: 504,
    Status.FAILED: 500,
}
"""Every other status is a 500."""


class Request(NamedTuple):
    """`path` is still percent-encoded; header names are lower-case."""

    method: str
    path: str
    query: str
    headers: Mapping[bytes, bytes]
    body: bytes = b""


class Response(NamedTuple):
    """The server adds Content-Length, Date and Connection, and leaves the body away for HEAD."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Handler(Protocol):
    """What an HTTP server needs to know of the application behind it."""

    draining: bool
    """Set by the server when it begins to stop: readiness is false from then on."""

    def refuse(self, head: Request) -> Response | None:
        """The answer to a request that its head alone disqualifies, before any of its body is read."""

    async def handle(self, request: Request) -> Response:
        """The answer. Never raises, except for the cancellation of the awaiting task."""


class HttpError(Exception):
    """An HTTP status without a counterpart in `Status`: wrong verb, unknown path, unsupported extension."""

    def __init__(self, status: int, reason: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


def json_response(content: object, status: int = 200) -> Response:
    return Response(status, msgspec.json.encode(content))


def failure(status: int, reason: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Response:
    """`{"error": reason}`."""
    return Response(status, msgspec.json.encode({"error": reason}), JSON, headers)


def error_response(error: HorologeError | HttpError) -> Response:
    """The response an exception stands for. UNAUTHENTICATED says nothing but that."""
    if isinstance(error, HttpError):
        return failure(error.status, error.reason, error.headers)
    status = HTTP_STATUS.get(error.status, 500)
    if status == 401:
        return failure(401, "unauthenticated", ((b"www-authenticate", b"Bearer"),))
    return failure(status, str(error), _retry_after(error) if status == 503 else ())


def _retry_after(error: HorologeError) -> tuple[tuple[bytes, bytes], ...]:
    """Retry-After counts whole seconds, so the milliseconds travel beside it where they are known."""
    seconds = max(1, -(-error.retry_after_ns // 1_000_000_000))
    headers = ((b"retry-after", b"%d" % seconds),)
    if error.retry_after_ns > 0:
        return (*headers, (b"retry-after-ms", b"%d" % -(-error.retry_after_ns // 1_000_000)))
    return headers
