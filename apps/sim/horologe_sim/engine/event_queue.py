"""Events in virtual time: the clock of the simulator. Nothing waits."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    Event = tuple[int, int, Callable[..., None], tuple[Any, ...]]

MOST_EVENTS = 1 << 62
COMPACT_ABOVE = 64
"""Entries: a shorter heap is not worth compacting."""


class EventQueue:
    """Calls by time; calls at equal times happen in the order in which they were scheduled.

    `now_ns` is the virtual time: that of the last event processed. It never goes back.
    """

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns
        self._heap: list[Event] = []
        self._last_id = 0
        self._cancelled: set[int] = set()
        """Cancelled events in the heap. Nothing iterates over them."""

    def __len__(self) -> int:
        return len(self._heap) - len(self._cancelled)

    def schedule(self, at_ns: int, call: Callable[..., None], *args: Any) -> int:
        """Schedule `call(*args)` at `at_ns`, or at `now_ns` if that is later. Return the event's id for `cancel`."""
        self._last_id = event_id = self._last_id + 1
        heappush(self._heap, (at_ns if at_ns > self.now_ns else self.now_ns, event_id, call, args))
        return event_id

    def cancel(self, event_id: int) -> None:
        """Cancel an event that has not happened."""
        heap, cancelled = self._heap, self._cancelled
        cancelled.add(event_id)
        if len(heap) > COMPACT_ABOVE and 2 * len(cancelled) > len(heap):
            heap[:] = [event for event in heap if event[1] not in cancelled]
            heapify(heap)
            cancelled.clear()

    def next_ns(self) -> int | None:
        """Return the time of the next event, or None if there is none."""
        heap, cancelled = self._heap, self._cancelled
        while cancelled and heap and heap[0][1] in cancelled:
            cancelled.remove(heappop(heap)[1])
        return heap[0][0] if heap else None

    def step(self) -> bool:
        """Advance `now_ns` to the next event and run every event of that instant. Return False if there is none.

        An event that these schedule at the same instant runs in the next step, at the same `now_ns`.
        """
        at_ns = self.next_ns()
        if at_ns is None:
            return False
        self.run_until(at_ns, self._last_id)
        return True

    def run_until(self, until_ns: int, last_id: int = MOST_EVENTS) -> None:
        """Run events up to `until_ns` in order, until the first with an id above `last_id`."""
        heap, cancelled = self._heap, self._cancelled
        while heap and heap[0][0] <= until_ns and heap[0][1] <= last_id:
            at_ns, event_id, call, args = heappop(heap)
            if cancelled and event_id in cancelled:
                cancelled.remove(event_id)
                continue
            self.now_ns = at_ns
            call(*args)

    def check(self) -> None:
        """Assert that the cancelled events are in the heap, and that no event is in the past."""
        assert self._cancelled <= {event_id for _, event_id, *_ in self._heap}
        assert all(at_ns >= self.now_ns for at_ns, event_id, *_ in self._heap if event_id not in self._cancelled)
