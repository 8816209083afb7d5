"""The connections behind ROUTERs: which peer is behind which descriptor, and whether it is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

from horologe_common.clock import monotonic_ns, ms
from horologe_common.transport.peers import Route

if TYPE_CHECKING:
    from collections.abc import Callable

    from horologe_common.transport.permissions import Permissions

PROBE_NS, PROBE_EVERY_NS = ms(20), ms(2)
"""A socket accepted packets for a dead peer for up to 2.9 ms after its kill -9."""


class RouterConnections:
    """Descriptors by peer. A disconnect event contains a descriptor and nothing else.

    Another connection may use the descriptor already. Therefore the peer is only a suspect: empty packets are sent to
    it, which the socket refuses if the peer is lost. The socket detects the loss a moment later, so these probes are
    repeated for `PROBE_NS`. `probe` sends one, and returns False if it was refused.
    """

    def __init__(self, probe: Callable[[Route], bool], permissions: Permissions) -> None:
        self._probe = probe
        self._permissions = permissions
        self._identities: dict[tuple[zmq.Socket[bytes], int], bytes] = {}
        self.descriptors: dict[tuple[zmq.Socket[bytes], bytes], int] = {}
        """(socket, identity) -> descriptor of every connection from which a packet has arrived."""
        self._suspects: dict[Route, int] = {}
        """Suspect -> time of the last probe."""

    def add(self, sock: zmq.Socket[bytes], identity: bytes, frame: zmq.Frame) -> bool:
        """Store the descriptor of the connection by which the frame came. Return False if it has none."""
        if (descriptor := _descriptor(frame)) is None:
            return False
        if (old := self._identities.get((sock, descriptor))) is not None:
            self.descriptors.pop((sock, old), None)
            self._suspect(sock, old)
        self._identities[sock, descriptor] = identity
        self.descriptors[sock, identity] = descriptor
        return True

    def on_disconnected(self, sock: zmq.Socket[bytes], descriptor: int) -> None:
        """Suspect the peer behind a descriptor that was closed."""
        if (identity := self._identities.pop((sock, descriptor), None)) is not None:
            self.descriptors.pop((sock, identity), None)
            self._suspect(sock, identity)

    def probe_suspects(self) -> None:
        """Send a probe to each suspect."""
        for suspect, until_ns in list(self._suspects.items()):
            if not self._probe(suspect) or monotonic_ns() > until_ns:
                self._suspects.pop(suspect, None)

    def wakeup_ns(self) -> int | None:
        """Return when to call `probe_suspects`, None without suspects."""
        return monotonic_ns() + PROBE_EVERY_NS if self._suspects else None

    def _suspect(self, sock: zmq.Socket[bytes], identity: bytes) -> None:
        self._permissions.remove_connection(suspect := Route(sock, identity))
        self._suspects[suspect] = monotonic_ns() + PROBE_NS


def _descriptor(frame: zmq.Frame) -> int | None:
    """Return the descriptor of the frame's connection. None for a peer older than ZMTP 3, or for random bytes."""
    try:
        return int(frame.get(zmq.SRCFD))
    except zmq.ZMQError:
        return None
