"""How a request or an action ended, and the exceptions that carry it."""

from enum import IntEnum
from typing import Any


class Status(IntEnum):
    """The end of a request (what a client sees) or of an action (what a worker reports).

    Numbers are part of the wire protocol: they are never reused.
    """

    OK = 0
    INVALID_INPUT = 1
    UNAUTHENTICATED = 2
    UNKNOWN_MODEL = 3
    TOO_LARGE = 4
    REFUSED = 5
    LATE = 6
    LOST = 7
    CANCELLED = 8
    FAILED = 9
    """The model itself raised; the reason carries its message."""
    TOO_LATE = 10
    """Actions only: the window had passed, so nothing was run."""
    MISSING_INPUT = 11
    """Of actions: a row's tensors had not arrived by the end of the window. Of feedback: neither prediction nor inputs
    are there."""
    PROTOCOL = 12
    """Peer speaks another protocol version."""


class HorologeError(Exception):
    """An answer other than OK. `status` says which; `retry_after_ns` is 0 when retrying does not help."""

    status = Status.FAILED

    def __init__(self, reason: str = "", retry_after_ns: int = 0) -> None:
        super().__init__(reason or self.status.name)
        self.reason = reason
        self.retry_after_ns = retry_after_ns


class InvalidInput(HorologeError):
    status = Status.INVALID_INPUT


class Unauthenticated(HorologeError):
    status = Status.UNAUTHENTICATED


class UnknownModel(HorologeError):
    status = Status.UNKNOWN_MODEL


class TooLarge(HorologeError):
    status = Status.TOO_LARGE


class Refused(HorologeError):
    """The deadline cannot be met; no work was done. `retry_after_ns`: so much later it would have been possible."""

    status = Status.REFUSED


class Late(HorologeError):
    """Admitted, but finished after its deadline. `reply`: what came nevertheless (the SDK's `Reply`), or None."""

    status = Status.LATE
    reply: Any = None


class Lost(HorologeError):
    """No answer came by the deadline: something on the way died."""

    status = Status.LOST


class Cancelled(HorologeError):
    status = Status.CANCELLED


class ModelFailed(HorologeError):
    status = Status.FAILED


class MissingInput(HorologeError):
    """Feedback on a prediction that is known no more, without inputs: send them."""

    status = Status.MISSING_INPUT


class ProtocolMismatch(HorologeError):
    status = Status.PROTOCOL


ERRORS: dict[Status, type[HorologeError]] = {
    error.status: error
    for error in (
        InvalidInput,
        Unauthenticated,
        UnknownModel,
        TooLarge,
        Refused,
        Late,
        Lost,
        Cancelled,
        ModelFailed,
        MissingInput,
        ProtocolMismatch,
    )
}


def error_for(status: int, reason: str, retry_after_ns: int = 0) -> HorologeError:
    """The exception a client raises for an answer with this status (one a newer server made up included)."""
    known = status in Status._value2member_map_
    return (ERRORS.get(Status(status), ModelFailed) if known else ModelFailed)(reason, retry_after_ns)
