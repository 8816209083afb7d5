"""HTTP requests, the responses to them, and the responses that errors become."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import msgspec

from horologe_common.status import HorologeError, Status
from horologe_frontend.http.client_accounts import ClientAccount

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from horologe_common.core.protocol import Buffer

JSON = b"application/json"
BINARY = b"application/octet-stream"

REFUSED = 429
"""Status of REFUSED. The connection sends `http.refused_status` instead."""
HTTP_STATUS: dict[Status, int] = {
    Status.OK: 200, Status.INVALID_INPUT: 400, Status.UNAUTHENTICATED: 401, Status.FORBIDDEN: 403,
    Status.UNKNOWN_MODEL: 404, Status.MISSING_INPUT: 410, Status.TOO_LARGE: 413, Status.REFUSED: REFUSED,
    Status.LOST: 503, Status.CANCELLED: 503, Status.LATE: 504, Status.FAILED: 500,
}  # fmt: skip
"""Every other status is a 500."""
STATUS_OF_HTTP = {400: "INVALID_INPUT", 413: "TOO_LARGE", REFUSED: "REFUSED"}
"""The `status` of errors that the HTTP server itself finds. For others it is HTTP's own name, as METHOD_NOT_ALLOWED."""
STATUS_HEADER = b"horologe-status"
STATUS_LINES = {int(status): b"HTTP/1.1 %d %s\r\n" % (status, status.phrase.encode()) for status in HTTPStatus}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ErrorJson(msgspec.Struct):
    """An error: a sentence that names the field, the value received and the value wanted, and a code for programs."""

    error: str
    status: str


class HttpRequest(msgspec.Struct, frozen=True):
    """`path` is still percent-encoded. Header names are in lower case. `account` is that of the client.

    `waited_ns`: time between its arrival and the end of a pause of its connection.
    """

    method: str
    path: str
    query: str
    headers: Mapping[bytes, bytes]
    body: bytes = b""
    account: ClientAccount = msgspec.field(default_factory=ClientAccount)
    waited_ns: int = 0


class HttpResponse(msgspec.Struct, frozen=True):
    """An HTTP response. `connection.encode_head` adds Content-Length, Date and Connection. HEAD gets no body."""

    status: int
    body: bytes = b""
    content_type: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    parts: Sequence[Buffer] = ()
    """Bytes of a long body that follow `body`. They are not copied together."""

    @property
    def size(self) -> int:
        """Return the length of the whole body."""
        return len(self.body) + sum(map(len, self.parts)) if self.parts else len(self.body)


class HttpError(Exception):
    """An HTTP status that no `Status` stands for: wrong method, unknown path, unsupported extension."""

    def __init__(self, status: int, reason: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason
        self.headers = headers


class Unsupported(HttpError):
    """An extension that is not supported: 501 over HTTP, UNIMPLEMENTED over gRPC."""

    def __init__(self, reason: str) -> None:
        super().__init__(501, reason)


def json_response(content: object, status: int = 200) -> HttpResponse:
    return HttpResponse(status, msgspec.json.encode(content))


def failure(
    http_status: int, reason: str, headers: tuple[tuple[bytes, bytes], ...] = (), status: str = ""
) -> HttpResponse:
    """Return a response with `{"error": reason, "status": status}`. Default of `status`: `STATUS_OF_HTTP`."""
    status = status or STATUS_OF_HTTP.get(http_status) or HTTPStatus(http_status).name
    body = msgspec.json.encode(ErrorJson(reason, status))
    return HttpResponse(http_status, body, JSON, ((STATUS_HEADER, status.encode()), *headers))


def error_response(error: HorologeError | HttpError) -> HttpResponse:
    """Return the response for an exception. For UNAUTHENTICATED, the reason is not shown."""
    if isinstance(error, HttpError):
        return failure(error.status, error.reason, error.headers)
    http_status, name = HTTP_STATUS.get(error.status, 500), error.status.name
    if http_status == 401:
        return failure(401, "unauthenticated", ((b"www-authenticate", b"Bearer"),), name)
    return failure(http_status, str(error), _retry_after(error) if http_status in (REFUSED, 503) else (), name)


def _retry_after(error: HorologeError) -> tuple[tuple[bytes, bytes], ...]:
    """Return Retry-After in whole seconds, and Retry-After-Ms where the milliseconds are known."""
    seconds = max(1, -(-error.retry_after_ns // 1_000_000_000))
    headers = ((b"retry-after", b"%d" % seconds),)
    if error.retry_after_ns > 0:
        return (*headers, (b"retry-after-ms", b"%d" % -(-error.retry_after_ns // 1_000_000)))
    return headers
