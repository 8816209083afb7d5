"""Discovery: whether all workers of the cluster have registered since this controller started."""

from __future__ import annotations

from horologe_common.clock import s
from horologe_common.core.protocol import instance

DISCOVERY_NS = s(10)
"""Time after the start in which workers register, if their number is not known."""


class WorkerDiscovery:
    """Workers that have registered, by name. Until all have, a model that none of them has may exist.

    With `expected` workers, discovery ends when so many have registered. Otherwise it ends `DISCOVERY_NS` after the
    start, but not before a worker has registered.
    """

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._end_ns: int | None = None
        self._registered: dict[str, bool] = {}
        self.missing = "the controller has just started"
        """Why workers may be missing. Empty once discovery has ended."""

    def add_worker(self, address: str) -> None:
        """Record that the worker has registered."""
        if self.missing:
            self._registered[instance(address)] = True

    def update(self, now_ns: int) -> bool:
        """Update `missing`. Return whether discovery has ended by this call."""
        if not self.missing:
            return False
        if self._end_ns is None:
            self._end_ns = now_ns + DISCOVERY_NS
        count = len(self._registered)
        if self._expected:
            self.missing = f"{count} of {self._expected} workers have registered" if count < self._expected else ""
        elif not count:
            self.missing = "no worker has registered"
        else:
            self.missing = "further workers may register" if now_ns < self._end_ns else ""
        return not self.missing

    def end_ns(self) -> int | None:
        """Return when discovery ends without another worker; None if it does not."""
        return self._end_ns if self.missing and self._registered and not self._expected else None
