"""Every message that crosses a socket, a file per link. Append-only: new fields last, with defaults; tags never change.

A packet is a multipart message `[header][body]...`. The header is a msgpack array of letters; a letter is
`[to, sender, [message...]]`, so that everything one turn has for a peer travels in one packet. Tensor bytes
follow as body frames in the order in which the messages name them (frames.py). Budgets are remaining
nanoseconds; `*_ns` times of actions are in the worker's monotonic clock.
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
from horologe_common.wire.frontend_selector import Query, Release
from horologe_common.wire.handshake import Directory, Hello, Rejected, Welcome
from horologe_common.wire.holder_profiler import Distributions, DurationHistogram, Sample
from horologe_common.wire.holder_worker import Dispatch, Outputs, RowStatus, Ship, Shipped
from horologe_common.wire.message import Message, Tensor
from horologe_common.wire.selector_controller import Outcome, Submit

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
"""From a client: a header this long is refused undecoded (decoding 2 MB of header took 115 ms)."""
PEER_HEADER_LIMIT = 16 << 20

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


def encode(letters: list[Envelope]) -> bytes:
    return _encoder.encode(letters)


def decode(header: bytes | memoryview, limit: int = PEER_HEADER_LIMIT) -> list[Envelope]:
    """Letters of a packet. Raises `TooLarge` over `limit` bytes and `InvalidInput` for anything not of this form."""
    if len(header) > limit:
        raise TooLarge(f"header: got {len(header)} bytes, at most {limit}")
    try:
        return _decoder.decode(header)
    except (msgspec.MsgspecError, HorologeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"header: {error}") from error


def tensors(message: AnyMessage) -> tuple[Tensor, ...]:
    """Headers of the tensors whose bytes follow this message, in order."""
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
