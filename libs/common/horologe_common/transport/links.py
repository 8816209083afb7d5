"""Links: packets in and out over sockets, and the sockets and connections to look at.

A process binds one ROUTER for its peers, and a frontend another for clients. It opens a DEALER to each process that it
uses (sockets.py). Between processes of one machine, streams take the place of both (streams.py). The cores behind each
connection: peers.py.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from horologe_common.clock import monotonic_ns, ms
from horologe_common.status import HorologeError
from horologe_common.transport.client_connection import ClientConnection
from horologe_common.transport.client_server import ClientLimits, ClientServer
from horologe_common.transport.peers import HANDSHAKES, Peers, Route, client_address
from horologe_common.transport.sockets import LinkSettings, Sockets
from horologe_common.transport.streams import SCHEME, Stream, Streams
from horologe_common.wire import HEADER_LIMIT, PEER_HEADER_LIMIT, AnyMessage, Envelope, Rejected
from horologe_common.wire.frames import pack, refuse_message, unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Arrival, Buffer

PROBE_NS, PROBE_EVERY_NS = ms(20), ms(2)
"""A socket accepted packets for a dead peer for up to 2.9 ms after its kill -9."""
COPY_BELOW = 64 << 10
PACKETS_PER_TURN = 4096
"""What is not read waits unseen in the socket. With 256, an edge that was offered 30,000 requests/s answered 1,500/s in
time, with all of them read 20,000/s."""
STREAMS = (Stream, ClientConnection)
NOBLOCK, POLLIN, SEND_MORE = int(zmq.NOBLOCK), int(zmq.POLLIN), int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain integers: to combine zmq's enumerations takes longer than the calls that use them."""


