"""Rollouts: which version of a model requests without a version reach. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from horologe_common.status import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.wire import ModelState

CREDIT = 1_000_000
"""Weights are counted in millionths, so that no sum of them is rounded."""


class Rollout(msgspec.Struct, frozen=True, omit_defaults=True):
    """The versions of a model that answer requests without a version."""

    current: str
    previous: str = ""
    """Version before the last change, to which a rollback returns. Empty: none."""
    pinned: bool = False
    """False: a newer version becomes current when it is ready and loaded. True: only an operator changes versions."""
    canary: str = ""
    weight: float = 0.0
    """Part of the requests that the canary gets."""

    def promote(self, version: str, *, pinned: bool = True) -> Rollout:
        """Return the rollout with another current version, without a canary."""
        return Rollout(version, self.current if version != self.current else self.previous, pinned)

    def start_canary(self, version: str, weight: float) -> Rollout:
        """Return the rollout with a canary. A weight of 0 ends it."""
        canary = version if weight else ""
        return msgspec.structs.replace(self, pinned=True, canary=canary, weight=weight if canary else 0.0)

    def roll_back(self) -> Rollout:
        """End the canary, else return to the previous version. Raise `InvalidInput` without either."""
        if self.canary:
            return msgspec.structs.replace(self, canary="", weight=0.0)
        if not self.previous:
            raise InvalidInput("got no earlier version to return to")
        return Rollout(self.previous, self.current, pinned=True)

    def versions(self) -> tuple[str, ...]:
        """Return the versions that requests without a version reach."""
        return (self.current, self.canary) if self.canary else (self.current,)

    def traffic(self, version: str, *, canary_ready: bool) -> float:
        """Return the part of the requests that a version gets. A canary that is not ready gets none."""
        part = self.weight if canary_ready else 0.0
        return 1.0 - part if version == self.current else part if version == self.canary else 0.0


class ControllerState(msgspec.Struct, frozen=True):
    """State file of the controller: the rollouts that an operator has set, or that have an earlier version."""

    rollouts: dict[str, Rollout] = {}


def reached_versions(states: Sequence[ModelState]) -> list[ModelState]:
    """Return the versions of a model that requests without a version reach, the one with the largest part first.

    `states`: all versions, oldest first. If the controller has given no version a part, it is the newest READY one,
    else the newest LOADING one; empty if there is none.
    """
    parts = sorted((state for state in states if state.traffic), key=lambda state: -state.traffic)
    if parts:
        return parts
    for wanted in ("READY", "LOADING"):
        if newest := next((state for state in reversed(states) if state.state == wanted), None):
            return [newest]
    return []
