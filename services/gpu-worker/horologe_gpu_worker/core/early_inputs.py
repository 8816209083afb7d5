"""Inputs that came before their action: Infer and Ship travel over different sockets. Bounded, pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Ship

FORGET_AFTER = 1024
"""Ids of ended actions remembered, so that their late inputs are not kept as early ones."""


class EarlyInputs:
    """Ships by action id, at most `most` actions and `limit_bytes`; beyond that the oldest are dropped.

    Law: `held_bytes` is the sum over what is held and at most `limit_bytes`.
    """

    def __init__(self, most: int, limit_bytes: int) -> None:
        self.most = most
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.dropped = 0
        self._held: dict[int, list[tuple[Ship, Sequence[Buffer]]]] = {}
        self._over: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, action_id: int) -> bool:
        return action_id in self._held

    def hold(self, ship: Ship, buffers: Sequence[Buffer]) -> list[int]:
        """Keep it, or drop it if its action has ended already; returns the actions whose inputs made room."""
        size = sum(map(len, buffers))
        if ship.action_id in self._over or size > self.limit_bytes:
            self.dropped += 1
            return []
        made_room = []
        others = [action_id for action_id in self._held if action_id != ship.action_id]
        while others and (self.held_bytes + size > self.limit_bytes or self._full(ship.action_id)):
            made_room.append(others.pop(0))
            self.drop(made_room[-1])
        if self.held_bytes + size > self.limit_bytes:
            self.dropped += 1
            return made_room
        self._held.setdefault(ship.action_id, []).append((ship, buffers))
        self.held_bytes += size
        return made_room

    def take(self, action_id: int) -> list[tuple[Ship, Sequence[Buffer]]]:
        """Everything held for the action, which is here now."""
        ships = self._held.pop(action_id, [])
        self.held_bytes -= sum(len(buffer) for _, buffers in ships for buffer in buffers)
        return ships

    def drop(self, action_id: int) -> None:
        """Nobody asked for these inputs in time."""
        self.dropped += len(self.take(action_id))

    def ended(self, action_id: int) -> None:
        """An action has ended without all of its inputs: what still comes for it is not kept."""
        self._over[action_id] = None
        if len(self._over) > FORGET_AFTER:
            del self._over[next(iter(self._over))]

    def forget_ended(self) -> None:
        """Those of a controller that is gone: its successor has ids of its own."""
        self._over.clear()

    def check(self) -> None:
        held = sum(len(buffer) for ships in self._held.values() for _, buffers in ships for buffer in buffers)
        assert self.held_bytes == held <= self.limit_bytes
        assert len(self._held) <= self.most

    def _full(self, action_id: int) -> bool:
        return action_id not in self._held and len(self._held) >= self.most
