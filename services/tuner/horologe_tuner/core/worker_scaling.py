"""Calls of the scaler, one at a time, until the wanted workers run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.clock import s
from horologe_common.wanted_shares import WantedShare

if TYPE_CHECKING:
    from collections.abc import Mapping

RETRY_NS = s(5)
"""Interval at which a scaling that has not succeeded is tried again."""


class ScaleTo(msgspec.Struct, frozen=True):
    """Message to the scaler: the workers to run, by hardware type."""

    workers: dict[str, int]
    shares: tuple[WantedShare, ...] | None = None
    """Shares of devices to run. None: leave them as they are."""


class Scaled(msgspec.Struct, frozen=True):
    """Answer of the scaler: the workers that run or are starting. `error`: why they are not those of the ScaleTo."""

    workers: dict[str, int]
    error: str = ""
    shares: tuple[str, ...] = ()
    """Names of the workers of shares."""


class WorkerScaling:
    """Keeps one ScaleTo in flight. A call that failed, or whose workers are not wanted any more, is repeated."""

    def __init__(self) -> None:
        self.last = Scaled({})
        self.retry_ns: int | None = None
        """When to call the scaler again."""
        self._in_flight = False

    def start_call(self, wanted: Mapping[str, int], shares: tuple[WantedShare, ...] | None = None) -> ScaleTo | None:
        """Return the call to send; None while one is in flight, or if neither workers nor shares are planned."""
        if self._in_flight or (not wanted and shares is None):
            return None
        self._in_flight, self.retry_ns = True, None
        return ScaleTo(dict(wanted), shares)

    def finish_call(
        self, now_ns: int, answer: Scaled, wanted: Mapping[str, int], shares: tuple[WantedShare, ...] | None = None
    ) -> None:
        """Adopt the scaler's answer."""
        self._in_flight, self.last = False, answer
        other_shares = shares is not None and set(answer.shares) != {share.worker for share in shares}
        if other_shares or any(answer.workers.get(hardware) != count for hardware, count in wanted.items()):
            self.retry_ns = now_ns + (RETRY_NS if answer.error else 0)
