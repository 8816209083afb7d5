"""The interface of an attack: a function that sends what a hostile peer would, as fast as it can."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


class Doors(NamedTuple):
    """Addresses of the system under attack."""

    sdk: str
    """ZeroMQ endpoint for clients, `tcp://HOST:PORT`."""
    http: str
    """URL of the HTTP server, `http://HOST:PORT`."""
    model: str
    """A model that is served: `digits-linear`, 64 FP32 values per row."""


class Clock(NamedTuple):
    """The end of the attack, on the monotonic clock."""

    end_s: float

    def running(self) -> bool:
        """Return whether the attack goes on."""
        return time.monotonic() < self.end_s


class Attack(NamedTuple):
    """An attack. `run` runs in a process of its own and returns the number of messages or requests that it sent.

    It must handle closed connections: a server may well close those of an attacker. It must end when `Clock.running()`
    is False, and use a bounded amount of memory itself.
    """

    name: str
    door: str
    """`sdk` or `http`: how the client beside it sends its requests."""
    what: str
    """One sentence for the table."""
    run: Callable[[Doors, Clock], int]
    growth_mb: int
    """Bound of the growth of a process's resident memory (benchmarks/results/attacks.md)."""
    settings: tuple[str, ...] = ()
    """Settings of the system, `section.field=value`."""
