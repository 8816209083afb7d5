"""Forged messages: every value of a message replaced, as far as a link would still accept it, and many senders."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from harness.damaged_files import damaged_values
from horologe_common.status import HorologeError
from horologe_common.wire import AnyMessage, Envelope
from horologe_common.wire.frames import pack, tensors, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from horologe_common.core.protocol import Buffer, Core

SENDERS = ("frontend/0#1", "selector/0#1", "controller/0#1", "worker/0#1", "profiler/0#1", "tuner/0#1", "", "x")
BODY_LIMIT = 1 << 20


def forged_messages(message: AnyMessage) -> Iterator[tuple[str, AnyMessage, Sequence[Buffer]]]:
    """Yield (what was replaced, message, buffers) for each forged variant that passes the decoder of a link."""
    kind = type(message).__name__
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    for name, damaged in damaged_values(fields[1:]):
        try:
            decoded = msgspec.msgpack.decode(msgspec.msgpack.encode([fields[0], *damaged]), type=AnyMessage)
            sizes = [tensor.nbytes for tensor in tensors(decoded)]
            if not all(0 <= size < BODY_LIMIT for size in sizes):
                continue
            packet = pack([Envelope("to", "sender", [decoded])], [bytes(size) for size in sizes])
            ((_, _, arrived, buffers),) = unpack(packet, 1 << 24)
        except (HorologeError, msgspec.MsgspecError, OverflowError, TypeError):
            continue
        yield f"{kind} {name}", arrived, buffers


def check_sendable(core: Core) -> None:
    """Encode what the core has sent, as its host does: a number that is too large would lose a packet."""
    for out in core.out:
        if isinstance(out.message, AnyMessage):
            pack([Envelope(out.to, core.address, [out.message])], out.buffers)
