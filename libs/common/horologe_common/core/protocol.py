"""What a service core is: a plain object that takes messages and the time, and appends messages to a list."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

Buffer: TypeAlias = "bytes | bytearray | memoryview"


class Out(msgspec.Struct, frozen=True, gc=False):
    """A message for the core at address `to`, with its tensors' bytes in the order of its tensor headers."""

    to: str
    message: Any
    buffers: Sequence[Buffer] = ()


class Joined(msgspec.Struct, frozen=True):
    """From the loop, never over a socket: the core at `address` can be reached from now on."""

    address: str
    host: str = ""
    """Boot id of its host: equal ids share a monotonic clock."""


class Gone(msgspec.Struct, frozen=True):
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


SWEEP_FROM = 64


class Deadlines:
    """Timers by key, earliest first; cancelled ones are dropped lazily and swept when they are the majority."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int]] = []
        self._at: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._at)

    def arm(self, key: int, at_ns: int) -> None:
        """Set or move the timer of `key`."""
        self._at[key] = at_ns
        heapq.heappush(self._heap, (at_ns, key))
        if len(self._heap) > SWEEP_FROM:
            self._sweep()

    def cancel(self, key: int) -> None:
        self._at.pop(key, None)
        if len(self._heap) > SWEEP_FROM:
            self._sweep()

    def _sweep(self) -> None:
        if len(self._heap) > 2 * len(self._at):
            self._heap = [(at_ns, key) for key, at_ns in self._at.items()]
            heapq.heapify(self._heap)

    def due(self, now_ns: int) -> list[int]:
        """Remove and return the keys whose time has come."""
        keys = []
        while (at_ns := self.next_ns()) is not None and at_ns <= now_ns:
            key = heapq.heappop(self._heap)[1]
            del self._at[key]
            keys.append(key)
        if keys and len(self._heap) > SWEEP_FROM:
            self._sweep()
        return keys

    def next_ns(self) -> int | None:
        heap, at = self._heap, self._at
        while heap and at.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def check(self) -> None:
        assert set(self._at.items()) <= {(key, at_ns) for at_ns, key in self._heap}
        assert len(self._heap) <= max(SWEEP_FROM, 2 * len(self._at))
