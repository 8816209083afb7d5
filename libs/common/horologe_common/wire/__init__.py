"""Every message that crosses a socket, one module per link.

A packet is a multipart message `[header][body]...`. The header is a msgpack array of envelopes. An envelope is
`[to, sender, [message...]]`: all messages of one turn from one core to another. All envelopes of a turn for a process
travel in one packet. The bytes of tensors follow as body frames, in the order in which the messages name them. Budgets
are remaining nanoseconds; `*_ns` times of actions are on the worker's monotonic clock.

Compatibility: new fields are added at the end with a default, and tags are never reused. 67, 68, 69 and 79 are the tags
of messages that no longer exist.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from horologe_common.status import HorologeError, InvalidInput, TooLarge
from horologe_common.wire.application_messages import *
from horologe_common.wire.client_frontend import *
from horologe_common.wire.console_messages import *
from horologe_common.wire.controller_worker import *
from horologe_common.wire.driver_messages import *
from horologe_common.wire.holder_messages import *
from horologe_common.wire.message import *
from horologe_common.wire.request_messages import *
from horologe_common.wire.tuning_messages import *

PROTOCOL = 1
HEADER_LIMIT = 64 << 10
"""Bytes of a header from a client. Longer ones are rejected undecoded: to decode 2 MB of header took 115 ms."""
PEER_HEADER_LIMIT = 16 << 20
"""Bytes of a header from a service."""

AnyMessage: TypeAlias = (
    ApplicationMessage
    | ClientMessage
    | ConnectionMessage
    | ConsoleMessage
    | DriverMessage
    | HolderMessage
    | RequestMessage
    | TuningMessage
    | WorkerMessage
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
