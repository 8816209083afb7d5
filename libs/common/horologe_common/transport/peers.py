"""Peers: handshakes, routes to cores, and the events PeerConnected and PeerDisconnected.

The connecting side sends Hello on every connection and reconnection. Hello and Welcome contain the addresses of the
cores at each end, which have a route from then on. Messages in flight on a broken connection are lost. Therefore a
second Hello of a process first disconnects its cores that still have a route: no core then waits for a lost message.

A worker gets the PeerConnected of its controller once it is linked to the holders in the first Directory. It then does
not register before it can receive inputs and send outputs.

A name belongs to the process that has connected with it first, until its link is lost. Another process with that name
is refused, and tries again with every heartbeat.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from horologe_common.core.instruments import Stats
from horologe_common.core.protocol import PeerConnected, PeerDisconnected, instance, role
from horologe_common.service.log import logger
from horologe_common.status import Status
from horologe_common.transport.awaited_peers import ROLES, AwaitedPeers
from horologe_common.wire import MAX_FRAME_BYTES, PROTOCOL, Directory, Hello, Rejected, Welcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import zmq

    from horologe_common.core.protocol import Buffer
    from horologe_common.transport.streams import Stream
    from horologe_common.wire import AnyMessage

HANDSHAKES = frozenset({Hello, Welcome, Directory, Rejected})
LOSS_REASONS = ("closed", "silent", "failed", "refused", "replaced")
PACKET_ERRORS = (Status.INVALID_INPUT, Status.TOO_LARGE, Status.FORBIDDEN)
"""Statuses of a Rejected for one packet. The link is not affected: without a Welcome, it is lost soon."""
log = logger("links")


class PacketConnection(Protocol):
    """A connection without a ZeroMQ socket: a stream of a peer, or the connection of a client."""

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Send a packet. Return False, without sending it, if the peer is lost or does not read."""


Connection: TypeAlias = "zmq.Socket[bytes] | PacketConnection"


class Route(NamedTuple):
    """A connection: a socket, and on a ROUTER the peer's identity; or a stream."""

    socket: Connection
    identity: bytes | None
    """None on a DEALER, which has one peer, and on a stream to a peer. Empty on a stream that a peer has opened."""


class Routes(dict[str, Route]):
    """Routes to the connected cores and clients. An awaited peer has one as well, which is not an item."""

    def __init__(self, awaited: AwaitedPeers) -> None:
        self._awaited = awaited

    def __missing__(self, address: str) -> Route | None:
        peer = self._awaited.find(address)
        return None if peer is None else Route(peer, None)


def client_address(identity: bytes, manages: bool = True, key: str = "") -> str:
    """Return the address of a client: that of its connection, because clients send none, and the name of its key.

    Its role is `user` if its key does not permit management.
    """
    address = f"{'client' if manages else 'user'}/{identity.hex()}"
    return f"{address}:{key}" if key else address


def stream_route(stream: Stream) -> Route:
    """Return the route over a stream. A peer that has connected counts as one behind a ROUTER."""
    return Route(stream, b"" if stream.accepted else None)


