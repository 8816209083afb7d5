"""Accounts of the clients of the HTTP server, by their addresses."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Self

from horologe_common.clock import s
from horologe_common.core.accounts import Account, Total, fair_part
from horologe_common.service.process_limits import at_most
from horologe_common.status import HorologeError, Refused, TooLarge
from horologe_common.transport.clients.fair_turns import PAUSE_S, FairTurns

if TYPE_CHECKING:
    from horologe_frontend.http.settings import HttpSettings

RETRY_NS = s(1)
DESCRIPTOR_EIGHTHS = 4


class ClientAccount(Account):
    """Account of a client: `name` is its address or network. `turns` shares the loop's time between the clients."""

    __slots__ = ("name", "turns")

    def __init__(self, total: Total | None = None, name: str = "", turns: FairTurns | None = None) -> None:
        super().__init__(total)
        self.name = name
        self.turns = turns or FairTurns()


def no_room(account: ClientAccount, size: int) -> HorologeError:
    """Return the error of a request for which an account has no room. TOO_LARGE: it would have none alone."""
    limit = int(fair_part(account.total.max_held_bytes, account.total.share))
    if size > limit:
        setting = "http.held_limit_bytes, of which a client may have http.client_share"
        return TooLarge(f"request and response: got {size} bytes, wanted at most {limit} ({setting})")
    return Refused("too many bytes of requests and responses are in memory already", RETRY_NS)


class HeldBytes:
    """Bytes that a request holds beside its body. A context manager: at its end, they are released."""

    def __init__(self, account: ClientAccount) -> None:
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
        self.total = Total(connections, settings.max_requests, settings.held_limit_bytes, settings.client_share)
        self.turns = FairTurns(lambda: PAUSE_S if len(self._clients) > 1 else 0.0)
        self._clients: dict[str, ClientAccount] = {}

    def add_connection(self, host: str) -> ClientAccount | None:
        """Count a connection from the address `host`. Return the client's account, or None beyond a limit."""
        name = client_name(host)
        client = self._clients.get(name) or ClientAccount(self.total, name, self.turns)
        if not client.try_connect():
            return None
        self._clients[name] = client
        return client

    def remove_connection(self, client: ClientAccount) -> None:
        """Count the end of a connection, and remove the account of a client without connections and calls."""
        client.disconnect()
        self._remove_unused(client)

    def begin_call(self, host: str) -> ClientAccount | None:
        """Count a call from the address `host` over gRPC, where several calls share a connection that is not counted.

        Return the client's account, or None beyond its part of `http.max_requests`.
        """
        name = client_name(host)
        client = self._clients.get(name) or ClientAccount(self.total, name, self.turns)
        if not client.try_begin(0):
            return None
        self._clients[name] = client
        return client

    def end_call(self, client: ClientAccount) -> None:
        """Count the end of a call, and remove the account of a client without connections and calls."""
        client.finish(0)
        self._remove_unused(client)

    def _remove_unused(self, client: ClientAccount) -> None:
        if not client.connections and not client.requests:
            self._clients.pop(client.name, None)


def client_name(host: str) -> str:
    """Return the client that an address belongs to. One host of an IPv6 network has 2**64 addresses (RFC 4291)."""
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host.partition("%")[0])
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))
