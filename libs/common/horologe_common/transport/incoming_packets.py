"""Packets that have arrived: unpacked, and passed on if the key of the connection permits their messages.

A worker runs the code of models, so the key of workers permits least.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core.protocol import role
from horologe_common.status import HorologeError, Status
from horologe_common.transport.clients.client_connection import ClientConnection
from horologe_common.transport.peers import HANDSHAKES
from horologe_common.wire import (
    HEADER_LIMIT,
    PEER_HEADER_LIMIT,
    Drain,
    Hello,
    Outputs,
    Pong,
    Register,
    Rejected,
    Result,
    Unload,
)
from horologe_common.wire.frames import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import zmq

    from horologe_common.core.protocol import Arrival, Buffer
    from horologe_common.transport.heartbeats import Heartbeats
    from horologe_common.transport.peers import Peers, Route
    from horologe_common.transport.router_connections import RouterConnections
    from horologe_common.wire import AnyMessage

WORKER_MESSAGES = frozenset({Register, Result, Pong, Outputs, Drain, Unload})


class IncomingPackets:
    """Unpacks packets and passes on what their senders may send. `send` sends one message, which rejects the rest."""

    def __init__(
        self,
        connections: RouterConnections,
        peers: Peers,
        heartbeats: Heartbeats,
        send: Callable[[Route, AnyMessage], None],
    ) -> None:
        self.client_core = ""
        """The core that gets the messages of clients."""
        self.public: zmq.Socket[bytes] | None = None
        """The socket of clients with keys."""
        self._connections = connections
        self._peers = peers
        self._heartbeats = heartbeats
        self._send = send

    def unpack(self, route: Route, frames: Sequence[Buffer], inbox: list[Arrival]) -> None:
        """Append the messages of a packet for cores. Handle handshakes at once, and reject what is not permitted."""
        if isinstance(route.socket, ClientConnection):
            public, client = True, route.socket.address
        else:
            client = self._connections.clients[route] if (public := route.socket is self.public) else ""
        try:
            arrivals = unpack(frames, HEADER_LIMIT if public else PEER_HEADER_LIMIT)
        except HorologeError as error:
            self._send(route, Rejected(int(error.status), error.reason))
            return
        if not arrivals:
            self._heartbeats.record(route)
        elif client and len(arrivals) > 1:  # each handshake is answered at once, so a packet may have only one
            arrivals = [arrival for arrival in arrivals if type(arrival[2]) not in HANDSHAKES]
        roles = self._connections.roles.get(route)
        for arrival in arrivals:
            message = arrival[2]
            if roles is not None and not is_permitted(roles, arrival[1], message):
                self._send(route, Rejected(int(Status.FORBIDDEN), f"the key permits: {', '.join(roles)}"))
            elif type(message) in HANDSHAKES:
                self._peers.on_handshake(route, message, public)
                self.append_peer_events(inbox)
            elif client:
                inbox.append((self.client_core, client, message, arrival[3]))
            else:
                inbox.append(arrival)

    def append_peer_events(self, inbox: list[Arrival]) -> None:
        """Append the peer events for every core, in order with the peers' messages."""
        for address, event in self._peers.events:
            inbox.extend((core, address, event, ()) for core in self._peers.addresses)
        self._peers.events.clear()


def is_permitted(roles: tuple[str, ...], sender: str, message: Any) -> bool:
    """Return whether a peer whose key permits `roles` may send a message in the name of `sender`."""
    if isinstance(message, Hello):
        return all(role(address) in roles for address in message.addresses)
    if type(message) in HANDSHAKES:
        return True
    return role(sender) in roles and ("worker" not in roles or type(message) in WORKER_MESSAGES)
