"""Status codes of gRPC for errors."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc import StatusCode

from horologe_common.status import HorologeError, Status
from horologe_frontend.http.http_messages import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_frontend.grpc.rpc_server import Rpc

CODES: dict[Status, StatusCode] = {
    Status.INVALID_INPUT: StatusCode.INVALID_ARGUMENT,
    Status.UNAUTHENTICATED: StatusCode.UNAUTHENTICATED,
    Status.FORBIDDEN: StatusCode.PERMISSION_DENIED,
    Status.UNKNOWN_MODEL: StatusCode.NOT_FOUND,
    Status.MISSING_INPUT: StatusCode.FAILED_PRECONDITION,
    Status.TOO_LARGE: StatusCode.RESOURCE_EXHAUSTED,
    Status.REFUSED: StatusCode.RESOURCE_EXHAUSTED,
    Status.LOST: StatusCode.UNAVAILABLE,
    Status.CANCELLED: StatusCode.UNAVAILABLE,
    Status.LATE: StatusCode.DEADLINE_EXCEEDED,
}
"""Every other status is INTERNAL."""
RETRIED = (Status.REFUSED, Status.LOST, Status.CANCELLED)
"""Statuses whose error has a RetryInfo: a retry may succeed. HTTP sends Retry-After with them."""
RETRY_NS = 1_000_000_000
"""Delay of a retry where the error states none, as in HTTP's Retry-After."""
STATUS_KEY, REQUEST_KEY, DETAILS_KEY = "horologe-status", "horologe-request", "grpc-status-details-bin"
REASON_MAX = 1000
"""Characters of a reason. Clients accept 8 KiB of trailing metadata, where each may take three bytes twice."""
log = logging.getLogger(__name__)


def describe_failure(error: Exception, method: str) -> tuple[StatusCode, str, str]:
    """Return the code, the status name and the reason. Log an exception that is no error of the request."""
    if isinstance(error, Unsupported):
        return StatusCode.UNIMPLEMENTED, "NOT_IMPLEMENTED", error.reason
    if not isinstance(error, HorologeError):
        log.error("internal error while handling %s", method, exc_info=error)
        return StatusCode.INTERNAL, "INTERNAL_SERVER_ERROR", "internal error"
    code = CODES.get(error.status, StatusCode.INTERNAL)
    reason = "unauthenticated" if code is StatusCode.UNAUTHENTICATED else str(error)
    return code, error.status.name, reason if len(reason) <= REASON_MAX else f"{reason[:REASON_MAX]}…"


def fail(rpc: Rpc, error: Exception, method: str, request_id: int = 0) -> None:
    """End a call with the status of an exception. `request_id`: for `horologe explain`; 0: none."""
    code, name, reason = describe_failure(error, method)
    rpc.fail(code, reason, tuple(_trailing_metadata(error, code, name, reason, request_id)))


def _trailing_metadata(
    error: Exception, code: StatusCode, name: str, reason: str, request_id: int
) -> Iterator[tuple[str, str | bytes]]:
    yield STATUS_KEY, name
    if request_id:
        yield REQUEST_KEY, str(request_id)
    if isinstance(error, HorologeError) and error.status in RETRIED:
        delay = duration_pb2.Duration()
        delay.FromNanoseconds(error.retry_after_ns or RETRY_NS)
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        status = status_pb2.Status(code=code.value[0], message=reason, details=[detail])
        yield DETAILS_KEY, status.SerializeToString()
