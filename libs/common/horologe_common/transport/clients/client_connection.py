"""The connection of one client that speaks ZMTP: what has arrived, what waits, and what the client does not read."""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, cast

from horologe_common.core.accounts import Account
from horologe_common.transport.clients.zmtp import (
    GREETING,
    PING,
    READY,
    MessageReader,
    ProtocolError,
    encode_message,
    pong,
)
from horologe_common.transport.peers import Route, client_address
from horologe_common.wire import HEADER_LIMIT, Envelope, Predict
from horologe_common.wire.frames import pack, refuse_message, withhold_outputs

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Arrival, Buffer
    from horologe_common.transport.clients.client_server import ClientServer
    from horologe_common.transport.clients.zmtp import Frame

    Unpack = Callable[[Route, Sequence[Frame], list[Arrival]], None]

PACKETS_WAITING, BYTES_WAITING = 4096, 1 << 20
"""A client with as many packets or bytes that no turn has handled is not read."""
OTHER_WEIGHT = 64
"""Weight of a message that is not a Predict: its answer may name all models, and it may change the catalogue."""
SILENT_SWEEPS = 13
"""A client that sends nothing for three heartbeats is disconnected."""
STALLED_S = 10.0
RATE_MIN = 512 << 10
"""A client is disconnected if a message has not arrived, or the waiting answers are not read, after `STALLED_S` and
the time that `RATE_MIN` (bytes per second) allows for what has arrived or has been read."""
SMALL = 128 << 10
"""A message is not dropped before it holds this many bytes."""
NEVER_S = float("inf")
COUNTED_FROM = 64 << 10
"""Bytes of complete messages that may wait before they count."""
LARGE_READ = 16 << 10
"""Shorter reads do not count: a client that waits for its answers never gets there. It is below a segment of the
loopback interface, 65,483 bytes, in which a client on the same host may send without end."""
READ_TURN, READ_TURN_NS = 512 << 10, 250_000
"""Bytes of large reads in a turn, and about the time that they take. libuv reads every readable connection in each
iteration of the loop, up to 32 times 256 kB: one client could keep the loop for 8 MB."""
SMALL_ANSWERS = 4 << 20
"""Unread bytes of a client that are left for answers without large outputs."""
UNSENT_FROM = 64 << 10
"""Bytes that may wait for a client before they count, and before it is read no further."""


