"""Who is at the other ends: handshakes, the routes to cores, and who has come or gone.

Whoever connects says Hello on every (re)connection; Hello and Welcome name the cores at either end, and from then on
messages for them have a route. What was under way on a connection that broke is lost, so cores that are still known
when they say Hello again are told to be gone first: nothing is waited for that was on its way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import zmq

from horologe_common.core.protocol import PeerConnected, PeerDisconnected, instance
from horologe_common.status import Status
from horologe_common.wire import PROTOCOL, Directory, Hello, Rejected, Welcome

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.wire import AnyMessage

HANDSHAKES = frozenset({Hello, Welcome, Directory, Rejected})


class Route(NamedTuple):
    socket: zmq.Socket[bytes]
    identity: bytes | None
    """None on a DEALER: it has one peer."""


def client_address(identity: bytes) -> str:
    """Clients do not name themselves: their address is that of their connection."""
    return f"client/{identity.hex()}"


class Peers:
    """The peers of one process on host `host`. `say` sends one message, `connect` opens a link to an endpoint."""

    def __init__(self, host: str, say: Callable[[Route, AnyMessage], None], connect: Callable[[str], None]) -> None:
        self.host = host
        self.addresses: tuple[str, ...] = ()
        """Cores of this process."""
        self.endpoint = ""
        """Where workers reach this process, if it holds tensors."""
        self.follows_directory = False
        self.routes: dict[str, Route] = {}
        """To every core and client that can be reached."""
        self.news: list[tuple[str, PeerConnected | PeerDisconnected]] = []
        """What the cores have not been told yet, by whom it is about."""
        self._say = say
        self._connect = connect
        self._welcomed: dict[zmq.Socket[bytes], tuple[str, ...]] = {}
        self._hellos: dict[Route, Hello] = {}

    def connected(self, sock: zmq.Socket[bytes]) -> None:
        """A DEALER has a peer (again)."""
        capabilities = ("worker",) if self.follows_directory else ()
        self._say(Route(sock, None), Hello(PROTOCOL, self.addresses, self.host, self.endpoint, capabilities))

    def disconnected(self, sock: zmq.Socket[bytes]) -> None:
        """A DEALER has lost its peer."""
        for address in self._welcomed.pop(sock, ()):
            self._gone(address)

    def heard(self, route: Route, message: Any, public: bool) -> None:
        """One of `HANDSHAKES`; `public`: from a client."""
        match message:
            case Hello() if message.protocol != PROTOCOL:
                reason = f"protocol: got version {message.protocol}, wanted {PROTOCOL}"
                self._say(route, Rejected(int(Status.PROTOCOL), reason))
            case Hello() if public:
                self._say(route, Welcome(PROTOCOL, ()))
            case Hello() if route.identity is not None:
                for address in message.addresses:  # a connection taken over before its end was noticed
                    self._gone(address)
                self._joined(message.addresses, message.host, route)
                self._hellos[route] = message
                self._say(route, Welcome(PROTOCOL, self.addresses, self.host))
                self._announce()
            case Welcome() if route.identity is None:
                for address in self._welcomed.get(route.socket, ()):
                    if address not in message.addresses:
                        self._gone(address)
                self._welcomed[route.socket] = message.addresses
                self._joined(message.addresses, message.host, route)
            case Directory() if route.identity is None and self.follows_directory:
                for endpoint in message.endpoints:
                    self._connect(endpoint)

    def client(self, route: Route, identity: bytes) -> None:
        """A client that was not known yet has sent something."""
        self.routes[client_address(identity)] = route

    def left(self, route: Route) -> None:
        """A peer of a ROUTER has disconnected."""
        self._hellos.pop(route, None)
        for address in [known for known, way in self.routes.items() if way == route]:
            self._gone(address)

    def _announce(self) -> None:
        """Tell every peer that hosts a worker where the holders are."""
        endpoints = tuple(dict.fromkeys(hello.endpoint for hello in self._hellos.values() if hello.endpoint))
        for route, hello in list(self._hellos.items()):
            if "worker" in hello.capabilities:
                self._say(route, Directory(endpoints))

    def _joined(self, addresses: Sequence[str], host: str, route: Route) -> None:
        for address in addresses:
            for old in [known for known in self.routes if instance(known) == instance(address) and known != address]:
                self._gone(old)
            known = self.routes.get(address)
            self.routes[address] = route
            if known is None:
                self.news.append((address, PeerConnected(address, host)))

    def _gone(self, address: str) -> None:
        if self.routes.pop(address, None):
            self.news.append((address, PeerDisconnected(address)))
