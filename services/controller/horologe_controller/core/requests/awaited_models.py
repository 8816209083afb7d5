"""Submits for models that no worker has registered yet, while further workers may register."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.indexed_heap import Timers

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from horologe_common.wire import Submit

Arrived = tuple[str, "Submit", int]
"""(sender, message, arrival)"""


class AwaitedModels:
    """Submits by sender and id, each with a timer. Invariant: every Submit leaves once, by one of the `pop` methods."""

    def __init__(self) -> None:
        self.submits: dict[tuple[str, int], Arrived] = {}
        self.timers = Timers()

    def hold(self, arrived: Arrived, until_ns: int) -> None:
        """Hold a Submit until its model is known, at most until `until_ns`. Ignore one that is held already."""
        sender, submit, _ = arrived
        key = sender, submit.id
        if key not in self.submits:
            self.submits[key] = arrived
            self.timers.arm(key, until_ns)

    def pop_known(self, models: Container[str]) -> list[Arrived]:
        """Remove and return the Submits for these models."""
        return [self._pop(key) for key, held in list(self.submits.items()) if held[1].model in models]

    def pop_all(self) -> list[Arrived]:
        return [self._pop(key) for key in list(self.submits)]

    def pop_expired(self, now_ns: int) -> list[Arrived]:
        """Remove and return the Submits whose time has passed."""
        return [self.submits.pop(key) for key in self.timers.pop_expired(now_ns)]

    def pop_cancelled(self, sender: str, submit_ids: Sequence[int]) -> list[Arrived]:
        """Remove and return the Submits of a sender with these ids."""
        return [self._pop((sender, number)) for number in submit_ids if (sender, number) in self.submits]

    def pop_sender(self, sender: str) -> list[Arrived]:
        """Remove and return the Submits of a sender that has disconnected."""
        return [self._pop(key) for key in list(self.submits) if key[0] == sender]

    def _pop(self, key: tuple[str, int]) -> Arrived:
        self.timers.cancel(key)
        return self.submits.pop(key)

    def check(self) -> None:
        self.timers.check()
        assert len(self.timers) == len(self.submits)
