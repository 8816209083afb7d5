"""The calls of gRPC in progress: each has a client with an account, a key, and a message that must arrive in time."""

from __future__ import annotations

import asyncio
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote

from horologe_common.clock import monotonic_ns
from horologe_common.status import InvalidInput, Late, Refused
from horologe_frontend.http.client_accounts import RETRY_NS, HeldBytes, no_room

if TYPE_CHECKING:
    from horologe_frontend.core.access import Access, Grant, Scope
    from horologe_frontend.grpc.infer_stream import InferStream
    from horologe_frontend.grpc.rpc_server import Rpc
    from horologe_frontend.http.client_accounts import ClientAccounts
    from horologe_frontend.http.settings import HttpSettings

UNREAD_BYTES = 64 << 10
"""Longer responses count for their client until gRPC has sent them."""
SCANS_PER_TIMEOUT = 4
PAUSE_MAX_S = 1.0


class Calls:
    """Begins calls and ends those whose message does not arrive within `http.body_timeout_ns`."""

    def __init__(self, access: Access, clients: ClientAccounts, settings: HttpSettings) -> None:
        self.access = access
        self.clients = clients
        self._timeout_ns = settings.body_timeout_ns
        self.reading: dict[Call, None] = {}
        """The calls that wait for a message."""
        self.streams: dict[InferStream, None] = {}
        """The open streams of inferences."""
        self.count = 0
        """Calls that a shutdown waits for."""

    def begin(self, rpc: Rpc, *, is_open: bool = False, is_awaited: bool = True) -> Call:
        """Count a call, which is a context manager.

        `is_open`: it needs no key. `is_awaited`: a shutdown waits for its end.

        Raise `Unauthenticated`, or `Refused` for more calls than the client may have.
        """
        authorization, client = None, ""
        if not (is_open or self.access.is_open):
            authorization = find_metadata(rpc, "authorization")
            client = self.access.authenticate(authorization).name
        account = self.clients.begin_call(peer_host(rpc.peer()))
        if account is None:
            raise Refused(f"{self.clients.total.requests} requests are in flight already", RETRY_NS)
        self.count += is_awaited
        return Call(self, rpc, HeldBytes(account), authorization, client or account.name, is_awaited)

    def end(self, call: Call) -> None:
        """Count the end of a call."""
        self.count -= call.is_awaited
        self.clients.end_call(call.held.account)

    async def end_slow_calls(self) -> None:
        """End the calls whose message takes too long, until this is cancelled."""
        pause_s = min(PAUSE_MAX_S, self._timeout_ns / SCANS_PER_TIMEOUT / 1e9)
        while True:
            await asyncio.sleep(pause_s)
            since_ns = monotonic_ns() - self._timeout_ns
            for call in self.reading:
                if call.reading_since_ns <= since_ns:
                    call.rpc.fail_read(Late("the message did not arrive in time"))


class Call:
    """One call. `held` counts the bytes that it holds, until the end of the `with` block."""

    __slots__ = ("_calls", "authorization", "client", "held", "is_awaited", "reading_since_ns", "rpc")

    def __init__(
        self,
        calls: Calls,
        rpc: Rpc,
        held: HeldBytes,
        authorization: bytes | None,
        client: str,
        is_awaited: bool,
    ) -> None:
        self._calls = calls
        self.rpc = rpc
        self.held = held
        self.authorization = authorization
        self.client = client
        """Name of the client that shares devices with others: of its key, else its address."""
        self.is_awaited = is_awaited
        self.reading_since_ns = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.held.__exit__(*error)
        self._calls.end(self)

    async def read(self) -> bytes:
        """Return the only message of the call. Raise `Late`, `Refused`, `TooLarge`, or `InvalidInput` without one."""
        self.reading_since_ns = monotonic_ns()
        self._calls.reading[self] = None
        try:
            message = await self.rpc.read()
        finally:
            del self._calls.reading[self]
        if message is None:
            raise InvalidInput("message: got none, wanted one")
        self.held.grow_to(len(message))
        return message

    def check(self, scope: Scope, target: str = "") -> None:
        """Count a request of this call, and check its scope on a model.

        Each request of a stream is checked, so that a key that was withdrawn ends there too. Raise `Unauthenticated`,
        `Forbidden`, or `Refused` beyond the rate of the key.
        """
        if not self._calls.access.is_open:
            grant = self.grant()
            grant.take(monotonic_ns())
            grant.check(scope, target)

    def grant(self) -> Grant:
        """Return what the key of this call permits now. Raise `Unauthenticated`."""
        return self._calls.access.authenticate(self.authorization)

    def remaining_ns(self) -> int | None:
        """Return the time to the deadline that the client gave the call. None: no deadline."""
        remaining_s = self.rpc.remaining_s()
        return None if remaining_s is None else round(remaining_s * 1e9)

    def hold_response(self, size: int) -> None:
        """Count a response until gRPC has sent it. Raise `Refused` or `TooLarge` without memory."""
        if size > UNREAD_BYTES:
            account = self.held.account
            if not account.try_reserve(size):
                raise no_room(account, size)
            self.rpc.on_done = partial(account.release, size)


def find_metadata(rpc: Rpc, name: str) -> bytes | None:
    """Return the value of a key of the metadata, or None. Of a repeated key, return the first value."""
    for key, value in rpc.metadata:
        if key == name:
            return value if isinstance(value, bytes) else value.encode("latin-1", "replace")
    return None


@lru_cache(maxsize=4096)
def peer_host(peer: str) -> str:
    """Return the address in the name of a peer, such as `ipv4:10.0.0.1:55000` or `ipv6:[::1]:55000`."""
    kind, _, address = unquote(peer).partition(":")
    return address.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else kind
