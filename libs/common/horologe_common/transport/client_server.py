"""The server for clients without encryption: connections that speak ZMTP, read in fair turns and in bounded memory.

Clients with keys connect to a ZeroMQ socket instead (sockets.py), because libzmq has the encryption.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, cast

import msgspec

from horologe_common.clock import ms
from horologe_common.service.settings import SettingsError
from horologe_common.transport.zmtp import GREETING, PING, READY, MessageReader, ProtocolError, encode_message, pong
from horologe_common.wire import HEADER_LIMIT, Predict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Arrival, Buffer
    from horologe_common.transport.zmtp import Frame

    Unpack = Callable[["ClientConnection", Sequence[Frame], bool, list[Arrival]], None]

PACKETS_WAITING, BYTES_WAITING = 4096, 1 << 20
"""A client with as many packets or bytes that no turn has handled is not read."""
TURN_MESSAGES, TURN_MESSAGES_MIN = 4096, 16
"""Requests of a client in a turn. What is not handled waits. With 256, an edge that was offered 30,000 requests/s by
one client answered 1,500/s in time, with all of them 20,000/s."""
OTHER_WEIGHT = 64
"""Weight of a message that is not a Predict: its answer may name all models, and it may change the catalogue."""
TURN_NS = ms(3)
"""Duration of turns in which a client sends more than others."""
UNFAIR = 4
"""A client sends more than others if it sends this many times as much as another does on average."""
SWEEP_S = 0.25
HEARTBEAT_SWEEPS, SILENT_SWEEPS = 4, 13
"""A heartbeat each second. A client that sends nothing for three is disconnected."""
STALLED_S = 10.0
"""A client that has not read its answers, or has not completed a message, for this long is disconnected."""
UNSENT_FROM = 64 << 10
"""Bytes that may wait for a client before they count, and before it is read no further."""
SMALL = 64 << 10
"""A message is not dropped before it holds this many bytes."""


class ClientLimits(msgspec.Struct, frozen=True):
    """Bounds of all clients together. One client gets at most as much as is then left for the others."""

    connections: int = 1000
    message_bytes: int = 64 << 20
    """Bytes of one message."""
    receive_bytes: int = 256 << 20
    """Bytes of messages that have not arrived completely."""
    unsent_bytes: int = 256 << 20
    """Bytes of answers that clients have not read."""


class ClientConnection(asyncio.Protocol):
    """The connection of one client. Its address comes from `number`, because clients send none."""

    def __init__(self, server: ClientServer, number: int) -> None:
        self.identity = number.to_bytes(5, "big")
        self.known = False
        """A first message has been handled."""
        self.packets: deque[tuple[list[Frame], bool]] = deque()
        """Messages of ZMTP that no turn has handled, and whether frames of them were dropped."""
        self.arrivals: deque[Arrival] = deque()
        """Messages of a packet of which a turn has handled only the first."""
        self.count = self.rate = 0
        """Messages handled since the last sweep, and before."""
        self.unsent = 0
        """Bytes that the client does not read, as counted by the server."""
        self.held = 0
        """Bytes of a message that is arriving, as counted by the server."""
        self.silent_sweeps = 0
        self.since_s = 0.0
        """When the client stopped to read, or when the message that is arriving began. 0: neither."""
        self._server = server
        self._reader = MessageReader(server.limits.message_bytes + HEADER_LIMIT, HEADER_LIMIT)
        self._waiting = 0
        self._reads_answers = True
        self._is_read = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Part of `asyncio.Protocol`."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=UNSENT_FROM)
        if not self._server.add(self):
            self._transport.abort()
            return
        self._transport.write(GREETING + READY)

    def connection_lost(self, exc: Exception | None) -> None:
        """Part of `asyncio.Protocol`."""
        self.packets.clear()
        self.arrivals.clear()
        self._server.remove(self)

    def data_received(self, data: bytes) -> None:
        """Part of `asyncio.Protocol`."""
        reader = self._reader
        self.silent_sweeps = 0
        try:
            reader.feed(data)
        except ProtocolError:
            self._server.rejected += 1
            self._transport.abort()
            return
        if reader.held_bytes != self.held:
            self._server.count_held(self, reader)
        if reader.pings:
            self._transport.write(b"".join(map(pong, reader.pings)))
            reader.pings.clear()
        if reader.messages:
            self.packets.extend(reader.messages)
            self._waiting += len(data)
            reader.messages.clear()
            self._server.mark_ready(self)
            self._update_reading()

    def pause_writing(self) -> None:
        """Part of `asyncio.Protocol`: the client does not read its answers."""
        self._reads_answers = False
        self.since_s = monotonic()
        self._server.count_unsent(self, self._transport.get_write_buffer_size())
        self._update_reading()

    def resume_writing(self) -> None:
        """Part of `asyncio.Protocol`."""
        self._reads_answers = True
        self.since_s = 0.0
        self._server.count_unsent(self, 0)
        self._update_reading()

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send a packet. Return False, without sending it, if the client is lost. Disconnect it if it does not read."""
        transport = self._transport
        if transport.is_closing():
            return False
        if not self._reads_answers:
            size = transport.get_write_buffer_size() + sum(map(len, frames))
            if not self._server.count_unsent(self, size):
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

    def handle_packets(self, limit: int, unpack: Unpack, inbox: list[Arrival]) -> None:
        """Append the messages of this client to `inbox`, at most `limit` by their weights."""
        arrivals, packets, weight = self.arrivals, self.packets, 0
        while weight < limit:
            if arrivals:
                arrival = arrivals.popleft()
                weight += 1 if type(arrival[2]) is Predict else OTHER_WEIGHT
                inbox.append(arrival)
            elif packets:
                begin = len(inbox)
                unpack(self, *packets.popleft(), inbox)
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

    def sweep(self, now_s: float, beat: bool) -> bool:
        """Update rates, send a heartbeat. Return False if the client is to be disconnected."""
        self.rate, self.count = max(self.count, self.rate // 2), 0
        self.silent_sweeps += self._is_read
        if beat and self._reads_answers:
            self._transport.write(PING)
        stalled = self.since_s and now_s - self.since_s > STALLED_S
        return not stalled and self.silent_sweeps < SILENT_SWEEPS

    def _update_reading(self) -> None:
        """Read while the client reads its answers and not too much of it waits."""
        wanted = self._reads_answers and self._waiting < BYTES_WAITING and len(self.packets) < PACKETS_WAITING
        if wanted != self._is_read:
            self._is_read = wanted
            self._transport.resume_reading() if wanted else self._transport.pause_reading()


class ClientServer:
    """All clients. `on_ready` is called when something has arrived, `on_lost` with a connection that was `known`."""

    def __init__(self, limits: ClientLimits, on_ready: Callable[[], None], on_lost: Callable[[bytes], None]) -> None:
        self.limits = limits
        self.rejected = 0
        """Connections closed: a peer of another protocol, a bound exceeded, answers not read, or silence."""
        self.connections: dict[ClientConnection, bool] = {}
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._ready: dict[ClientConnection, bool] = {}
        self._unsent = self._held = 0
        self._turn_messages = TURN_MESSAGES
        self._limited = False
        """A client was limited to `_turn_messages` in this turn."""
        self._rate = self._active = self._posted = 0
        """Messages in the last sweep interval, and the clients that sent them. Messages from HTTP since then."""
        self._last_number = self._sweeps = 0
        self._listeners: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None

    def bind(self, endpoint: str) -> None:
        """Listen on `tcp://HOST:PORT` or `ipc://PATH`. Raises `SettingsError` if that is not possible."""
        try:
            self._listeners.append(_listen(endpoint))
        except (OSError, ValueError) as error:
            raise SettingsError(f"frontend.clients: {endpoint}: {error}") from error

    async def start(self) -> None:
        """Accept connections. Call it in the loop."""
        loop = asyncio.get_running_loop()
        for listener in self._listeners:
            create = loop.create_unix_server if listener.family == socket.AF_UNIX else loop.create_server
            self._servers.append(await create(self._connect, sock=listener, backlog=1024))
        self._timer = loop.call_later(SWEEP_S, self._sweep)

    async def stop(self) -> None:
        """Close all connections once their answers are sent, or at once if a client does not read."""
        for server in self._servers:
            server.close()
        if self._timer:
            self._timer.cancel()
        for connection in list(self.connections):
            connection.close()
        await asyncio.sleep(0)

    def close(self) -> None:
        """Close the listeners."""
        for listener in self._listeners:
            listener.close()

    def receive(self, inbox: list[Arrival], unpack: Unpack) -> bool:
        """Append the messages of a turn. Return True if there are more. The clients with the fewest come first.

        `inbox` has the messages that HTTP clients sent, which count as those of one client.
        """
        ready = sorted(self._ready, key=lambda one: len(one.packets)) if len(self._ready) > 1 else list(self._ready)
        self._posted += len(inbox)
        for connection in ready:
            connection.handle_packets(self._limit(connection), unpack, inbox)
            if not (connection.packets or connection.arrivals):
                self._ready.pop(connection, None)
        return bool(self._ready)

    def end_turn(self, took_ns: int) -> None:
        """Adapt the limit: turns in which it applies take about `TURN_NS`."""
        if self._limited:
            self._limited = False
            wanted = self._turn_messages * TURN_NS // max(took_ns, TURN_NS // 2)
            self._turn_messages = max(TURN_MESSAGES_MIN, min(TURN_MESSAGES, wanted))

    def _limit(self, connection: ClientConnection) -> int:
        """Return how many messages of a client a turn handles."""
        rate = max(connection.rate, connection.count)
        rest, others = self._rate - connection.rate, self._active - (connection.rate > 0)
        if others <= 0 or rate * others <= UNFAIR * rest:
            return TURN_MESSAGES
        self._limited = True
        return self._turn_messages

    def mark_ready(self, connection: ClientConnection) -> None:
        """Handle the packets of a connection in the next turn."""
        self._ready[connection] = True
        self._on_ready()

    def count_held(self, connection: ClientConnection, reader: MessageReader) -> None:
        """Count the bytes of an unfinished message. Drop the message if too many are held by it, or in all."""
        if not connection.held:
            connection.since_s = monotonic()
        elif not reader.held_bytes:
            connection.since_s = 0.0
        others = self._held - connection.held
        if reader.held_bytes > max(SMALL, self.limits.receive_bytes - others - reader.held_bytes):
            reader.drop_message()
        self._held = others + reader.held_bytes
        connection.held = reader.held_bytes

    def count_unsent(self, connection: ClientConnection, size: int) -> bool:
        """Count the bytes that a client does not read. Return False if they exceed its bound."""
        others = self._unsent - connection.unsent
        self._unsent, connection.unsent = others + size, size
        return size <= self.limits.unsent_bytes - others - size

    def add(self, connection: ClientConnection) -> bool:
        """Add a connection. Return False if there are too many."""
        self.connections[connection] = True
        fits = len(self.connections) <= self.limits.connections
        self.rejected += not fits
        return fits

    def remove(self, connection: ClientConnection) -> None:
        """Remove a connection that is lost."""
        self.connections.pop(connection, None)
        self._ready.pop(connection, None)
        self._held -= connection.held
        self._unsent -= connection.unsent
        connection.held = connection.unsent = 0
        if connection.known:
            self._on_lost(connection.identity)

    def _connect(self) -> ClientConnection:
        self._last_number += 1
        return ClientConnection(self, self._last_number)

    def _sweep(self) -> None:
        now_s, self._sweeps = monotonic(), self._sweeps + 1
        beat = self._sweeps % HEARTBEAT_SWEEPS == 0
        for connection in list(self.connections):
            if not connection.sweep(now_s, beat):
                self.rejected += 1
                connection.abort()
        rates = [connection.rate for connection in self.connections if connection.rate]
        if self._posted:
            rates.append(self._posted)
            self._posted = 0
        self._rate, self._active = sum(rates), len(rates)
        self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)


def _listen(endpoint: str) -> socket.socket:
    scheme, _, place = endpoint.partition("://")
    if scheme == "ipc":
        listener = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)
        listener.bind(place)
    elif scheme == "tcp":
        host, _, port = place.rpartition(":")
        host = host.strip("[]").replace("*", "0.0.0.0")
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
    else:
        raise ValueError("wanted tcp://HOST:PORT or ipc://PATH")
    listener.setblocking(False)
    return listener