class Links:
    """All links of one process. Not thread-safe; the reactor owns it."""

    def __init__(
        self,
        name: str,
        host: str,
        settings: LinkSettings,
        clients: Sequence[str] = (),
        client_limits: ClientLimits | None = None,
    ) -> None:
        self.settings = settings
        self.incarnation = secrets.token_hex(4)
        self.host = host
        self.clients = clients
        self.client_core = ""
        self.dropped = 0
        """Messages in packets that could not be sent because the peer is lost or does not read, and odd packets."""
        self.peers = Peers(host, self._send_message, self._connect)
        self.route = self.peers.routes.get
        """Return the route to a core or a client, None if it is not connected."""
        self._sockets = Sockets(f"{name}#{self.incarnation}", settings)
        self._streams = Streams(
            settings.max_frame_bytes, self._on_stream_connected, self._on_stream_lost, self._on_stream_packet
        )
        self.client_server = ClientServer(
            client_limits or ClientLimits(), lambda: self.on_client(), self._on_client_lost
        )
        """Clients without keys."""
        self._arrived: list[Arrival] = []
        """What has arrived over streams since the last `receive`."""
        self._internal: zmq.Socket[bytes] | None = None
        self._public: zmq.Socket[bytes] | None = None
        self._dealers: dict[str, zmq.Socket[bytes]] = {}
        self._identities: dict[tuple[zmq.Socket[bytes], int], bytes] = {}
        self._descriptors: dict[tuple[zmq.Socket[bytes], bytes], int] = {}
        self._suspects: dict[Route, int] = {}
        self._readable: dict[zmq.Socket[bytes], bool] = {}
        self._sent_on: dict[zmq.Socket[bytes], bool] = {}
        self.on_socket: Any = None
        """Function for each new socket and its monitor, so that the loop watches them."""
        self.on_stream: Callable[[], None] = lambda: None
        """Function to call when something has arrived over a stream."""
        self.on_client: Callable[[], None] = lambda: None
        """Function to call when a client has sent something."""

    def address(self, role: str, number: str) -> str:
        """Return the address of a core of this process."""
        return f"{role}/{number}#{self.incarnation}"

    def open(self, addresses: Sequence[str], client_core: str = "", follows_directory: bool = False) -> None:
        """Bind and connect. Messages of clients are for `client_core`. Raises `SettingsError`."""
        settings, peers = self.settings, self.peers
        self._sockets.check_encryption((*settings.bind, *settings.connect, *self.clients))
        self.client_core, peers.addresses, peers.follows_directory = client_core, tuple(addresses), follows_directory
        if any(address.startswith(("frontend/", "selector/", "profiler/")) for address in addresses):
            peers.endpoint = settings.advertise or next(iter(settings.bind), "")
        self._sockets.open()
        streams = [endpoint for endpoint in settings.bind if endpoint.startswith(SCHEME)]
        if endpoints := [endpoint for endpoint in settings.bind if endpoint not in streams]:
            self._internal = self._sockets.bind_router("internal", endpoints)
        for endpoint in streams:
            self._streams.bind(endpoint)
        if self.clients and settings.keys:
            self._public = self._sockets.bind_router("clients", self.clients)
        else:
            for endpoint in self.clients:
                self.client_server.bind(endpoint)
        for endpoint in settings.connect:
            self._connect(endpoint)

    async def start_streams(self) -> None:
        """Accept and make the connections over streams. Call it in the loop, before `on_stream` may be called."""
        await self._streams.start()
        await self.client_server.start()

    async def stop_streams(self) -> None:
        """Close the connections over streams."""
        await self.client_server.stop()
        await self._streams.stop()

    def close(self) -> None:
        self.client_server.close()
        self._streams.close()
        self._sockets.close()

    def sockets(self) -> dict[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """Return every socket with its monitor. Call `mark_readable` and `read_monitors` when one can be read."""
        return self._sockets.monitors

    def read_monitors(self) -> None:
        """Handle new and lost connections."""
        for sock, monitor in list(self._sockets.monitors.items()):
            while _socket_events(monitor) & POLLIN:
                self._on_monitor_event(sock, recv_monitor_message(monitor, NOBLOCK))

    def receive(self, inbox: list[Arrival]) -> bool:
        """Append what has arrived, at most `PACKETS_PER_TURN` packets per socket. Return True if there may be more.

        Only sockets marked as readable are looked at, because each look takes 1 to 3 us.
        """
        more = self.client_server.receive(inbox, self._unpack_client)
        if self._arrived:
            inbox.extend(self._arrived)
            self._arrived.clear()
        for sock in list(self._readable):
            more |= self._drain(sock, inbox)
        for suspect in list(self._suspects):
            self._probe(suspect)
        if self.peers.events:
            self._append_peer_events(inbox)
        return more

    def mark_readable(self, sock: zmq.Socket[bytes]) -> None:
        """Mark a socket whose descriptor has become readable."""
        self._readable[sock] = True

    def idle(self) -> bool:
        """Return whether no socket can be read. After a send, the descriptor does not show that one can."""
        for sock in self._sent_on:
            if _socket_events(sock) & POLLIN:
                self._readable[sock] = True
        self._sent_on.clear()
        return not self._readable

    def wakeup_ns(self) -> int | None:
        """Return when to call `receive` without a packet: while the loss of a peer is not certain, or clients pause."""
        return monotonic_ns() + PROBE_EVERY_NS if self._suspects else self.client_server.wakeup_ns

    def send(self, route: Route, envelopes: list[Envelope], buffers: list[Buffer]) -> None:
        """Send one packet. Never wait: drop and count it if the peer is lost or does not read."""
        if not self._send(route, envelopes, buffers):
            self.dropped += sum(len(envelope.messages) for envelope in envelopes)

    def _connect(self, endpoint: str) -> None:
        """Connect to a process, unless there is a connection or it is this process."""
        if endpoint.startswith(SCHEME):
            if endpoint not in self.settings.bind:
                self._streams.connect(endpoint)
        elif endpoint not in self._dealers and endpoint not in self.settings.bind:
            sock = self._dealers[endpoint] = self._sockets.connect_dealer(endpoint)
            if self.on_socket:
                self.on_socket(sock, self._sockets.monitors[sock])

    def _append_peer_events(self, inbox: list[Arrival]) -> None:
        """Append the peer events for every core, in order with the peers' messages."""
        for address, event in self.peers.events:
            inbox.extend((core, address, event, ()) for core in self.peers.addresses)
        self.peers.events.clear()

    def _drain(self, sock: zmq.Socket[bytes], inbox: list[Arrival]) -> bool:
        routed = self._is_router(sock)
        for _ in range(PACKETS_PER_TURN):
            if not _socket_events(sock) & POLLIN:
                self._readable.pop(sock, None)
                self._sent_on.pop(sock, None)
                return False
            identity = sock.recv(NOBLOCK) if routed else None
            frames = [sock.recv(NOBLOCK, copy=False)]  # `more` of a frame is cheap, that of a socket takes 1 to 3 us
            while frames[-1].more:
                frames.append(sock.recv(NOBLOCK, copy=False))
            if identity is not None and (sock, identity) not in self._descriptors:
                if (descriptor := _descriptor(frames[0])) is None:
                    self.dropped += 1
                    continue
                self._identify(sock, identity, descriptor)
            self._unpack(Route(sock, identity), [frame.buffer for frame in frames], inbox)
        return True

    def _unpack_client(
        self, connection: ClientConnection, frames: Sequence[Buffer], dropped: bool, inbox: list[Arrival]
    ) -> None:
        route = Route(connection, connection.identity)
        if not connection.known:
            connection.known = True
            self.peers.add_client(route, connection.identity)
        if dropped:
            for answer in refuse_message(frames, self.client_server.limits.message_bytes):
                self._send_message(route, answer)
        else:
            self._unpack(route, frames, inbox)

    def _on_client_lost(self, identity: bytes) -> None:
        self.peers.on_client_disconnected(identity)
        self.on_client()

    def _unpack(self, route: Route, frames: Sequence[Buffer], inbox: list[Arrival]) -> None:
        public, identity = route.socket is self._public or isinstance(route.socket, ClientConnection), route.identity
        client = client_address(identity) if public and identity is not None else ""
        try:
            arrivals = unpack(frames, HEADER_LIMIT if public else PEER_HEADER_LIMIT)
        except HorologeError as error:
            self._send_message(route, Rejected(int(error.status), error.reason))
            return
        if client and len(arrivals) > 1:  # each handshake is answered at once
            arrivals = [arrival for arrival in arrivals if type(arrival[2]) not in HANDSHAKES]
        for arrival in arrivals:
            message = arrival[2]
            if type(message) in HANDSHAKES:
                self.peers.on_handshake(route, message, public)
                self._append_peer_events(inbox)
            elif client:
                inbox.append((self.client_core, client, message, arrival[3]))
            else:
                inbox.append(arrival)

    def _send(self, route: Route, envelopes: list[Envelope], buffers: Sequence[Buffer]) -> bool:
        sock, frames = route.socket, pack(envelopes, buffers)
        if isinstance(sock, STREAMS):
            return sock.send(frames)
        self._sent_on[sock] = True
        try:
            if route.identity is not None:
                sock.send(route.identity, SEND_MORE)
            for frame in frames[:-1]:
                sock.send(frame, SEND_MORE, copy=len(frame) < COPY_BELOW)
            sock.send(frames[-1], NOBLOCK, copy=len(frames[-1]) < COPY_BELOW)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                self._suspects.pop(route, None)
                self.peers.on_router_disconnected(route)
            return False
        return True

    def _on_stream_connected(self, stream: Stream) -> None:
        if not stream.accepted:
            self.peers.on_dealer_connected(stream)

    def _on_stream_lost(self, stream: Stream) -> None:
        if stream.accepted:
            self.peers.on_router_disconnected(_stream_route(stream))
        else:
            self.peers.on_dealer_disconnected(stream)
        self.on_stream()

    def _on_stream_packet(self, stream: Stream, frames: list[memoryview]) -> None:
        self._unpack(_stream_route(stream), frames, self._arrived)
        self.on_stream()

    def _send_message(self, route: Route, message: AnyMessage) -> None:
        self._send(route, [Envelope("", "", [message])], ())

    def _is_router(self, sock: zmq.Socket[bytes]) -> bool:
        """Return whether the socket is a ROUTER, which has many peers."""
        return sock is self._internal or sock is self._public

    def _identify(self, sock: zmq.Socket[bytes], identity: bytes, descriptor: int) -> None:
        """Store the descriptor of a peer's connection: a disconnect event contains nothing else."""
        if (old := self._identities.get((sock, descriptor))) is not None:
            self._descriptors.pop((sock, old), None)
            self._suspect(sock, old)
        self._identities[sock, descriptor] = identity
        self._descriptors[sock, identity] = descriptor
        if sock is self._public:
            self.peers.add_client(Route(sock, identity), identity)

    def _on_monitor_event(self, sock: zmq.Socket[bytes], event: Any) -> None:
        if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            if not self._is_router(sock):
                self.peers.on_dealer_connected(sock)
        elif not self._is_router(sock):
            self.peers.on_dealer_disconnected(sock)
        elif (identity := self._identities.pop((sock, int(event["value"])), None)) is not None:
            self._descriptors.pop((sock, identity), None)
            self._suspect(sock, identity)

    def _suspect(self, sock: zmq.Socket[bytes], identity: bytes) -> None:
        self._suspects[Route(sock, identity)] = monotonic_ns() + PROBE_NS

    def _probe(self, suspect: Route) -> None:
        """Send an empty packet to a peer that may be lost; the socket refuses it if the peer is.

        A disconnect event contains a descriptor, which another connection may use already. The socket notices the loss
        a moment later, so probes are repeated for `PROBE_NS`.
        """
        if not self._send(suspect, [], ()) or monotonic_ns() > self._suspects[suspect]:
            self._suspects.pop(suspect, None)


def _stream_route(stream: Stream) -> Route:
    """Return the route over a stream. A peer that has connected counts as one behind a ROUTER."""
    return Route(stream, b"" if stream.accepted else None)


def _descriptor(frame: zmq.Frame) -> int | None:
    """Return the descriptor of the frame's connection. None for a peer older than ZMTP 3, or for random bytes."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return None


def _socket_events(sock: zmq.Socket[bytes]) -> int:
    return int(sock.getsockopt(zmq.EVENTS))
