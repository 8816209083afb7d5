"""A change of the shares that serve a stage, and its reason."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Reason: TypeAlias = Literal["violation", "calm", "worker lost", "plan"]


class SharingDecision(msgspec.Struct, frozen=True):
    """A switch to other shares. `moves`: (device, percent before, percent after)."""

    stage: str
    reason: Reason
    cause: str
    """Observation that led to the decision, as a phrase."""
    moves: tuple[tuple[str, float, float], ...]

    def describe(self) -> str:
        """Return one sentence for log and status."""
        moves = ", ".join(f"{device} {before:g}% -> {after:g}%" for device, before, after in self.moves)
        return f"{self.cause}: {moves}"