class Peers:
    """The peers of one process. `host` is the boot id of its machine.

    `send` sends one message. `on_made` gets a link whose Hello was accepted, `on_refused` one to lose, and the reason.
    `on_directory` gets the endpoints of all holders. `on_awaited`: see `AwaitedPeers`. `send_packet` sends a packet
    that was kept for a peer.
    """

    def __init__(
        self,
        host: str,
        send: Callable[[Route, AnyMessage], None],
        on_made: Callable[[Route], None],
        on_refused: Callable[[Route, str], None],
        on_directory: Callable[[Sequence[str]], None],
        on_awaited: Callable[[str], None],
        send_packet: Callable[[Route, Sequence[Buffer]], object],
    ) -> None:
        self.host = host
        self.addresses: tuple[str, ...] = ()
        """Addresses of this process's cores."""
        self.max_frame_bytes = MAX_FRAME_BYTES
        """Longest frame that this process accepts."""
        self.endpoint = ""
        """Endpoint for workers, if this process holds inputs."""
        self.follows_directory = False
        self.is_linked: Callable[[], bool] = lambda: True
        """Return whether there is a link to every holder in the last Directory."""
        self._awaiting: dict[str, PeerConnected] = {}
        """Controllers whose PeerConnected waits for these links."""
        self.awaited = AwaitedPeers(on_awaited)
        self.routes = Routes(self.awaited)
        self.events: list[tuple[str, PeerConnected | PeerDisconnected]] = []
        """(peer address, event) not yet passed to the cores."""
        self.welcomed: dict[Connection, tuple[str, ...]] = {}
        """Connections that this process has made -> cores at the other end."""
        self.stats = Stats()
        self.stats.create_counters("horologe_links_refused_total")
        self._send = send
        self._on_made = on_made
        self._on_refused = on_refused
        self._on_directory = on_directory
        self._send_packet = send_packet
        self._hellos: dict[Route, Hello] = {}
        self._last_refusal = ""

    def on_dealer_connected(self, sock: Connection) -> None:
        """Send Hello on a DEALER that has connected or reconnected."""
        capabilities = ("worker",) if self.follows_directory else ()
        hello = Hello(PROTOCOL, self.addresses, self.host, self.endpoint, capabilities, self.max_frame_bytes)
        self._send(Route(sock, None), hello)

    def on_dealer_disconnected(self, sock: Connection, reason: str = "closed") -> None:
        """Disconnect the cores behind a DEALER."""
        if (addresses := self.welcomed.pop(sock, None)) is not None:
            self._record_loss(addresses, reason)
            for address in addresses:
                self.disconnect(address)

    def on_router_disconnected(self, route: Route, reason: str = "closed") -> None:
        """Disconnect the cores or the client behind a connection of a ROUTER."""
        hello = self._hellos.pop(route, None)
        if hello:
            self._record_loss(hello.addresses, reason)
        for address in [address for address, other in self.routes.items() if other == route]:
            self.disconnect(address)
        if hello and hello.endpoint:
            self._send_directory()

    def on_handshake_failed(self, event: str) -> None:
        """Record that ZeroMQ's own handshake has failed: other keys, or a peer that is not of ZeroMQ."""
        self._log_refusal("handshake failed", event)

    def on_handshake(self, route: Route, message: Any, public: bool) -> None:
        """Handle one of `HANDSHAKES`. `public`: it is from a client."""
        match message:
            case Hello() if message.protocol != PROTOCOL:
                self._reject(route, Status.PROTOCOL, f"protocol: got version {message.protocol}, wanted {PROTOCOL}")
            case Hello() if public:
                self._send(route, Welcome(PROTOCOL, ()))
            case Hello() if route.identity is not None:
                self._on_hello(route, message)
            case Welcome() if route.identity is None:
                self._on_welcome(route, message)
            case Directory() if route.identity is None and self.follows_directory:
                self._on_directory(message.endpoints)
                self._introduce_linked()
            case Rejected() if not public:
                self._on_rejected(route, message)

    def count_links(self) -> int:
        """Return the number of links whose handshake is complete."""
        return len(self.welcomed) + len(self._hellos)

    def _on_hello(self, route: Route, message: Hello) -> None:
        if conflict := self._find_name_conflict(message.addresses):
            self._reject(route, Status.REFUSED, conflict)
            return
        for address in message.addresses:  # a reconnection before the loss of the old connection was detected
            if old_route := self.routes.get(address):
                self.on_router_disconnected(old_route, "replaced")
        self._hellos[route] = message
        self._connect_cores(message, route)
        self._send(route, Welcome(PROTOCOL, self.addresses, self.host, (), self.max_frame_bytes))
        self._send_kept(message.addresses, route)
        self._send_directory()

    def _on_welcome(self, route: Route, message: Welcome) -> None:
        sock = route.socket
        if sock in self.welcomed and self.welcomed[sock] != message.addresses:
            self.on_dealer_disconnected(sock, "replaced")
        if conflict := self._find_name_conflict(message.addresses):
            self._reject(route, Status.REFUSED, conflict)
            self._on_refused(route, "refused")
        elif sock not in self.welcomed:
            self.welcomed[sock] = message.addresses
            self._connect_cores(message, route)
            self._send_kept(message.addresses, route)
            self._introduce_linked()

    def _on_rejected(self, route: Route, message: Rejected) -> None:
        if message.status in PACKET_ERRORS:
            self._log_refusal("packet rejected by the peer", message.reason)
        elif message.status == Status.LOST:
            self._on_refused(route, "silent")
        else:
            self._log_refusal("refused by the peer", message.reason)
            self._on_refused(route, "refused")

    def _reject(self, route: Route, status: Status, reason: str) -> None:
        """Refuse a handshake."""
        self._log_refusal("peer refused", reason)
        self._send(route, Rejected(int(status), reason))

    def _log_refusal(self, event: str, reason: str) -> None:
        """Count a refusal. Log it unless the last one was the same, because a refused process tries again and again."""
        self.stats.count("horologe_links_refused_total")
        if event + reason != self._last_refusal:
            self._last_refusal = event + reason
            log.error(event, reason=reason)

    def _record_loss(self, addresses: Sequence[str], reason: str) -> None:
        self.stats.count("horologe_links_lost_total", _peer_role(addresses), reason)
        log.warning("link lost", peers=list(addresses), reason=reason)

    def _find_name_conflict(self, addresses: Sequence[str]) -> str:
        """Return why a process with these cores is refused; empty unless another one uses one of their names."""
        names = {instance(address): address for address in addresses}
        for other in (*self.addresses, *self.routes):
            name = instance(other)
            if names.get(name, other) != other:
                return f"name: got {name!r} of {names[name]}, which {other} uses; wanted a name of its own"
        return ""

    def _send_directory(self) -> None:
        """Send the endpoints of all holders to every peer with a worker, if this process has the controller.

        All holders are linked to the controller. Workers follow the last Directory: one from a frontend would lack the
        other holders, and a worker would not connect to them again.
        """
        if "controller" not in map(role, self.addresses):
            return
        endpoints = tuple(dict.fromkeys(hello.endpoint for hello in self._hellos.values() if hello.endpoint))
        for route, hello in list(self._hellos.items()):
            if "worker" in hello.capabilities:
                self._send(route, Directory(endpoints))

    def _connect_cores(self, message: Hello | Welcome, route: Route) -> None:
        self._on_made(route)
        addresses, peer = message.addresses, _peer_role(message.addresses)
        self.stats.count("horologe_links_made_total", peer)
        self.stats.create_counters("horologe_links_lost_total", (peer,), LOSS_REASONS)
        log.info("link made", peers=list(addresses))
        for address in addresses:
            is_new = address not in self.routes
            self.routes[address] = route
            event = PeerConnected(address, message.host, message.max_frame_bytes)
            if is_new and self.follows_directory and role(address) == "controller":
                self._awaiting[address] = event
            elif is_new:
                self.events.append((address, event))

    def _send_kept(self, addresses: Sequence[str], route: Route) -> None:
        """Send what was kept for cores that have connected."""
        for address in addresses:
            for packet in self.awaited.end(address):
                self._send_packet(route, packet)

    def _introduce_linked(self) -> None:
        if self._awaiting and self.is_linked():
            self.introduce_controllers()

    def introduce_controllers(self) -> None:
        """Report the controllers that have waited for links to holders, with the next packet."""
        self.events.extend(self._awaiting.items())
        self._awaiting.clear()

    def disconnect(self, address: str) -> None:
        """Remove the route to a core or a client, and report its loss."""
        if self.routes.pop(address, None):
            if role(address) in ROLES:
                self.awaited.add_former(address)
            if not self._awaiting.pop(address, None):
                self.events.append((address, PeerDisconnected(address)))


def _peer_role(addresses: Sequence[str]) -> str:
    """Return the role of the first core: several share the process `edge`."""
    return "edge" if len(addresses) > 1 else role(next(iter(addresses), ""))
