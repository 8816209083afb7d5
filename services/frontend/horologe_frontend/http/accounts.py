"""Accounts: what the server and each of its clients use, with the limits."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Self

from horologe_common.clock import s
from horologe_common.service.descriptors import at_most
from horologe_common.status import HorologeError, Refused, TooLarge
from horologe_frontend.http.fair_turns import FairTurns

if TYPE_CHECKING:
    from horologe_frontend.http.settings import HttpSettings

RETRY_NS = s(1)
DESCRIPTOR_EIGHTHS = 4
UNLIMITED = 1 << 62


class Account:
    """Connections, requests in flight and bytes held: of a client, or of all clients (`parent` is None).

    Reservations count in the account and in its parent. `turns` shares the loop's time between the clients.
    """

    __slots__ = (
        "connections", "held_bytes", "max_connections", "max_held_bytes", "max_requests", "name", "parent", "requests",
        "turns",
    )  # fmt: skip

    def __init__(
        self,
        max_connections: int = UNLIMITED,
        max_requests: int = UNLIMITED,
        max_held_bytes: int = UNLIMITED,
        parent: Account | None = None,
        name: str = "",
    ) -> None:
        self.name = name
        self.connections = self.requests = self.held_bytes = 0
        self.max_connections = max_connections
        self.max_requests = max_requests
        self.max_held_bytes = max_held_bytes
        self.parent = parent
        self.turns: FairTurns = parent.turns if parent else FairTurns()

    def has_room(self, size: int) -> bool:
        """Return whether `size` more bytes may be held."""
        return self.held_bytes + size <= self.max_held_bytes and (self.parent is None or self.parent.has_room(size))

    def try_reserve(self, size: int) -> bool:
        """Count `size` more bytes and return True, or return False if they exceed a limit."""
        if not self.has_room(size):
            return False
        self.held_bytes += size
        if self.parent is not None:
            self.parent.held_bytes += size
        return True

    def release(self, size: int) -> None:
        """Return `size` reserved bytes."""
        self.held_bytes -= size
        if self.parent is not None:
            self.parent.held_bytes -= size

    def check(self) -> None:
        assert self.requests >= 0
        assert self.held_bytes >= 0
        assert self.connections >= 0


def no_room(account: Account, size: int) -> HorologeError:
    """Return the error of a request for which an account has no room. TOO_LARGE: it would have none alone."""
    limit = account.max_held_bytes if account.parent is None else account.parent.max_held_bytes
    limit = min(limit, account.max_held_bytes)
    if size > limit:
        setting = "http.held_limit_bytes, of which a client may have http.client_share"
        return TooLarge(f"request and response: got {size} bytes, wanted at most {limit} ({setting})")
    return Refused("too many bytes of requests and responses are in memory already", RETRY_NS)


class HeldBytes:
    """Bytes that a request holds beside its body. A context manager: at its end, they are released."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.size = 0

    def grow_to(self, size: int) -> None:
        """Reserve bytes until `size` are held. Raise `Refused` or `TooLarge` if they exceed a limit."""
        if not self.account.try_reserve(size - self.size):
            raise no_room(self.account, size)
        self.size = size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.account.release(self.size)
        self.size = 0


class ClientAccounts:
    """The accounts of all clients. A client is an IPv4 address, or the /64 network of an IPv6 address."""

    def __init__(self, settings: HttpSettings) -> None:
        connections = at_most(settings.max_connections, DESCRIPTOR_EIGHTHS)
        self.total = Account(connections, settings.max_requests, settings.held_limit_bytes)
        self._share = settings.client_share
        self._clients: dict[str, Account] = {}
        self.total.turns.is_contended = lambda: len(self._clients) > 1

    def add_connection(self, host: str) -> Account | None:
        """Count a connection from the address `host`. Return the client's account, or None beyond a limit."""
        name, total = client_name(host), self.total
        client = self._clients.get(name) or self._new_client(name)
        if total.connections >= total.max_connections or client.connections >= client.max_connections:
            return None
        self._clients[name] = client
        client.connections += 1
        total.connections += 1
        return client

    def remove_connection(self, client: Account) -> None:
        """Count the end of a connection, and remove the account of a client without connections."""
        client.connections -= 1
        self.total.connections -= 1
        if not client.connections:
            self._clients.pop(client.name, None)

    def _new_client(self, name: str) -> Account:
        total, share = self.total, self._share
        return Account(
            max(1, int(share * total.max_connections)),
            max(1, int(share * total.max_requests)),
            max(1, int(share * total.max_held_bytes)),
            total,
            name,
        )


def client_name(host: str) -> str:
    """Return the client that an address belongs to. One host of an IPv6 network has 2**64 addresses (RFC 4291)."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))
