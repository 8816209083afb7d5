"""Bytes of inputs that a worker holds: those of accepted actions, and those that arrived before their action. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Ship

EARLY_ACTIONS, EARLY_BYTES = 1024, 128 << 20
"""Maximum number of actions, and bytes, of inputs that are held before their Infer arrives."""
FINISHED_IDS_MAX = 1024
"""Ids of finished actions that are remembered, so that their late inputs are dropped instead of held."""


class IoCache:
    """Byte accounting of accepted actions, as in Clockwork's IOCache (section 5.2).

    Invariant: `held_bytes` is the sum over all actions and at most `limit_bytes`.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self._held: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._held)

    def acquire(self, action_id: int, size: int) -> bool:
        """Add `size` bytes to the action. Return False and add nothing if the sum would exceed the limit."""
        if self.held_bytes + size > self.limit_bytes:
            return False
        self.held_bytes += size
        self._held[action_id] = self._held.get(action_id, 0) + size
        return True

    def release(self, action_id: int) -> None:
        """Subtract all bytes of the action."""
        self.held_bytes -= self._held.pop(action_id, 0)

    def check(self) -> None:
        assert self.held_bytes == sum(self._held.values()) <= self.limit_bytes


class EarlyInputs:
    """Ships that arrived before their Infer, by action id: the two messages travel over different sockets.

    Holds at most `max_actions` actions and `limit_bytes` bytes; beyond that the oldest inputs are dropped.
    Invariant: `held_bytes` is the sum over the held inputs and at most `limit_bytes`.
    """

    def __init__(self, max_actions: int = EARLY_ACTIONS, limit_bytes: int = EARLY_BYTES) -> None:
        self.max_actions = max_actions
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.dropped = 0
        self._held: dict[int, list[tuple[Ship, Sequence[Buffer]]]] = {}
        self._finished_ids: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, action_id: int) -> bool:
        return action_id in self._held

    def hold_inputs(self, ship: Ship, buffers: Sequence[Buffer]) -> list[int]:
        """Hold the inputs, or drop them if their action has finished or they exceed the limit.

        Returns the ids of the actions whose inputs were dropped to make room.
        """
        size = sum(map(len, buffers))
        if ship.action_id in self._finished_ids or size > self.limit_bytes:
            self.dropped += 1
            return []
        evicted = []
        others = [action_id for action_id in self._held if action_id != ship.action_id]
        while others and (self.held_bytes + size > self.limit_bytes or self._is_full(ship.action_id)):
            evicted.append(others.pop(0))
            self.drop_inputs(evicted[-1])
        if self.held_bytes + size > self.limit_bytes:
            self.dropped += 1
            return evicted
        self._held.setdefault(ship.action_id, []).append((ship, buffers))
        self.held_bytes += size
        return evicted

    def pop_inputs(self, action_id: int) -> list[tuple[Ship, Sequence[Buffer]]]:
        """Remove and return the inputs of an action that has arrived."""
        ships = self._held.pop(action_id, [])
        self.held_bytes -= sum(len(buffer) for _, buffers in ships for buffer in buffers)
        return ships

    def drop_inputs(self, action_id: int) -> None:
        """Drop inputs whose action did not arrive in time, and count them."""
        self.dropped += len(self.pop_inputs(action_id))

    def mark_finished(self, action_id: int) -> None:
        """Remember an action that finished without all of its inputs: later inputs for it are dropped."""
        self._finished_ids[action_id] = None
        if len(self._finished_ids) > FINISHED_IDS_MAX:
            del self._finished_ids[next(iter(self._finished_ids))]

    def clear_finished(self) -> None:
        """Discard the finished ids. A new controller numbers its actions independently of the lost one."""
        self._finished_ids.clear()

    def check(self) -> None:
        held = sum(len(buffer) for ships in self._held.values() for _, buffers in ships for buffer in buffers)
        assert self.held_bytes == held <= self.limit_bytes
        assert len(self._held) <= self.max_actions

    def _is_full(self, action_id: int) -> bool:
        return action_id not in self._held and len(self._held) >= self.max_actions
