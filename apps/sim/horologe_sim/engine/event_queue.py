"""Events in virtual time: the clock of the simulator. Nothing waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core.indexed_heap import IndexedHeap

if TYPE_CHECKING:
    from collections.abc import Callable


class EventQueue:
    """Calls by time; calls at equal times happen in the order in which they were scheduled.

    `now_ns` is the virtual time: that of the last instant processed. It never goes back.
    """

    def __init__(self, now_ns: int = 0) -> None:
        self.now_ns = now_ns
        self._times: IndexedHeap[int, int] = IndexedHeap()
        self._calls: dict[int, tuple[Callable[..., None], tuple[Any, ...]]] = {}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._calls)

    def schedule(self, at_ns: int, call: Callable[..., None], *args: Any) -> int:
        """Schedule `call(*args)` at `at_ns`, or at `now_ns` if that is later. Return the event's id for `cancel`."""
        self._last_id = event_id = self._last_id + 1
        self._calls[event_id] = (call, args)
        self._times.push(event_id, max(at_ns, self.now_ns))
        return event_id

    def cancel(self, event_id: int) -> None:
        """Cancel an event; do nothing if it has happened."""
        if self._calls.pop(event_id, None):
            self._times.remove(event_id)

    def next_ns(self) -> int | None:
        """Return the time of the next event, or None if there is none."""
        return self._times.smallest_priority()

    def step(self) -> bool:
        """Advance `now_ns` to the next event and run every event of that instant. Return False if there is none.

        An event that these schedule at the same instant runs in the next step, at the same `now_ns`.
        """
        at_ns = self._times.smallest_priority()
        if at_ns is None:
            return False
        self.now_ns = at_ns
        for event_id in self._times.pop_up_to(at_ns):
            if event := self._calls.pop(event_id, None):  # an event may cancel another of the same instant
                event[0](*event[1])
        return True

    def check(self) -> None:
        """Assert that every event has one time, and none is in the past."""
        self._times.check()
        assert set(self._times) == set(self._calls)
        assert all((self._times.priority(event_id) or 0) >= self.now_ns for event_id in self._calls)
