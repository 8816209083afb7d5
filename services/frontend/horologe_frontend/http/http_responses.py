"""HTTP responses: status, headers and body, and the responses that errors become."""

from __future__ import annotations

import msgspec

from horologe_common.status import HorologeError, Status

JSON = b"application/json"
BINARY = b"application/octet-stream"

HTTP_STATUS: dict[Status, int] = {
    Status.OK: 200, Status.INVALID_INPUT: 400, Status.UNAUTHENTICATED: 401, Status.FORBIDDEN: 403,
    Status.UNKNOWN_MODEL: 404, Status.MISSING_INPUT: 410, Status.TOO_LARGE: 413, Status.REFUSED: 503, Status.LOST: 503,
    Status.CANCELLED: 503, Status.LATE: 504, Status.FAILED: 500,
}  # fmt: skip
"""Every other status is a 500."""


class HttpResponse(msgspec.Struct, frozen=True):
    """An HTTP response. `connection.encode_head` adds Content-Length, Date and Connection. HEAD gets no body."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


class HttpError(Exception):
    """An HTTP status that no `Status` stands for: wrong method, unknown path, unsupported extension."""

    def __init__(self, status: int, reason: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


def json_response(content: object, status: int = 200) -> HttpResponse:
    return HttpResponse(status, msgspec.json.encode(content))


def failure(status: int, reason: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> HttpResponse:
    """Return a response with the body `{"error": reason}`."""
    return HttpResponse(status, msgspec.json.encode({"error": reason}), JSON, headers)


def error_response(error: HorologeError | HttpError) -> HttpResponse:
    """Return the response for an exception. For UNAUTHENTICATED, the reason is not shown."""
    if isinstance(error, HttpError):
        return failure(error.status, error.reason, error.headers)
    status = HTTP_STATUS.get(error.status, 500)
    if status == 401:
        return failure(401, "unauthenticated", ((b"www-authenticate", b"Bearer"),))
    return failure(status, str(error), _retry_after(error) if status == 503 else ())


def _retry_after(error: HorologeError) -> tuple[tuple[bytes, bytes], ...]:
    """Return Retry-After in whole seconds, and Retry-After-Ms where the milliseconds are known."""
    seconds = max(1, -(-error.retry_after_ns // 1_000_000_000))
    headers = ((b"retry-after", b"%d" % seconds),)
    if error.retry_after_ns > 0:
        return (*headers, (b"retry-after-ms", b"%d" % -(-error.retry_after_ns // 1_000_000)))
    return headers
