"""Peers: handshakes, routes to cores, and the events PeerConnected and PeerDisconnected.

The connecting side sends Hello on every connection and reconnection. Hello and Welcome contain the addresses of the
cores at each end, which have a route from then on. Messages in flight on a broken connection are lost. Therefore a
second Hello first disconnects the cores that still have a route: no core then waits for a lost message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from horologe_common.core.protocol import PeerConnected, PeerDisconnected, instance
from horologe_common.status import Status
from horologe_common.wire import PROTOCOL, Directory, Hello, Rejected, Welcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import zmq

    from horologe_common.transport.client_connection import ClientConnection
    from horologe_common.transport.streams import Stream
    from horologe_common.wire import AnyMessage

HANDSHAKES = frozenset({Hello, Welcome, Directory, Rejected})


class Route(NamedTuple):
    """A connection: a socket, and on a ROUTER the peer's identity; or a stream; or the connection of a client."""

    socket: zmq.Socket[bytes] | Stream | ClientConnection
    identity: bytes | None
    """None on a DEALER, which has one peer, and on a stream to a peer. Empty on a stream that a peer has opened."""


def client_address(identity: bytes) -> str:
    """Return the address of a client: that of its connection, because clients send none."""
    return f"client/{identity.hex()}"


class Peers:
    """The peers of one process. `send` sends one message, `connect` connects to an endpoint. `host` is the boot id."""

    def __init__(self, host: str, send: Callable[[Route, AnyMessage], None], connect: Callable[[str], None]) -> None:
        self.host = host
        self.addresses: tuple[str, ...] = ()
        """Addresses of this process's cores."""
        self.endpoint = ""
        """Endpoint for workers, if this process holds inputs."""
        self.follows_directory = False
        self.routes: dict[str, Route] = {}
        """Route to every connected core and client."""
        self.events: list[tuple[str, PeerConnected | PeerDisconnected]] = []
        """(peer address, event) not yet passed to the cores."""
        self._send = send
        self._connect = connect
        self._welcomed: dict[zmq.Socket[bytes] | Stream | ClientConnection, tuple[str, ...]] = {}
        self._hellos: dict[Route, Hello] = {}

    def on_dealer_connected(self, sock: zmq.Socket[bytes] | Stream) -> None:
        """Send Hello on a DEALER that has connected or reconnected."""
        capabilities = ("worker",) if self.follows_directory else ()
        self._send(Route(sock, None), Hello(PROTOCOL, self.addresses, self.host, self.endpoint, capabilities))

    def on_dealer_disconnected(self, sock: zmq.Socket[bytes] | Stream) -> None:
        """Disconnect the cores behind a DEALER."""
        for address in self._welcomed.pop(sock, ()):
            self._disconnect_core(address)

    def on_handshake(self, route: Route, message: Any, public: bool) -> None:
        """Handle one of `HANDSHAKES`. `public`: it is from a client."""
        match message:
            case Hello() if message.protocol != PROTOCOL:
                reason = f"protocol: got version {message.protocol}, wanted {PROTOCOL}"
                self._send(route, Rejected(int(Status.PROTOCOL), reason))
            case Hello() if public:
                self._send(route, Welcome(PROTOCOL, ()))
            case Hello() if route.identity is not None:
                for address in message.addresses:  # a reconnection before the loss of the old connection was noticed
                    self._disconnect_core(address)
                self._connect_cores(message.addresses, message.host, route)
                self._hellos[route] = message
                self._send(route, Welcome(PROTOCOL, self.addresses, self.host))
                self._send_directory()
            case Welcome() if route.identity is None:
                for address in self._welcomed.get(route.socket, ()):
                    if address not in message.addresses:
                        self._disconnect_core(address)
                self._welcomed[route.socket] = message.addresses
                self._connect_cores(message.addresses, message.host, route)
            case Directory() if route.identity is None and self.follows_directory:
                for endpoint in message.endpoints:
                    self._connect(endpoint)

    def add_client(self, route: Route, identity: bytes) -> None:
        """Add the route to a client from which a first packet has arrived."""
        self.routes[client_address(identity)] = route

    def on_client_disconnected(self, identity: bytes) -> None:
        """Disconnect a client of the `ClientServer`."""
        self._disconnect_core(client_address(identity))

    def on_router_disconnected(self, route: Route) -> None:
        """Disconnect the cores or the client behind a connection of a ROUTER."""
        self._hellos.pop(route, None)
        for address in [address for address, other in self.routes.items() if other == route]:
            self._disconnect_core(address)

    def _send_directory(self) -> None:
        """Send the endpoints of all holders to every peer with a worker."""
        endpoints = tuple(dict.fromkeys(hello.endpoint for hello in self._hellos.values() if hello.endpoint))
        for route, hello in list(self._hellos.items()):
            if "worker" in hello.capabilities:
                self._send(route, Directory(endpoints))

    def _connect_cores(self, addresses: Sequence[str], host: str, route: Route) -> None:
        for address in addresses:
            for other in list(self.routes):
                if instance(other) == instance(address) and other != address:
                    self._disconnect_core(other)
            is_new = address not in self.routes
            self.routes[address] = route
            if is_new:
                self.events.append((address, PeerConnected(address, host)))

    def _disconnect_core(self, address: str) -> None:
        if self.routes.pop(address, None):
            self.events.append((address, PeerDisconnected(address)))
