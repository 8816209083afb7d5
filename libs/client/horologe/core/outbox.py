"""What is to be sent, packed as late as possible: all requests of one turn in one packet."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from horologe_common.status import HorologeError, InvalidInput, TooLarge
from horologe_common.wire import HEADER_LIMIT, AnyMessage, Cancel, Envelope
from horologe_common.wire.frames import pack

if TYPE_CHECKING:
    from horologe.core.call import Call
    from horologe.core.pending_requests import Book
    from horologe_common.core.protocol import Buffer

    Packet: TypeAlias = list[Buffer]

PACKET_CALLS = 128
PACKET_BYTES = 4 << 20


class Outbox:
    """Requests and cancellations on their way out."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._calls: list[Call] = []
        self._cancels: list[int] = []
        self.add = self._calls.append

    def __bool__(self) -> bool:
        return bool(self._calls or self._cancels)

    def cancel(self, call: Call) -> None:
        """Tell the server to forget a request, if it knows of it."""
        if call.sent:
            self._cancels.append(call.id)

    def clear_cancels(self) -> None:
        """The server that knew of them is gone."""
        self._cancels.clear()

    def packets(self, now_ns: int) -> list[Packet]:
        """Everything, in packets that a frontend takes. What it never would ends with `TooLarge` here."""
        packets: list[Packet] = []
        calls: list[Call] = []
        size = 0
        for call in self._calls:
            if call not in self._book:
                continue
            if calls and (len(calls) == PACKET_CALLS or size + call.size > PACKET_BYTES):
                packets += self._pack(calls, now_ns)
                calls, size = [], 0
            calls.append(call)
            size += call.size
        self._calls.clear()
        if calls:
            packets += self._pack(calls, now_ns)
        if self._cancels:
            packets += [message_packet(Cancel(tuple(self._cancels[at : at + 4096]))) for at in self._steps()]
            self._cancels.clear()
        return packets

    def _steps(self) -> range:
        return range(0, len(self._cancels), 4096)

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
            self._book.end(calls[0], wrong)
            return []
        for call in calls:
            call.sent = True
            call.buffers = ()
        return [packet]


def message_packet(message: AnyMessage) -> Packet:
    return pack([Envelope("", "", [message])], ())
