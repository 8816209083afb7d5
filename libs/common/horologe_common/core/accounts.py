"""Accounts: what each client uses of what a process has for all of them, whatever it connects to. Pure."""

from __future__ import annotations

from horologe_common.core.protocol import UNLIMITED


def fair_part(left: int, share: float = 0.5) -> float:
    """Return how much a client may have if the others leave `left`: a share of it, and at least one unit.

    Clients that come later get something too, because the others never have all.
    """
    return max(share * left, left > 0)


class Total:
    """Connections, requests in flight and bytes in memory: what all clients use together, and their limits.

    A client gets at most `share` of what the other clients leave.
    """

    __slots__ = ("connections", "held_bytes", "max_connections", "max_held_bytes", "max_requests", "requests", "share")

    def __init__(
        self,
        max_connections: int = UNLIMITED,
        max_requests: int = UNLIMITED,
        max_held_bytes: int = UNLIMITED,
        share: float = 0.5,
    ) -> None:
        self.connections = self.requests = self.held_bytes = 0
        self.max_connections = max_connections
        self.max_requests = max_requests
        self.max_held_bytes = max_held_bytes
        self.share = share

    def check(self) -> None:
        assert self.requests >= 0
        assert self.held_bytes >= 0
        assert self.connections >= 0


class Account:
    """What one client uses. It counts in `total` too."""

    __slots__ = ("connections", "held_bytes", "requests", "total")

    def __init__(self, total: Total | None = None) -> None:
        self.connections = self.requests = self.held_bytes = 0
        self.total = total or Total()

    def try_connect(self) -> bool:
        """Count a connection and return True, or return False if it exceeds the client's part."""
        total = self.total
        if self.connections >= fair_part(total.max_connections - total.connections + self.connections, total.share):
            return False
        self.connections += 1
        total.connections += 1
        return True

    def disconnect(self) -> None:
        """Count the end of a connection."""
        self.connections -= 1
        self.total.connections -= 1

    def may_request(self) -> bool:
        """Return whether the client may have one more request in flight."""
        total = self.total
        return self.requests < fair_part(total.max_requests - total.requests + self.requests, total.share)

    def try_begin(self, size: int) -> bool:
        """Count a request that holds `size` bytes and return True, or return False if it exceeds the client's part."""
        total, requests, held_bytes, share = self.total, self.requests, self.held_bytes, self.total.share
        if requests >= fair_part(total.max_requests - total.requests + requests, share):
            return False
        if held_bytes + size > fair_part(total.max_held_bytes - total.held_bytes + held_bytes, share):
            return False
        self.requests = requests + 1
        self.held_bytes = held_bytes + size
        total.requests += 1
        total.held_bytes += size
        return True

    def finish(self, size: int) -> None:
        """Count the end of a request that holds `size` bytes."""
        total = self.total
        self.requests -= 1
        self.held_bytes -= size
        total.requests -= 1
        total.held_bytes -= size

    def held_limit(self) -> int:
        """Return how many bytes the client may hold altogether."""
        total = self.total
        return int(fair_part(total.max_held_bytes - total.held_bytes + self.held_bytes, total.share))

    def has_room(self, size: int) -> bool:
        """Return whether the client may hold `size` more bytes."""
        total, held_bytes = self.total, self.held_bytes
        return held_bytes + size <= fair_part(total.max_held_bytes - total.held_bytes + held_bytes, total.share)

    def try_reserve(self, size: int) -> bool:
        """Count `size` more bytes and return True, or return False if they exceed the client's part."""
        if not self.has_room(size):
            return False
        self.held_bytes += size
        self.total.held_bytes += size
        return True

    def release(self, size: int) -> None:
        """Return `size` reserved bytes."""
        self.held_bytes -= size
        self.total.held_bytes -= size

    def hold(self, size: int) -> bool:
        """Count `size` bytes in all, which are there already. Return False if they exceed the client's part."""
        self.total.held_bytes += size - self.held_bytes
        self.held_bytes = size
        return self.has_room(0)
