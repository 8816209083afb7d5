"""What each connection may send, by its key. A worker runs the code of models, so the key of workers permits least."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core.protocol import role
from horologe_common.transport.peers import HANDSHAKES, client_address
from horologe_common.wire import Drain, Hello, Outputs, Pong, Register, Result

if TYPE_CHECKING:
    import zmq

    from horologe_common.transport.peers import Route
    from horologe_common.transport.sockets import Sockets

WORKER_MESSAGES = frozenset({Register, Result, Pong, Outputs, Drain})


class Permissions:
    """The connections of bound sockets. Without keys, everything is permitted."""

    def __init__(self, sockets: Sockets) -> None:
        self._sockets = sockets
        self.clients: dict[Route, str] = {}
        """Address of the client behind each connection."""
        self.roles: dict[Route, tuple[str, ...]] = {}
        """Roles that the key of each peer permits. Empty without keys."""

    def add_connection(self, route: Route, frame: zmq.Frame, public: bool) -> str:
        """Store what the key of a new connection permits. Return the address of a client, empty for a peer.

        `frame`: the first frame that has arrived over it. `public`: it is a connection of a client.
        """
        holders = self._sockets.key_holders
        if public and route.identity is not None:
            self.clients[route] = client_address(route.identity, holders is None or holders.is_manager(frame))
        elif holders is not None:
            self.roles[route] = holders.peer_roles(frame)
        return self.clients.get(route, "")

    def remove_connection(self, route: Route) -> None:
        """Remove a connection that is lost."""
        self.clients.pop(route, None)
        self.roles.pop(route, None)


def is_permitted(roles: tuple[str, ...], sender: str, message: Any) -> bool:
    """Return whether a peer whose key permits `roles` may send a message in the name of `sender`."""
    if isinstance(message, Hello):
        return all(role(address) in roles for address in message.addresses)
    if type(message) in HANDSHAKES:
        return True
    return role(sender) in roles and ("worker" not in roles or type(message) in WORKER_MESSAGES)
