"""Packets for peers that have not connected yet.

A process that has just started may send a request at once: its address then reaches processes whose own link to it is
made some milliseconds later. What they send it meanwhile is kept until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.protocol import role

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horologe_common.core.protocol import Buffer

AWAIT_S = 2.0
"""Time for which packets are kept. Links take 8 to 60 ms on a busy machine."""
MOST_PACKETS = 256
"""Packets that are kept for one peer."""
MOST_FORMER = 1024
"""Lost peers that are remembered."""
ROLES = frozenset({"frontend", "selector", "controller", "worker", "profiler", "tuner"})


class AwaitedPeer:
    """Keeps packets for a peer, in the place of its connection."""

    def __init__(self) -> None:
        self.packets: list[Sequence[Buffer]] = []

    def send(self, frames: Sequence[Buffer]) -> bool:
        """Keep a packet. Return False if there are too many."""
        if len(self.packets) >= MOST_PACKETS:
            return False
        self.packets.append(frames)
        return True


class AwaitedPeers:
    """The peers that have been sent something and have not connected yet, by address.

    A peer that was lost is not awaited: what it is sent belongs to requests that it has given up. `begin` is called
    with the address of each new one, and has to call `give_up` after `AWAIT_S`.
    """

    def __init__(self, begin: Callable[[str], None]) -> None:
        self._begin = begin
        self._peers: dict[str, AwaitedPeer] = {}
        self._former: dict[str, None] = {}

    def find(self, address: str) -> AwaitedPeer | None:
        """Return what keeps packets for an address that has no route; None for clients and lost peers."""
        if (peer := self._peers.get(address)) is None and role(address) in ROLES and address not in self._former:
            peer = self._peers[address] = AwaitedPeer()
            self._begin(address)
        return peer

    def end(self, address: str) -> Sequence[Sequence[Buffer]]:
        """Return the packets that were kept for a peer that has connected."""
        self._former.pop(address, None)
        peer = self._peers.pop(address, None)
        return () if peer is None else peer.packets

    def add_former(self, address: str) -> None:
        """Remember a lost peer."""
        self._former[address] = None
        if len(self._former) > MOST_FORMER:
            del self._former[next(iter(self._former))]

    def give_up(self, address: str) -> int:
        """Drop the packets for a peer that has still not connected. Return how many there were."""
        if (peer := self._peers.pop(address, None)) is None:
            return 0
        self.add_former(address)
        return len(peer.packets)