class ClientConnection(asyncio.Protocol):
    """The connection of one client. Its address comes from `number`, because clients send none."""

    def __init__(self, server: ClientServer, number: int) -> None:
        identity = number.to_bytes(5, "big")
        self.route = Route(self, identity)
        self.address = client_address(identity, server.limits.management)
        self._is_known = False
        """A first message has been handled."""
        self.packets: deque[tuple[list[Frame], bool]] = deque()
        """Messages of ZMTP that no turn has handled, and whether frames of them were dropped."""
        self.arrivals: deque[Arrival] = deque()
        """Messages of a packet of which a turn has handled only the first."""
        self.count = self.rate = 0
        """Messages handled since the last sweep, and before."""
        self.unsent = Account(server.unsent)
        """Bytes that the client does not read."""
        self.received = Account(server.received)
        """Bytes that have arrived and are not handled."""
        self.silent_sweeps = 0
        self.unread_s = self.begun_s = NEVER_S
        """When answers began to wait for the client, and when the message that is arriving began."""
        self._written = 0
        """Bytes that waited for the client at `unread_s`, and those written since."""
        self._server = server
        self._reader = MessageReader(server.limits.message_bytes + HEADER_LIMIT, HEADER_LIMIT)
        self._waiting = 0
        self._read_left = READ_TURN
        """Bytes of large reads that are left of its turn. Below 0 it waits for the next one."""
        self._reads_answers = True
        self._is_read = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNSENT_FROM)
        if not self._server.add(self):
            self._transport.abort()
            return
        self._transport.write(GREETING + READY)

    def connection_lost(self, exc: Exception | None) -> None:
        self.packets.clear()
        self.arrivals.clear()
        self._server.remove(self)
        del self.route  # it holds this object: a cycle that only the garbage collector would free

    def data_received(self, data: bytes) -> None:
        self.silent_sweeps = 0
        self._parse(data)
        if len(data) >= LARGE_READ or self._reader.is_behind:
            self._read_left -= len(data)
            if self._read_left < 0 or self._reader.is_behind:
                self._wait_for_turn()

    def _parse(self, data: bytes) -> None:
        reader, before = self._reader, self._reader.held_bytes
        try:
            reader.feed(data)
        except ProtocolError:
            self._server.rejected += 1
            self._transport.abort()
            return
        if reader.pings:
            self._transport.write(b"".join(map(pong, reader.pings)))
            reader.pings.clear()
        if reader.messages:
            self.packets.extend(reader.messages)
            self._waiting += before + len(data)
            reader.messages.clear()
            self.begun_s = NEVER_S
            self._server.mark_ready(self)
            self._update_reading()
        if reader.held_bytes and self.begun_s == NEVER_S:
            self.begun_s = monotonic()
        if reader.held_bytes or reader.is_behind or self._waiting >= COUNTED_FROM or self.received.held_bytes:
            self._count_held()

    def _wait_for_turn(self) -> None:
        """Be read again in a turn of large reads."""
        self._read_left = -1
        self._server.read_in_turn(self)
        self._update_reading()

    def continue_reading(self) -> None:
        """Begin a turn of large reads, with what is not parsed yet."""
        self._server.reads.use(READ_TURN_NS)
        if self._reader.is_behind:
            self._parse(b"")
        if not self._reader.is_behind:
            self._read_left = READ_TURN
            self._update_reading()
        elif len(self.packets) < PACKETS_WAITING:
            self._server.read_in_turn(self)

    def _count_held(self) -> None:
        """Count the bytes that have arrived and wait. Drop the message that is arriving if they are too many."""
        waiting = self._waiting if self._waiting >= COUNTED_FROM else 0
        waiting += self._reader.unparsed_bytes
        fits = self.received.hold(self._reader.held_bytes + waiting)
        if not fits and self._reader.held_bytes > SMALL:
            self._reader.drop_message()
            self.received.hold(self._reader.held_bytes + waiting)

    def pause_writing(self) -> None:
        self._reads_answers = False
        self.unread_s, self._written = monotonic(), self._transport.get_write_buffer_size()
        self.unsent.hold(self._written)
        self._update_reading()

    def resume_writing(self) -> None:
        self._reads_answers = True
        self.unread_s = NEVER_S
        self.unsent.hold(0)
        self._update_reading()

    def fit_answers(
        self, envelopes: list[Envelope], buffers: Sequence[Buffer]
    ) -> tuple[list[Envelope], Sequence[Buffer]]:
        """Return messages to this client, without the outputs for which its bound of unread bytes leaves no room."""
        if sum(map(len, buffers)) < UNSENT_FROM:
            return envelopes, buffers
        limit = self._server.limits.unsent_bytes
        reserved = min(SMALL_ANSWERS, limit // 64)
        room = self.unsent.held_limit() - reserved - self._transport.get_write_buffer_size()
        return withhold_outputs(envelopes, buffers, room, limit // 2 - reserved)

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send a packet. Return False, without sending it, if the client is lost. Disconnect it if it does not read."""
        transport = self._transport
        if transport.is_closing():
            return False
        if not self._reads_answers:
            added = sum(map(len, frames))
            self._written += added
            if not self.unsent.hold(transport.get_write_buffer_size() + added):
                self._server.rejected += 1
                transport.abort()
                return False
        transport.writelines(encode_message(frames))
        return True

    def close(self) -> None:
        """Close the connection once everything is sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close the connection at once."""
        self._transport.abort()

    def handle_packets(self, limit: int, unpack: Unpack, inbox: list[Arrival]) -> int:
        """Append the messages of this client to `inbox`, at most `limit` by their weights. Return their weight."""
        arrivals, packets, weight = self.arrivals, self.packets, 0
        while weight < limit:
            if arrivals:
                arrival = arrivals.popleft()
                weight += 1 if type(arrival[2]) is Predict else OTHER_WEIGHT
                inbox.append(arrival)
            elif packets:
                begin = len(inbox)
                self._unpack(*packets.popleft(), unpack, inbox)
                if len(inbox) == begin + 1 and type(inbox[begin][2]) is Predict:
                    weight += 1
                elif len(inbox) == begin:
                    weight += OTHER_WEIGHT
                else:
                    arrivals.extend(inbox[begin:])
                    del inbox[begin:]
            else:
                break
        self.count += weight
        if not packets:
            self._waiting = 0
            self._update_reading()
            if self._reader.is_behind:
                self._server.read_in_turn(self)
            if self.received.held_bytes:
                self._count_held()
        return weight

    def _unpack(self, frames: list[Frame], dropped: bool, unpack: Unpack, inbox: list[Arrival]) -> None:
        if not self._is_known:
            self._is_known = True
            self._server.peers.routes[self.address] = self.route
        if dropped:
            answers = refuse_message(frames, self._server.limits.message_bytes)
            self.send(pack([Envelope("", "", answers)], ()))
        else:
            unpack(self.route, frames, inbox)

    def sweep(self, now_s: float, beat: bool) -> bool:
        """Update rates, send a heartbeat. Return False if the client is to be disconnected."""
        self.rate, self.count = max(self.count, self.rate // 2), 0
        self.silent_sweeps += self._is_read
        if beat and self._reads_answers and self._reader.is_ready:  # libzmq takes no other command in the handshake
            self._transport.write(PING)
        if not self._is_read:
            self.begun_s = now_s if self.begun_s < now_s else NEVER_S  # the pause is not the client's
        sends_s = now_s - self.begun_s - self._reader.held_bytes / RATE_MIN
        reads_s = now_s - self.unread_s - (self._written - self._transport.get_write_buffer_size()) / RATE_MIN
        return max(sends_s, reads_s) <= STALLED_S and self.silent_sweeps < SILENT_SWEEPS

    def _update_reading(self) -> None:
        """Read in the client's turn, while it reads its answers and not too much of it waits."""
        wanted = self._reads_answers and self._waiting < BYTES_WAITING and len(self.packets) < PACKETS_WAITING
        wanted = wanted and self._read_left >= 0
        if wanted != self._is_read and not self._transport.is_closing():
            self._is_read = wanted
            self._transport.resume_reading() if wanted else self._transport.pause_reading()
