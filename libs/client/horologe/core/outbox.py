"""The outbox: requests and cancellations to send, packed as late as possible so that a turn is one packet."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from horologe_common.status import HorologeError, InvalidInput, TooLarge
from horologe_common.wire import HEADER_LIMIT, AnyMessage, Cancel, Envelope, ItemsTaken
from horologe_common.wire.frames import pack

if TYPE_CHECKING:
    from horologe.core.pending_requests import Call, PendingRequests
    from horologe_common.core.protocol import Buffer

    Packet: TypeAlias = list[Buffer]

PACKET_CALLS = 128
PACKET_BYTES = 4 << 20
CANCEL_IDS = 4096


class Outbox:
    """Requests and cancellations that are not sent yet."""

    def __init__(self, pending: PendingRequests) -> None:
        self.connection = 0
        """Number of the connection that gets the packets."""
        self._pending = pending
        self._calls: list[Call] = []
        self._cancels: list[int] = []
        self._takes: dict[int, int] = {}
        """Items taken so far, by stream."""
        self.add = self._calls.append

    def __bool__(self) -> bool:
        return bool(self._calls or self._cancels or self._takes)

    def pop_predictions(self) -> list[Call]:
        """Remove and return the requests that are not sent yet, without other messages."""
        predictions = [call for call in self._calls if call.question is None]
        self._calls[:] = [call for call in self._calls if call.question is not None]
        return predictions

    def cancel(self, call: Call) -> None:
        """Cancel a request at the server, if it was sent over this connection."""
        if call.sent and call.sent == self.connection:
            self._cancels.append(call.id)

    def take_items(self, call: Call, items: int) -> None:
        """Report how many items of a stream were taken, if it was sent over this connection."""
        if call.sent and call.sent == self.connection:
            self._takes[call.id] = items

    def clear_cancels(self) -> None:
        """Drop the cancellations and reports, because the connection is lost."""
        self._cancels.clear()
        self._takes.clear()

    def packets(self, now_ns: int) -> list[Packet]:
        """Return everything in packets that a frontend accepts. End a request with `TooLarge` if it never would."""
        packets: list[Packet] = []
        calls: list[Call] = []
        size = 0
        for call in self._calls:
            if call not in self._pending:
                continue
            if calls and (len(calls) == PACKET_CALLS or size + call.size > PACKET_BYTES):
                packets += self._pack(calls, now_ns)
                calls, size = [], 0
            calls.append(call)
            size += call.size
        self._calls.clear()
        if calls:
            packets += self._pack(calls, now_ns)
        if self._takes:
            takes = [ItemsTaken(key, items) for key, items in self._takes.items()]
            packets += [
                pack([Envelope("", "", list(takes[at : at + PACKET_CALLS]))], ())
                for at in range(0, len(takes), PACKET_CALLS)
            ]
            self._takes.clear()
        if self._cancels:
            for at in range(0, len(self._cancels), CANCEL_IDS):
                packets.append(message_packet(Cancel(tuple(self._cancels[at : at + CANCEL_IDS]))))
            self._cancels.clear()
        return packets

    def _pack(self, calls: list[Call], now_ns: int) -> list[Packet]:
        try:
            messages = [call.message(now_ns) for call in calls]
            packet = pack([Envelope("", "", messages)], [buffer for call in calls for buffer in call.buffers])
            if len(packet[0]) > HEADER_LIMIT:
                raise TooLarge(f"header: got {len(packet[0])} bytes, at most {HEADER_LIMIT}")
        except (HorologeError, ValueError, OverflowError) as error:
            if len(calls) > 1:
                half = len(calls) // 2
                return self._pack(calls[:half], now_ns) + self._pack(calls[half:], now_ns)
            wrong = error if isinstance(error, HorologeError) else InvalidInput(f"request cannot be encoded: {error}")
            self._pending.finish(calls[0], wrong)
            return []
        for call in calls:
            call.sent = self.connection
            if not call.options.idempotent:
                call.buffers = ()
        return [packet]


def message_packet(message: AnyMessage) -> Packet:
    """Return a packet of one message without tensors."""
    return pack([Envelope("", "", [message])], ())
