"""The connections behind ROUTERs: what their keys permit, and whether they are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

from horologe_common.clock import monotonic_ns, ms
from horologe_common.transport.peers import Route, client_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_common.transport.sockets import Sockets

PROBE_NS, PROBE_EVERY_NS = ms(20), ms(2)
"""A socket accepted packets for a dead peer for up to 2.9 ms after its kill -9."""


class RouterConnections:
    """Connections from which a packet has arrived. A disconnect event contains a descriptor and nothing else.

    Another connection may use the descriptor already. Therefore the peer is only a suspect: empty packets are sent to
    it, which the socket refuses if the peer is lost. The socket detects the loss a moment later, so these probes are
    repeated for `PROBE_NS`. `probe` sends one, and returns False if it was refused.
    """

    def __init__(self, sockets: Sockets, probe: Callable[[Route], bool]) -> None:
        self._sockets = sockets
        self._probe = probe
        self._by_descriptor: dict[tuple[zmq.Socket[bytes], int], Route] = {}
        self._present: dict[Route, bool] = {}
        self.clients: dict[Route, str] = {}
        """Address of the client behind each connection."""
        self.roles: dict[Route, tuple[str, ...]] = {}
        """Roles that the key of each peer permits. Empty without keys: everything is permitted."""
        self._suspects: dict[Route, int] = {}
        """Suspect -> time of the last probe."""

    def __contains__(self, route: Route) -> bool:
        return route in self._present

    def add(self, sock: zmq.Socket[bytes], identity: bytes, frame: zmq.Frame, public: bool) -> bool:
        """Add a connection, by the first frame from it, with what its key permits. Return False without a descriptor.

        `public`: it is a connection of a client.
        """
        if (descriptor := _descriptor(frame)) is None:
            return False
        self.on_disconnected(sock, descriptor)
        route, holders = Route(sock, identity), self._sockets.key_holders
        self._by_descriptor[sock, descriptor] = route
        self._present[route] = True
        if public:
            manages, key = (True, "") if holders is None else (holders.is_manager(frame), holders.name_of(frame))
            self.clients[route] = client_address(identity, manages, key)
        elif holders is not None:
            self.roles[route] = holders.peer_roles(frame)
        return True

    def on_disconnected(self, sock: zmq.Socket[bytes], descriptor: int) -> None:
        """Suspect the peer behind a descriptor that was closed."""
        if (route := self._by_descriptor.pop((sock, descriptor), None)) is not None:
            for connections in (self._present, self.clients, self.roles):
                connections.pop(route, None)
            self._suspects[route] = monotonic_ns() + PROBE_NS

    def probe_suspects(self) -> None:
        """Send a probe to each suspect."""
        for suspect, until_ns in list(self._suspects.items()):
            if not self._probe(suspect) or monotonic_ns() > until_ns:
                self._suspects.pop(suspect, None)

    def wakeup_ns(self) -> int | None:
        """Return when to call `probe_suspects`, None without suspects."""
        return monotonic_ns() + PROBE_EVERY_NS if self._suspects else None


def _descriptor(frame: zmq.Frame) -> int | None:
    """Return the descriptor of the frame's connection. None for a peer older than ZMTP 3, or for random bytes."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return None
