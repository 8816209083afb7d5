"""Final status of requests and actions, and an exception for each."""

from enum import IntEnum
from typing import Any


class Status(IntEnum):
    """Final status of a request (for a client) or of an action (from a worker).

    The numbers are part of the wire protocol and are never reused.
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
    """The model raised an exception. The reason contains its message."""
    TOO_LATE = 10
    """Actions only: the window had passed, so the action was not run."""
    MISSING_INPUT = 11
    """Actions: the inputs of a row had not arrived by the end of the window. Feedback: the prediction is unknown and
    there are no inputs."""
    PROTOCOL = 12
    """The peer has another protocol version."""
    FORBIDDEN = 13
    """The key of the client or of the service does not permit the message."""


class _StatusNames(dict[int, str]):
    """Number -> name of each status."""

    def __missing__(self, number: int) -> str:
        return Status.FAILED.name


STATUS_NAMES = _StatusNames({int(status): status.name for status in Status})
"""Number -> name. One that is unknown here, such as that of a newer sender, is `FAILED`."""

TEXT_MAX = 4000
"""Characters of a reason. One reason of megabytes would make the message too large that has those of other requests."""


def encodable(text: str) -> str:
    """Return the text as messages carry it: with `?` for what UTF-8 cannot encode, and at most `TEXT_MAX` characters.

    File names may have bytes that are not UTF-8, and the errors of a model may quote its inputs.
    """
    if len(text) > TEXT_MAX:
        text = f"{text[:TEXT_MAX]}… ({len(text)} characters)"
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def describe_exception(error: BaseException) -> str:
    """Return type and text of an exception. Its class may be a user's, whose `__str__` may raise."""
    try:
        text = encodable(str(error))
    except Exception as fault:
        text = f"its text raises {type(fault).__name__}"
    return f"{type(error).__name__}: {text}"


class HorologeError(Exception):
    """An answer with a status other than OK. `retry_after_ns` is 0 if a retry does not help."""

    status = Status.FAILED
    request_id = 0
    """Number of the request at the server, for `horologe explain`; 0: the server did not answer."""

    def __init__(self, reason: str = "", retry_after_ns: int = 0) -> None:
        self.reason = encodable(reason)
        super().__init__(self.reason or self.status.name)
        self.retry_after_ns = retry_after_ns


class InvalidInput(HorologeError):
    """The request is invalid; no work was done. The message names the field, what came, and what was wanted."""

    status = Status.INVALID_INPUT


class Unauthenticated(HorologeError):
    """The server does not accept the key of this client."""

    status = Status.UNAUTHENTICATED


class Forbidden(HorologeError):
    """The key of this client does not permit this call, or not on this model."""

    status = Status.FORBIDDEN


class UnknownModel(HorologeError):
    """The server has no such model, version or application."""

    status = Status.UNKNOWN_MODEL


class TooLarge(HorologeError):
    """The request has more bytes than the server accepts."""

    status = Status.TOO_LARGE


class Refused(HorologeError):
    """The deadline cannot be met; no work was done. After `retry_after_ns` it can be."""

    status = Status.REFUSED


class Late(HorologeError):
    """The request was admitted but finished after its deadline. `reply`: the late answer (a `Reply`), or None."""

    status = Status.LATE
    reply: Any = None


class Lost(HorologeError):
    """No answer arrived by the deadline, because a process or connection failed."""

    status = Status.LOST


class Cancelled(HorologeError):
    """The caller cancelled the request or closed the client, or the server stops."""

    status = Status.CANCELLED


class ModelFailed(HorologeError):
    """The model raised an exception, or cannot be served. The message says why."""

    status = Status.FAILED


class MissingInput(HorologeError):
    """Feedback on a prediction that is no longer stored. Send it again with the inputs."""

    status = Status.MISSING_INPUT


class ProtocolMismatch(HorologeError):
    """Client and server have different versions of the protocol."""

    status = Status.PROTOCOL


def describe_error(error: Exception) -> str:
    """Return the text of an exception; of an OSError the system's text, without its number and the file's name."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


ERRORS: dict[Status, type[HorologeError]] = {error.status: error for error in HorologeError.__subclasses__()}


def error_for(status: int, reason: str, retry_after_ns: int = 0) -> HorologeError:
    """Return the exception for a status. A status of a newer server that is unknown here gives `ModelFailed`."""
    is_known = status in Status._value2member_map_
    return (ERRORS.get(Status(status), ModelFailed) if is_known else ModelFailed)(reason, retry_after_ns)
