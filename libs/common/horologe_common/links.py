"""Endpoints to sockets: handshakes, routes to cores, CURVE, and who has come or gone.

A process binds one ROUTER for its peers (and a frontend one more for clients) and opens a DEALER to each process
it needs. Whoever connects says Hello on every (re)connection; Hello and Welcome name the cores at either end, and
from then on messages for them have a route.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from horologe_common.clock import monotonic_ns, ms, s
from horologe_common.core import Buffer, Gone, Joined, instance
from horologe_common.frames import pack, unpack
from horologe_common.keys import Authenticator, is_loopback, service_keys
from horologe_common.settings import SettingsError
from horologe_common.status import HorologeError, Status
from horologe_common.wire import (
    HEADER_LIMIT,
    PEER_HEADER_LIMIT,
    PROTOCOL,
    Directory,
    Hello,
    Letter,
    Rejected,
    Welcome,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

HIGH_WATER = 10_000
HEARTBEAT_MS = 1_000
"""ZMTP heartbeats find peers that are stopped or cut off; a peer that dies is noticed at once by its socket."""
PROBE_NS, PROBE_EVERY_NS = ms(20), ms(2)
"""Sends to a dead peer were still accepted for up to 2.9 ms after its kill -9."""
COPY_BELOW = 64 << 10
PACKETS_A_TURN = 256
NOBLOCK, POLLIN, SEND_MORE = int(zmq.NOBLOCK), int(zmq.POLLIN), int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain integers: combining the enumerations costs more than the calls they are for."""
HANDSHAKES = frozenset({Hello, Welcome, Directory, Rejected})

Arrival = tuple[str, str, Any, "Sequence[Buffer]"]
"""(to, sender, message, buffers), as frames.unpack gives them."""


class LinkSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How this process reaches the others."""

    bind: tuple[str, ...] = ()
    """Endpoints for peers to connect to."""
    connect: tuple[str, ...] = ()
    """Endpoints of the processes this one needs."""
    advertise: str = ""
    """Where workers reach this process if it holds tensors (frontend, selector); default: the first of `bind`."""
    keys: str = ""
    """Folder made by `horologe keys`; empty: no encryption."""
    allow_open: bool = False
    """Permit TCP beyond loopback without keys."""
    drain_ns: int = s(10)
    """At a stop: how long to finish what is in flight."""
    max_frame_bytes: int = 256 << 20
    """A longer frame closes the connection it came on."""


class Route(NamedTuple):
    socket: zmq.Socket[bytes]
    identity: bytes | None
    """None on a DEALER: it has one peer."""


class Links:
    """All sockets of one process. Not thread-safe; the reactor owns it."""

    def __init__(self, name: str, host: str, settings: LinkSettings, clients: Sequence[str] = ()) -> None:
        self.settings = settings
        self.incarnation = secrets.token_hex(4)
        self.process = f"{name}#{self.incarnation}"
        self.host = host
        self.clients = clients
        self.addresses: tuple[str, ...] = ()
        self.client_core = ""
        self.follows_directory = False
        self.dropped = 0
        """Messages to addresses without a route: stale incarnations, clients that left, full peers."""
        self._routes: dict[str, Route] = {}
        self._events: list[tuple[str, Joined | Gone]] = []
        self._dealers: dict[str, zmq.Socket[bytes]] = {}
        self._welcomed: dict[zmq.Socket[bytes], tuple[str, ...]] = {}
        self._monitors: dict[zmq.Socket[bytes], zmq.Socket[bytes]] = {}
        self._identities: dict[tuple[zmq.Socket[bytes], int], bytes] = {}
        self._descriptors: dict[tuple[zmq.Socket[bytes], bytes], int] = {}
        self._suspects: dict[Route, int] = {}
        self._readable: dict[zmq.Socket[bytes], bool] = {}
        self._unsure: dict[zmq.Socket[bytes], bool] = {}
        self._hellos: dict[bytes, Hello] = {}
        self._internal: zmq.Socket[bytes] | None = None
        self._public: zmq.Socket[bytes] | None = None
        self.on_socket: Any = None
        """Called with each new socket and its monitor, so that the loop watches them."""

    def address(self, role: str, number: str) -> str:
        """The address of a core of this process."""
        return f"{role}/{number}#{self.incarnation}"

    def open(self, addresses: Sequence[str], client_core: str = "", follows_directory: bool = False) -> None:
        """Bind and connect. `client_core`: who gets clients' messages. Raises `SettingsError`."""
        self.addresses, self.client_core, self.follows_directory = tuple(addresses), client_core, follows_directory
        for endpoint in (*self.settings.bind, *self.settings.connect, *self.clients):
            if not (is_loopback(endpoint) or self.settings.keys or self.settings.allow_open):
                raise SettingsError(
                    f"links: {endpoint} is not loopback and no keys are set; run `horologe keys DIR` and set "
                    "links.keys, or set links.allow_open = true to run without authentication"
                )
        self._context = zmq.Context()
        self._authenticator = Authenticator(self._context, Path(self.settings.keys)) if self.settings.keys else None
        if self.settings.bind:
            self._internal = self._bound("internal", self.settings.bind)
            self._internal.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if self.clients:
            self._public = self._bound("clients", self.clients)
        for endpoint in self.settings.connect:
            self._connect(endpoint)

    def close(self) -> None:
        for sock in [*self._monitors.values(), *self._monitors]:
            sock.close(linger=200)
        if self._authenticator:
            self._authenticator.stop()
        self._context.term()

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Every socket to watch."""
        return list(self._monitors)

    def monitors(self) -> list[zmq.Socket[bytes]]:
        """What tells of connections made and lost; `read_monitors` when one can be read."""
        return list(self._monitors.values())

    def read_monitors(self) -> None:
        for sock, monitor in list(self._monitors.items()):
            while _events(monitor) & POLLIN:
                self._monitored(sock, recv_monitor_message(monitor, NOBLOCK))

    def _bound(self, domain: str, endpoints: Sequence[str]) -> zmq.Socket[bytes]:
        sock = self._socket(zmq.ROUTER)
        sock.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if self._authenticator:
            sock.curve_publickey, sock.curve_secretkey = service_keys(Path(self.settings.keys))
            sock.curve_server = True
            sock.zap_domain = domain.encode()
        for endpoint in endpoints:
            sock.bind(endpoint)
        return sock

    def _connect(self, endpoint: str) -> None:
        sock = self._socket(zmq.DEALER)
        sock.setsockopt(zmq.IDENTITY, self.process.encode())
        sock.setsockopt(zmq.IMMEDIATE, 1)
        sock.setsockopt(zmq.RECONNECT_IVL, 20)
        sock.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        if self._authenticator:
            public, sock.curve_secretkey = service_keys(Path(self.settings.keys))
            sock.curve_publickey = sock.curve_serverkey = public  # one pair for all services
        sock.connect(endpoint)
        self._dealers[endpoint] = sock

    def _socket(self, kind: int) -> zmq.Socket[bytes]:
        sock = self._context.socket(kind)
        sock.setsockopt(zmq.SNDHWM, HIGH_WATER)
        sock.setsockopt(zmq.RCVHWM, HIGH_WATER)
        sock.setsockopt(zmq.LINGER, 200)
        sock.setsockopt(zmq.MAXMSGSIZE, self.settings.max_frame_bytes)
        sock.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
        sock.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3 * HEARTBEAT_MS)
        self._monitors[sock] = sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        if self.on_socket:
            self.on_socket(sock, self._monitors[sock])
        return sock

    def receive(self, inbox: list[Arrival]) -> bool:
        """Append what has arrived, at most `PACKETS_A_TURN` packets a socket; True if more may wait.

        Only sockets known to be `readable` are looked at: asking one costs 3 us.
        """
        more = False
        for sock in list(self._readable):
            more |= self._drain(sock, inbox)
        for suspect in list(self._suspects):
            self._probe(suspect)
        self._tell(inbox)
        return more

    def wakeup_ns(self) -> int | None:
        """When `receive` is wanted though nothing arrives: while it is not sure that a peer has gone."""
        return monotonic_ns() + PROBE_EVERY_NS if self._suspects else None

    def _tell(self, inbox: list[Arrival]) -> None:
        """Tell every core who has come or gone, in order with what they said."""
        for address, news in self._events:
            inbox.extend((core, address, news, ()) for core in self.addresses)
        self._events.clear()

    def _probe(self, suspect: Route) -> None:
        """A disconnect names a descriptor that may be another's by now: only the socket knows who is still there.

        It learns of it a moment later, so one probe that goes through proves nothing.
        """
        if not self._send(suspect, [], ()) or monotonic_ns() > self._suspects[suspect]:
            self._suspects.pop(suspect, None)

    def _drain(self, sock: zmq.Socket[bytes], inbox: list[Arrival]) -> bool:
        routed = self._routes_peers(sock)
        for _ in range(PACKETS_A_TURN):
            if not _events(sock) & POLLIN:
                self._readable.pop(sock, None)
                self._unsure.pop(sock, None)
                return False
            identity = sock.recv(NOBLOCK) if routed else None
            frames = [sock.recv(NOBLOCK, copy=False)]  # asking a frame for `more` is cheap, the socket 3 us
            while frames[-1].more:
                frames.append(sock.recv(NOBLOCK, copy=False))
            if identity is not None and (sock, identity) not in self._descriptors:
                self._identify(sock, identity, int(frames[0].get(zmq.SRCFD)))
            self._packet(sock, identity, frames, inbox)
        return True

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
            self._routes[client_address(identity)] = Route(sock, identity)

    def _suspect(self, sock: zmq.Socket[bytes], identity: bytes) -> None:
        self._suspects[Route(sock, identity)] = monotonic_ns() + PROBE_NS

    def _packet(
        self, sock: zmq.Socket[bytes], identity: bytes | None, frames: list[zmq.Frame], inbox: list[Arrival]
    ) -> None:
        public = sock is self._public
        client = client_address(identity) if public and identity is not None else ""
        try:
            arrivals = unpack([frame.buffer for frame in frames], HEADER_LIMIT if public else PEER_HEADER_LIMIT)
        except HorologeError as error:
            self._reply(sock, identity, Rejected(int(error.status), error.reason))
            return
        for arrival in arrivals:
            message = arrival[2]
            if type(message) in HANDSHAKES:
                self._handshake(sock, identity, message)
                self._tell(inbox)
            elif client:
                inbox.append((self.client_core, client, message, arrival[3]))
            else:
                inbox.append(arrival)

    def _handshake(self, sock: zmq.Socket[bytes], identity: bytes | None, message: Any) -> None:
        match message:
            case Hello() if message.protocol != PROTOCOL:
                reason = f"protocol: got version {message.protocol}, wanted {PROTOCOL}"
                self._reply(sock, identity, Rejected(int(Status.PROTOCOL), reason))
            case Hello() if sock is self._public:
                self._reply(sock, identity, Welcome(PROTOCOL, ()))
            case Hello() if identity is not None:
                self._joined(message.addresses, message.host, Route(sock, identity))
                self._hellos[identity] = message
                self._reply(sock, identity, Welcome(PROTOCOL, self.addresses, self.host))
                self._announce()
            case Welcome() if identity is None:
                for address in self._welcomed.get(sock, ()):
                    if address not in message.addresses:
                        self._gone(address)
                self._welcomed[sock] = message.addresses
                self._joined(message.addresses, message.host, Route(sock, None))
            case Directory() if identity is None and self.follows_directory:
                for endpoint in message.endpoints:
                    if endpoint not in self._dealers and endpoint not in self.settings.bind:
                        self._connect(endpoint)

    def _announce(self) -> None:
        """Tell every peer that hosts a worker where the holders are."""
        endpoints = tuple(dict.fromkeys(hello.endpoint for hello in self._hellos.values() if hello.endpoint))
        for identity, hello in self._hellos.items():
            if "worker" in hello.capabilities and self._internal:
                self._reply(self._internal, identity, Directory(endpoints))

    def _joined(self, addresses: Sequence[str], host: str, route: Route) -> None:
        for address in addresses:
            for old in [known for known in self._routes if instance(known) == instance(address) and known != address]:
                self._gone(old)
            known = self._routes.get(address)
            self._routes[address] = route
            if known is None:
                self._events.append((address, Joined(address, host)))

    def _gone(self, address: str) -> None:
        if self._routes.pop(address, None):
            self._events.append((address, Gone(address)))

    def _monitored(self, sock: zmq.Socket[bytes], event: Any) -> None:
        if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            if not self._routes_peers(sock):
                self._say_hello(sock)
        elif not self._routes_peers(sock):
            for address in self._welcomed.pop(sock, ()):
                self._gone(address)
        elif (identity := self._identities.pop((sock, int(event["value"])), None)) is not None:
            self._descriptors.pop((sock, identity), None)
            self._suspect(sock, identity)

    def _left(self, sock: zmq.Socket[bytes], identity: bytes) -> None:
        """A peer of a ROUTER has disconnected."""
        self._suspects.pop(Route(sock, identity), None)
        if sock is self._public:
            address = client_address(identity)
            self._routes.pop(address, None)
            self._events.append((address, Gone(address)))
            return
        self._hellos.pop(identity, None)
        for address in [known for known, route in self._routes.items() if route == Route(sock, identity)]:
            self._gone(address)

    def _say_hello(self, sock: zmq.Socket[bytes]) -> None:
        holds = any(address.startswith(("frontend/", "selector/")) for address in self.addresses)
        endpoint = (self.settings.advertise or next(iter(self.settings.bind), "")) if holds else ""
        capabilities = ("worker",) if self.follows_directory else ()
        self._reply(sock, None, Hello(PROTOCOL, self.addresses, self.host, endpoint, capabilities))

    def _reply(self, sock: zmq.Socket[bytes], identity: bytes | None, message: Any) -> None:
        self._send(Route(sock, identity), [Letter("", "", [message])], ())

    def route(self, address: str) -> Route | None:
        """The way to a core, None if there is none (any more)."""
        return self._routes.get(address)

    def send(self, route: Route, letters: list[Letter], buffers: list[Buffer]) -> None:
        """One packet. A peer that is gone or does not read costs the packet, never a wait."""
        if not self._send(route, letters, buffers):
            self.dropped += sum(len(letter.messages) for letter in letters)

    def _send(self, route: Route, letters: list[Letter], buffers: Sequence[Buffer]) -> bool:
        sock, frames = route.socket, pack(letters, buffers)
        self._unsure[sock] = True
        try:
            if route.identity is not None:
                sock.send(route.identity, SEND_MORE)
            for frame in frames[:-1]:
                sock.send(frame, SEND_MORE, copy=len(frame) < COPY_BELOW)
            sock.send(frames[-1], NOBLOCK, copy=len(frames[-1]) < COPY_BELOW)
        except zmq.ZMQError as error:
            if error.errno == zmq.EHOSTUNREACH and route.identity is not None:
                self._left(route.socket, route.identity)
            return False
        return True

    def idle(self) -> bool:
        """False if a socket has something to read: after a send its descriptor may not say so."""
        for sock in self._unsure:
            if _events(sock) & POLLIN:
                self._readable[sock] = True
        self._unsure.clear()
        return not self._readable

    def readable(self, sock: zmq.Socket[bytes]) -> None:
        """The descriptor of `sock` says that something may have arrived."""
        self._readable[sock] = True


def client_address(identity: bytes) -> str:
    """Clients do not name themselves: their address is that of their connection."""
    return f"client/{identity.hex()}"


def _events(sock: zmq.Socket[bytes]) -> int:
    return int(sock.getsockopt(zmq.EVENTS))
