"""The virtual clock: things that will happen, earliest first, in the order they were asked for where times are equal.

Pure. The world (apps/sim) and the tuner's estimator count time with it; nobody waits.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

Event = tuple["Callable[..., None]", tuple[Any, ...]]
SWEEP_ABOVE = 64


class Events:
    """A heap of calls by time. `now_ns` is the time of the last instant taken, and never goes back."""

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns
        self._heap: list[tuple[int, int]] = []
        self._events: dict[int, Event] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._events)

    def at(self, at_ns: int, call: Callable[..., None], *args: Any) -> int:
        """Have `call(*args)` happen at `at_ns`, or now if that has passed. Returns a number for `cancel`."""
        self._last = number = self._last + 1
        self._events[number] = (call, args)
        heapq.heappush(self._heap, (max(at_ns, self.now_ns), number))
        return number

    def cancel(self, number: int) -> None:
        """It will not happen. Nothing if it has."""
        self._events.pop(number, None)
        if len(self._heap) > SWEEP_ABOVE and len(self._heap) > 2 * len(self._events):
            self._heap = [entry for entry in self._heap if entry[1] in self._events]
            heapq.heapify(self._heap)

    def next_ns(self) -> int | None:
        """When the next one happens; None: nothing will."""
        heap = self._heap
        while heap and heap[0][1] not in self._events:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def step(self) -> bool:
        """Go on to the next instant and make everything asked for at it happen; False if there is none.

        What these calls ask for at the same instant happens in the next step, without the clock going on.
        """
        at_ns = self.next_ns()
        if at_ns is None:
            return False
        self.now_ns = at_ns
        heap, due = self._heap, []
        while heap and heap[0][0] == at_ns:
            due.append(heapq.heappop(heap)[1])
        for number in due:
            if event := self._events.pop(number, None):  # one of this instant may cancel another
                event[0](*event[1])
        return True

    def check(self) -> None:
        """Every event is in the heap once, and none lies in the past."""
        numbers = [number for _, number in self._heap if number in self._events]
        assert sorted(numbers) == sorted(self._events)
        assert all(at_ns >= self.now_ns for at_ns, number in self._heap if number in self._events)
