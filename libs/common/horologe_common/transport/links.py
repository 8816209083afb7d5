"""Endpoints to sockets: packets in and out, and which sockets and connections to look at.

A process binds one ROUTER for its peers (and a frontend one more for clients) and opens a DEALER to each process
it needs (sockets.py). Who is behind them: peers.py.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from horologe_common.clock import monotonic_ns, ms
from horologe_common.status import HorologeError
from horologe_common.transport.peers import HANDSHAKES, Peers, Route, client_address
from horologe_common.transport.sockets import LinkSettings, Sockets
from horologe_common.wire import HEADER_LIMIT, PEER_HEADER_LIMIT, AnyMessage, Envelope, Rejected
from horologe_common.wire.frames import pack, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Arrival, Buffer

PROBE_NS, PROBE_EVERY_NS = ms(20), ms(2)
"""Sends to a dead peer were still accepted for up to 2.9 ms after its kill -9."""
COPY_BELOW = 64 << 10
PACKETS_A_TURN = 256
NOBLOCK, POLLIN, SEND_MORE = int(zmq.NOBLOCK), int(zmq.POLLIN), int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain integers: combining the enumerations costs more than the calls they are for."""


class Links:
    """All links of one process. Not thread-safe; the reactor owns it."""

    def __init__(self, name: str, host: str, settings: LinkSettings, clients: Sequence[str] = ()) -> None:
        self.settings = settings
        self.incarnation = secrets.token_hex(4)
        self.host = host
        self.clients = clients
        self.client_core = ""
        self.dropped = 0
        """Messages to addresses without a route: stale incarnations, clients that left, full peers."""
        self.peers = Peers(host, self._say, self._connect)
        self.route = self.peers.routes.get
        """The way to a core or a client, None if there is none (any more)."""
        self._sockets = Sockets(f"{name}#{self.incarnation}", settings)
        self._internal: zmq.Socket[bytes] | None = None
        self._public: zmq.Socket[bytes] | None = None
        self._dealers: dict[str, zmq.Socket[bytes]] = {}
        self._identities: dict[tuple[zmq.Socket[bytes], int], bytes] = {}
        self._descriptors: dict[tuple[zmq.Socket[bytes], bytes], int] = {}
        self._suspects: dict[Route, int] = {}
        self._readable: dict[zmq.Socket[bytes], bool] = {}
        self._unsure: dict[zmq.Socket[bytes], bool] = {}
        self.on_socket: Any = None
        """Called with each new socket and its monitor, so that the loop watches them."""

    def address(self, role: str, number: str) -> str:
        """The address of a core of this process."""
        return f"{role}/{number}#{self.incarnation}"

    def open(self, addresses: Sequence[str], client_core: str = "", follows_directory: bool = False) -> None:
        """Bind and connect. `client_core`: who gets clients' messages. Raises `SettingsError`."""
        settings, peers = self.settings, self.peers
        self._sockets.refuse_open((*settings.bind, *settings.connect, *self.clients))
        self.client_core, peers.addresses, peers.follows_directory = client_core, tuple(addresses), follows_directory
        if any(address.startswith(("frontend/", "selector/", "profiler/")) for address in addresses):
            peers.endpoint = settings.advertise or next(iter(settings.bind), "")
        self._sockets.open()
        if settings.bind:
            self._internal = self._sockets.bound("internal", settings.bind)
        if self.clients:
            self._public = self._sockets.bound("clients", self.clients)
        for endpoint in settings.connect:
            self._connect(endpoint)

    def close(self) -> None:
        self._sockets.close()

    def sockets(self) -> dict[zmq.Socket[bytes], zmq.Socket[bytes]]:
        """Every socket to watch, with its monitor: `readable` and `read_monitors` when one of them can be read."""
        return self._sockets.monitors

    def read_monitors(self) -> None:
        for sock, monitor in list(self._sockets.monitors.items()):
            while _events(monitor) & POLLIN:
                self._monitored(sock, recv_monitor_message(monitor, NOBLOCK))

    def receive(self, inbox: list[Arrival]) -> bool:
        """Append what has arrived, at most `PACKETS_A_TURN` packets a socket; True if more may wait.

        Only sockets known to be `readable` are looked at: asking one costs 1 to 3 us.
        """
        more = False
        for sock in list(self._readable):
            more |= self._drain(sock, inbox)
        for suspect in list(self._suspects):
            self._probe(suspect)
        if self.peers.news:
            self._tell(inbox)
        return more

    def readable(self, sock: zmq.Socket[bytes]) -> None:
        """The descriptor of `sock` says that something may have arrived."""
        self._readable[sock] = True

    def idle(self) -> bool:
        """False if a socket has something to read: after a send its descriptor may not say so."""
        for sock in self._unsure:
            if _events(sock) & POLLIN:
                self._readable[sock] = True
        self._unsure.clear()
        return not self._readable

    def wakeup_ns(self) -> int | None:
        """When `receive` is wanted though nothing arrives: while it is not sure that a peer has gone."""
        return monotonic_ns() + PROBE_EVERY_NS if self._suspects else None

    def send(self, route: Route, letters: list[Envelope], buffers: list[Buffer]) -> None:
        """One packet. A peer that is gone or does not read costs the packet, never a wait."""
        if not self._send(route, letters, buffers):
            self.dropped += sum(len(letter.messages) for letter in letters)

    def _connect(self, endpoint: str) -> None:
        """A link to a process, unless there is one already or it is this process."""
        if endpoint not in self._dealers and endpoint not in self.settings.bind:
            sock = self._dealers[endpoint] = self._sockets.connected(endpoint)
            if self.on_socket:
                self.on_socket(sock, self._sockets.monitors[sock])

    def _tell(self, inbox: list[Arrival]) -> None:
        """Tell every core who has come or gone, in order with what they said."""
        for address, news in self.peers.news:
            inbox.extend((core, address, news, ()) for core in self.peers.addresses)
        self.peers.news.clear()

    def _drain(self, sock: zmq.Socket[bytes], inbox: list[Arrival]) -> bool:
        routed = self._routes_peers(sock)
        for _ in range(PACKETS_A_TURN):
            if not _events(sock) & POLLIN:
                self._readable.pop(sock, None)
                self._unsure.pop(sock, None)
                return False
            identity = sock.recv(NOBLOCK) if routed else None
            frames = [sock.recv(NOBLOCK, copy=False)]  # asking a frame for `more` is cheap, the socket 1 to 3 us
            while frames[-1].more:
                frames.append(sock.recv(NOBLOCK, copy=False))
            if identity is not None and (sock, identity) not in self._descriptors:
                if (descriptor := _descriptor(frames[0])) is None:
                    self.dropped += 1
                    continue
                self._identify(sock, identity, descriptor)
            self._packet(sock, identity, frames, inbox)
        return True

    def _packet(
        self, sock: zmq.Socket[bytes], identity: bytes | None, frames: list[zmq.Frame], inbox: list[Arrival]
    ) -> None:
        public = sock is self._public
        client = client_address(identity) if public and identity is not None else ""
        try:
            arrivals = unpack([frame.buffer for frame in frames], HEADER_LIMIT if public else PEER_HEADER_LIMIT)
        except HorologeError as error:
            self._say(Route(sock, identity), Rejected(int(error.status), error.reason))
            return
        for arrival in arrivals:
            message = arrival[2]
            if type(message) in HANDSHAKES:
                self.peers.heard(Route(sock, identity), message, public)
                self._tell(inbox)
            elif client:
                inbox.append((self.client_core, client, message, arrival[3]))
            else:
                inbox.append(arrival)

    def _send(self, route: Route, letters: list[Envelope], buffers: Sequence[Buffer]) -> bool:
        sock, frames = route.socket, pack(letters, buffers)
        self._unsure[sock] = True
        try:
            if route.identity is not None:
                sock.send(route.identity, SEND_MORE)
            for frame in frames[:-1]:
                sock.send(frame, SEND_MORE, copy=len(frame) < COPY_BELOW)
            sock.send(frames[-1], NOBLOCK, copy=len(frames[-1]) < COPY_BELOW)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH:
                self._suspects.pop(route, None)
                self.peers.left(route)
            return False
        return True

    def _say(self, route: Route, message: AnyMessage) -> None:
        self._send(route, [Envelope("", "", [message])], ())

    # which connection is whose

    def _routes_peers(self, sock: zmq.Socket[bytes]) -> bool:
        """Whether it is a ROUTER, which many connect to."""
        return sock is self._internal or sock is self._public

    def _identify(self, sock: zmq.Socket[bytes], identity: bytes, descriptor: int) -> None:
        """Remember the descriptor of a peer: that is all a disconnect event names."""
        if (old := self._identities.get((sock, descriptor))) is not None:
            self._descriptors.pop((sock, old), None)
            self._suspect(sock, old)
        self._identities[sock, descriptor] = identity
        self._descriptors[sock, identity] = descriptor
        if sock is self._public:
            self.peers.client(Route(sock, identity), identity)

    def _monitored(self, sock: zmq.Socket[bytes], event: Any) -> None:
        if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            if not self._routes_peers(sock):
                self.peers.connected(sock)
        elif not self._routes_peers(sock):
            self.peers.disconnected(sock)
        elif (identity := self._identities.pop((sock, int(event["value"])), None)) is not None:
            self._descriptors.pop((sock, identity), None)
            self._suspect(sock, identity)

    def _suspect(self, sock: zmq.Socket[bytes], identity: bytes) -> None:
        self._suspects[Route(sock, identity)] = monotonic_ns() + PROBE_NS

    def _probe(self, suspect: Route) -> None:
        """A disconnect names a descriptor that may be another's by now: only the socket knows who is still there.

        It learns of it a moment later, so one probe that goes through proves nothing.
        """
        if not self._send(suspect, [], ()) or monotonic_ns() > self._suspects[suspect]:
            self._suspects.pop(suspect, None)


def _descriptor(frame: zmq.Frame) -> int | None:
    """Of its connection; None from a peer of before ZMTP 3, which noise passes for: none could tell when that goes."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return None


def _events(sock: zmq.Socket[bytes]) -> int:
    return int(sock.getsockopt(zmq.EVENTS))
