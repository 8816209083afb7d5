"""The server for clients without encryption: connections that speak ZMTP, read in fair turns and in bounded memory.

Clients with keys connect to a ZeroMQ socket instead (sockets.py), because libzmq has the encryption.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Any

import msgspec

from horologe_common.clock import ms
from horologe_common.core.accounts import Total
from horologe_common.service.log import logger
from horologe_common.service.settings import SettingsError
from horologe_common.status import describe_error
from horologe_common.transport.clients.acceptor import Acceptor
from horologe_common.transport.clients.client_connection import ClientConnection
from horologe_common.transport.clients.fair_turns import FairTurns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Arrival
    from horologe_common.transport.clients.client_connection import Unpack
    from horologe_common.transport.peers import Peers

TURN_MESSAGES, TURN_MESSAGES_MIN = 4096, 16
"""Requests of a turn. What is not handled waits. With 256, an edge that was offered 30,000 requests/s by
one client answered 1,500/s in time, with all of them 20,000/s."""
TURN_NS, PAUSE_TURNS = ms(2), 1
"""Duration of turns in which a client sends more than others, and the pause of such clients in durations of the turn.
They get half of the time of the process: a process that always runs also loses its processor to others. After turns
shorter than half of `TURN_NS` there is no pause."""
UNFAIR = 4
"""A client sends more than others if it sends this many times as much as another does on average."""
BACKLOG = 1024
READERS, READ_TURN_NS = 2, 500_000
"""Connections that have a turn of large reads at the same time, and the time that they take."""
READ_PAUSE_S, CROWDED_PAUSE_S = 0.001, 0.004
"""Pause between turns of large reads while other clients send requests, and if more connections wait than have a turn.
Beside 200 connections that send without end on two busy cores, half of the requests of another client took 28 ms with
pauses of 1 ms and 7 to 10 ms with pauses of 4 ms. A turn each 5 ms still reads 200 MB/s."""
SWEEP_S = 0.25
HEARTBEAT_SWEEPS = 4
"""A heartbeat each second."""

log = logger("links")


class ClientLimits(msgspec.Struct, frozen=True):
    """Bounds of all clients together. One client gets at most half of what the others leave."""

    management: bool = True
    """Clients may manage models and applications."""
    connections: int = 1000
    message_bytes: int = 64 << 20
    """Bytes of one message."""
    receive_bytes: int = 256 << 20
    """Bytes of messages that have not arrived completely, or that no turn has handled."""
    unsent_bytes: int = 520 << 20
    """Bytes of answers that clients have not read."""
    reuse_port: bool = False
    """Other processes may listen on the same ports."""


class ClientServer:
    """All clients. Those that have sent a first message are added to `peers`."""

    def __init__(self, limits: ClientLimits, peers: Peers) -> None:
        self.limits = limits
        self.peers = peers
        self.rejected = 0
        """Connections closed: a peer of another protocol, a bound exceeded, answers not read, or silence."""
        self.connections: dict[ClientConnection, bool] = {}
        self.reads = FairTurns(self._read_pause_s, READ_TURN_NS)
        """Turns of connections that send much."""
        self.received = Total(max_held_bytes=limits.receive_bytes)
        """Bytes that have arrived and are not handled."""
        self.unsent = Total(max_held_bytes=limits.unsent_bytes)
        """Bytes that clients do not read."""
        self._on_ready: Callable[[], None] = lambda: None
        self._ready: dict[ClientConnection, bool] = {}
        self._turn_messages = TURN_MESSAGES
        self._limited = False
        """A client was limited to `_turn_messages` in this turn."""
        self._paused_ns = 0
        """Time from which limited clients are handled again."""
        self.wakeup_ns: int | None = None
        """When to call `receive` again without a packet."""
        self._rate = self._active = self._posted = 0
        """Messages in the last sweep interval, and the clients that sent them. Messages from HTTP since then."""
        self._last_number = self._sweeps = 0
        self._listeners: list[socket.socket] = []
        self._acceptors: list[Acceptor[ClientConnection]] = []
        self._timer: asyncio.TimerHandle | None = None

    def bind(self, endpoints: Sequence[str]) -> None:
        """Listen on `tcp://HOST:PORT` or `ipc://PATH`, as libzmq does: `*` is any host, or any free port.

        Raises `SettingsError` if that is not possible.
        """
        for endpoint in endpoints:
            try:
                listener = listen(endpoint, self.limits.reuse_port)
            except (OSError, ValueError) as error:
                raise SettingsError(f"frontend.clients: {endpoint}: {describe_error(error)}") from error
            self._listeners.append(listener)
            if endpoint.endswith((":*", ":0")):
                log.info("clients", endpoint=endpoint, port=listener.getsockname()[1])

    async def start(self, on_ready: Callable[[], None]) -> None:
        """Accept connections. Call it in the loop. `on_ready` is called when something has arrived."""
        loop, self._on_ready = asyncio.get_running_loop(), on_ready
        for listener in self._listeners:
            listener.listen(BACKLOG)
            acceptor = Acceptor(listener, self._admit, lambda _: None, lambda _: None, lambda: self._active > 0)
            self._acceptors.append(acceptor)
            acceptor.start()
        self._timer = loop.call_later(SWEEP_S, self._sweep)

    def stop_listening(self) -> None:
        """Accept no more connections. Open ones remain."""
        for acceptor in self._acceptors:
            acceptor.stop()

    async def stop(self) -> None:
        """Close all connections once their answers are sent, or at once if a client does not read."""
        self.stop_listening()
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
        """Append the messages of a turn. Return True if more are left. Clients that sent least recently come first.

        `inbox` has the messages that HTTP clients sent, which count as those of one client.
        """
        self._posted += len(inbox)
        waiting, left = 0, TURN_MESSAGES
        for connection in sorted(self._ready, key=lambda connection: connection.rate + connection.count):
            if left <= 0:
                break
            limit = left
            if self._is_greedy(connection):
                if monotonic_ns() < self._paused_ns:
                    waiting += 1
                    continue
                self._limited, limit = True, min(left, self._turn_messages)
            left -= connection.handle_packets(limit, unpack, inbox)
            if not (connection.packets or connection.arrivals):
                self._ready.pop(connection, None)
        self.wakeup_ns = self._paused_ns if waiting else None
        return len(self._ready) > waiting

    def end_turn(self, now_ns: int, took_ns: int) -> None:
        """Pause the limited clients. Adapt their limit: a turn in which it applies takes about `TURN_NS`."""
        if self._limited:
            self._limited = False
            if took_ns > TURN_NS // 2:
                self._paused_ns = now_ns + PAUSE_TURNS * took_ns
            wanted = self._turn_messages * TURN_NS // max(took_ns, TURN_NS // 2)
            self._turn_messages = max(TURN_MESSAGES_MIN, min(TURN_MESSAGES, wanted))

    def _is_greedy(self, connection: ClientConnection) -> bool:
        """Return whether a client sends much more than others."""
        rate = max(connection.rate, connection.count)
        rest, others = self._rate - connection.rate, self._active - (connection.rate > 0)
        return others > 0 and rate * others > UNFAIR * rest

    def mark_ready(self, connection: ClientConnection) -> None:
        """Handle the packets of a connection in the next turn."""
        self._ready[connection] = True
        self._on_ready()

    def remove(self, connection: ClientConnection) -> None:
        """Remove a connection that is lost."""
        self.connections.pop(connection, None)
        self._ready.pop(connection, None)
        self.reads.drop(connection)
        connection.received.hold(0)
        connection.unsent.hold(0)
        self.peers.disconnect(connection.address)
        self._on_ready()

    def _admit(self, _: str) -> ClientConnection | None:
        """Return a connection, which calls `add` once it is open. Return None if there are too many."""
        if len(self.connections) >= self.limits.connections:
            self.rejected += 1
            return None
        self._last_number += 1
        return ClientConnection(self, self._last_number)

    def add(self, connection: ClientConnection) -> bool:
        """Add an open connection. Return False if there are too many."""
        self.connections[connection] = True
        fits = len(self.connections) <= self.limits.connections
        self.rejected += not fits
        return fits

    def read_in_turn(self, connection: ClientConnection) -> None:
        """Call `continue_reading` of a connection, whose turn is over, when it has the next one."""
        if connection not in self.reads.waiting:
            self.reads.use(READ_TURN_NS)
            self.reads.defer(connection, connection.continue_reading)

    def _read_pause_s(self) -> float:
        """Return the pause between turns of reads: 0 if only clients that wait to be read have sent messages."""
        waiting: Sequence[Any] = tuple(self.reads.waiting)
        if self._active <= sum([connection.rate > 0 for connection in waiting]):
            return 0.0
        return CROWDED_PAUSE_S if len(waiting) > READERS else READ_PAUSE_S

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


def listen(endpoint: str, reuse_port: bool) -> socket.socket:
    """Return a bound socket for an endpoint, for one with TCP shared if `reuse_port`. Raises OSError, ValueError."""
    scheme, _, place = endpoint.partition("://")
    if scheme == "ipc":
        listener = socket.socket(socket.AF_UNIX)
        address: str | tuple[str, int] = place
        if place.startswith("@"):  # an abstract socket has no file (zmq_ipc(7))
            address = "\0" + place[1:]
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(place)
    elif scheme == "tcp":
        address = _split_tcp(place)
        listener = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    else:
        raise ValueError("wanted tcp://HOST:PORT or ipc://PATH")
    try:
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener


def _split_tcp(place: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`. Raises ValueError."""
    host, _, port = place.rpartition(":")
    host, port = host.strip("[]").replace("*", "0.0.0.0"), port.replace("*", "0")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"port: got {port!r}, wanted a number up to 65535, or *")
    if host in [name for _, name in socket.if_nameindex()]:
        raise ValueError(f"host: got the interface {host}, wanted one of its addresses")
    return host, int(port)
