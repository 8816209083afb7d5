"""What a service core is: a plain object that takes messages and the time, and appends messages to a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

Buffer: TypeAlias = "bytes | bytearray | memoryview"
Arrival: TypeAlias = "tuple[str, str, Any, Sequence[Buffer]]"
"""(to, sender, message, buffers)."""


class Out(msgspec.Struct, frozen=True, gc=False):
    """A message for the core at address `to`, with its tensors' bytes in the order of its tensor headers."""

    to: str
    message: Any
    buffers: Sequence[Buffer] = ()


class PeerConnected(msgspec.Struct, frozen=True):
    """From the loop, never over a socket: the core at `address` can be reached from now on."""

    address: str
    host: str = ""
    """Boot id of its host: equal ids share a monotonic clock."""


class PeerDisconnected(msgspec.Struct, frozen=True):
    """From the loop, never over a socket: the core at `address` (this incarnation) will not be heard of again."""

    address: str


class Core(Protocol):
    """A service's decisions. No sockets, threads, clock, environment or global random inside.

    The loop calls `handle` for every message of a drain, then `tick` once, then sends what is in `out` and
    clears it. `wakeup_ns` says when `tick` is wanted if nothing arrives.
    """

    address: str
    """`role/instance#incarnation`; the incarnation is random per start."""
    out: list[Out]

    def handle(self, now_ns: int, sender: str, message: Any, buffers: Sequence[Buffer]) -> None:
        """Take one message. Only queues: what follows from the whole drain is decided in `tick`."""

    def tick(self, now_ns: int) -> None:
        """Decide. Called after every drain and at `wakeup_ns`."""

    def wakeup_ns(self) -> int | None:
        """When to call `tick` next if nothing arrives; None: not before the next message."""


def role(address: str) -> str:
    return address.partition("/")[0]


def instance(address: str) -> str:
    """The address without its incarnation: the same after a restart."""
    return address.partition("#")[0]
