"""Every message that crosses a socket, one module per link.

A packet is a multipart message `[header][body]...`. The header is a msgpack array of envelopes. An envelope is
`[to, sender, [message...]]`: all messages of one turn from one core to another. All envelopes of a turn for a process
travel in one packet. The bytes of tensors follow as body frames, in the order in which the messages name them. Budgets
are remaining nanoseconds; `*_ns` times of actions are on the worker's monotonic clock.

Compatibility: new fields are added at the end with a default, and tags are never reused.
"""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from horologe_common.status import HorologeError, InvalidInput, TooLarge
from horologe_common.wire.application_messages import (
    Acknowledged,
    ApplicationInfo,
    Applications,
    ApplicationState,
    Declare,
    Feedback,
    ModelStatistics,
    Observation,
    Rollback,
    Withdraw,
)
from horologe_common.wire.client_frontend import (
    Admit,
    Answer,
    Cancel,
    Describe,
    Description,
    ModelInfo,
    Models,
    ModelState,
    Predict,
    ShareState,
)
from horologe_common.wire.controller_worker import (
    Drain,
    Infer,
    Load,
    ModelReport,
    Ping,
    Pong,
    Register,
    Result,
    Row,
    Scan,
    Share,
    Unload,
)
from horologe_common.wire.holder_messages import (
    Dispatch,
    Distributions,
    DurationHistogram,
    Outputs,
    RowStatus,
    Sample,
    Ship,
    Shipped,
)
from horologe_common.wire.message import Directory, Hello, Message, Rejected, Tensor, Welcome
from horologe_common.wire.request_messages import Outcome, Query, Release, Submit

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "HEADER_LIMIT",
    "PEER_HEADER_LIMIT",
    "PROTOCOL",
    "Acknowledged",
    "Admit",
    "Answer",
    "AnyMessage",
    "ApplicationInfo",
    "ApplicationState",
    "Applications",
    "Cancel",
    "Declare",
    "Describe",
    "Description",
    "Directory",
    "Dispatch",
    "Distributions",
    "Drain",
    "DurationHistogram",
    "Envelope",
    "Feedback",
    "Hello",
    "Infer",
    "Load",
    "Message",
    "ModelInfo",
    "ModelReport",
    "ModelState",
    "ModelStatistics",
    "Models",
    "Observation",
    "Outcome",
    "Outputs",
    "Ping",
    "Pong",
    "Predict",
    "Query",
    "Register",
    "Rejected",
    "Release",
    "Result",
    "Rollback",
    "Row",
    "RowStatus",
    "Sample",
    "Scan",
    "Share",
    "ShareState",
    "Ship",
    "Shipped",
    "Submit",
    "Tensor",
    "Unload",
    "Welcome",
    "Withdraw",
    "decode",
    "encode",
    "tensors",
]

PROTOCOL = 1
HEADER_LIMIT = 64 << 10
"""Bytes of a header from a client. Longer ones are rejected undecoded: to decode 2 MB of header took 115 ms."""
PEER_HEADER_LIMIT = 16 << 20
"""Bytes of a header from a service."""

AnyMessage: TypeAlias = (
    Predict
    | Answer
    | Cancel
    | ModelInfo
    | Models
    | Admit
    | Describe
    | Description
    | Hello
    | Welcome
    | Directory
    | Rejected
    | Query
    | Release
    | Submit
    | Outcome
    | Dispatch
    | Ship
    | Outputs
    | Infer
    | Load
    | Unload
    | Result
    | Ping
    | Pong
    | Register
    | Scan
    | Drain
    | Sample
    | Distributions
    | Applications
    | ApplicationInfo
    | Declare
    | Withdraw
    | Rollback
    | Feedback
    | Acknowledged
)


class Envelope(Message, frozen=True):
    """Messages of one turn from one core to another."""

    to: str
    sender: str
    messages: list[AnyMessage]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Envelope])


def encode(envelopes: list[Envelope]) -> bytes:
    """Return the header of a packet."""
    return _encoder.encode(envelopes)


def decode(header: bytes | memoryview, limit: int = PEER_HEADER_LIMIT) -> list[Envelope]:
    """Decode the header of a packet. Raises `TooLarge` over `limit` bytes and `InvalidInput` for an invalid header."""
    if len(header) > limit:
        raise TooLarge(f"header: got {len(header)} bytes, at most {limit}")
    try:
        return _decoder.decode(header)
    except (msgspec.MsgspecError, HorologeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"header: {error}") from error


def tensors(message: AnyMessage) -> tuple[Tensor, ...]:
    """Return the headers of the tensors of a message, in the order in which their bytes follow."""
    headers = _TENSORS.get(type(message))
    return headers(message) if headers else ()


_TENSORS: dict[type, Callable[[Any], tuple[Tensor, ...]]] = {
    Predict: attrgetter("inputs"),
    Answer: attrgetter("outputs"),
    Outputs: attrgetter("outputs"),
    Sample: attrgetter("inputs"),
    Feedback: lambda feedback: tuple(tensor for item in feedback.items for tensor in item.inputs),
    Ship: lambda ship: tuple(tensor for item in ship.items for tensor in item.inputs),
}
