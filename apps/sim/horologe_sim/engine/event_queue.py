"""Events in virtual time: the clock of the simulator. Nothing waits."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

COMPACT_ABOVE = 64
"""Entries: a shorter heap is not worth compacting."""

Event = list[Any]
"""Time, number, call and arguments. The call of an event that has happened or was cancelled is None."""


class EventQueue:
    """Calls by time; calls at equal times happen in the order in which they were scheduled.

    `now_ns` is the virtual time: that of the last event processed. It never goes back.
    """

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns
        self._heap: list[Event] = []
        self._scheduled = 0
        self._cancelled = 0
        """Cancelled events in the heap."""

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def schedule(self, at_ns: int, call: Callable[..., None], *args: Any) -> Event:
        """Schedule `call(*args)` at `at_ns`, or at `now_ns` if that is later. Return the event for `cancel`."""
        self._scheduled += 1
        event = [at_ns if at_ns > self.now_ns else self.now_ns, self._scheduled, call, args]
        heappush(self._heap, event)
        return event

    def cancel(self, event: Event) -> None:
        """Cancel an event; do nothing if it has happened."""
        if event[2] is None:
            return
        event[2] = None
        self._cancelled += 1
        if len(self._heap) > COMPACT_ABOVE and 2 * self._cancelled > len(self._heap):
            self._heap[:] = [event for event in self._heap if event[2] is not None]
            heapify(self._heap)
            self._cancelled = 0

    def next_ns(self) -> int | None:
        """Return the time of the next event, or None if there is none."""
        heap = self._heap
        while heap and heap[0][2] is None:
            heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def step(self) -> bool:
        """Advance `now_ns` to the next event and run every event of that instant. Return False if there is none.

        An event that these schedule at the same instant runs in the next step, at the same `now_ns`.
        """
        at_ns, last = self.next_ns(), self._scheduled
        if at_ns is None:
            return False
        heap = self._heap
        while heap and heap[0][0] == at_ns and heap[0][1] <= last:
            self._run_first()
        return True

    def run_until(self, until_ns: int) -> None:
        """Run all events up to `until_ns`, those included that they schedule."""
        heap = self._heap
        while heap and heap[0][0] <= until_ns:
            self._run_first()

    def check(self) -> None:
        """Assert that the number of cancelled events is right, and that no event is in the past."""
        assert self._cancelled == sum(event[2] is None for event in self._heap)
        assert all(event[0] >= self.now_ns for event in self._heap if event[2] is not None)

    def _run_first(self) -> None:
        event = heappop(self._heap)
        call = event[2]
        if call is None:
            self._cancelled -= 1
            return
        self.now_ns, event[2] = event[0], None
        call(*event[3])
