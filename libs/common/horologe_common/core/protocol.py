"""The interface of a core: an object that gets messages and the time, and appends messages to a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

UNLIMITED = 1 << 62
Buffer: TypeAlias = "bytes | bytearray | memoryview"
Arrival: TypeAlias = "tuple[str, str, Any, Sequence[Buffer]]"
"""(to, sender, message, buffers)."""


class Out(msgspec.Struct, frozen=True, gc=False):
    """A message to send to the core at address `to`. `buffers` are the bytes of its tensors, in their order."""

    to: str
    message: Any
    buffers: Sequence[Buffer] = ()


class PeerConnected(msgspec.Struct, frozen=True):
    """Event from the host, never sent over a socket: the core at `address` has connected."""

    address: str
    host: str = ""
    """Boot id of its machine. Processes with equal ids share a monotonic clock."""
    max_frame_bytes: int = UNLIMITED
    """Maximum size of the tensors of one message to the core. Its process would close the link after a longer frame."""


class PeerDisconnected(msgspec.Struct, frozen=True):
    """Event from the host, never sent over a socket: the core at `address` (this incarnation) has disconnected."""

    address: str


class Core(Protocol):
    """The decisions of a service. It has no sockets, threads, clock, environment or global random numbers.

    The host calls `handle` for every message that has arrived, then `tick` once. It sends the messages in `out`, and
    calls `tick` again at `wakeup_ns` or after the next message.
    """

    address: str
    """`role/instance#incarnation`. The incarnation is random at every start."""
    out: list[Out]

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Process a message. Append answers to `out` at once (frontend, selector), or buffer the message for `tick`.

        The controller buffers: it plans once, after all messages that have arrived.
        """

    def tick(self, now_ns: int) -> None:
        """Decide. Called after messages and at `wakeup_ns`."""

    def wakeup_ns(self) -> int | None:
        """Return when to call `tick` if no message arrives before; None: never."""


@runtime_checkable
class Drains(Protocol):
    """A core that finishes its work before the process stops."""

    def drain(self) -> None:
        """Accept nothing new."""

    def drained(self) -> bool:
        """Return whether nothing is in flight."""


def role(address: str) -> str:
    """Return the role in an address: `controller` of `controller/0#1`."""
    return address.partition("/")[0]


def instance(address: str) -> str:
    """Return the address without its incarnation, which does not change at a restart."""
    return address.partition("#")[0]


def key_of_client(address: str) -> str:
    """Return the name of a client's key: `ann` of `client/00a1:ann`. Empty without a key."""
    return address.partition(":")[2]
