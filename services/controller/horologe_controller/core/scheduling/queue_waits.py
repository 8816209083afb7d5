"""Queues that wait: for more requests, so that a larger batch can be made, or until device time is worth less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from horologe_common.core.indexed_heap import IndexedHeap

if TYPE_CHECKING:
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import ModelQueue


class QueueWaits:
    """Queues that wait, each until a time. A queue is identified by its first request."""

    def __init__(self) -> None:
        self._timers: IndexedHeap[Any, int] = IndexedHeap()
        self.held: dict[int, ModelQueue] = {}
        """Waiting queues by the id of their first request."""

    def hold_queue(self, queue: ModelQueue, until_ns: int) -> None:
        """Have the queue examined again at `until_ns`, or when requests arrive. The earliest time counts."""
        key = queue[0].id
        held_ns = self._timers.priority(key)
        if held_ns is None or until_ns < held_ns:
            self.held[key] = queue
            self._timers.push(key, until_ns)

    def release_requests(self, requests: list[Request]) -> None:
        """End the waits of queues whose first request is among those that have left."""
        for request in requests:
            if self.held.pop(request.id, None) is not None:
                self._timers.remove(request.id)

    def pop_expired(self, now_ns: int) -> list[ModelQueue]:
        """Remove and return the queues that have waited long enough."""
        return [self.held.pop(key) for key in self._timers.pop_up_to(now_ns)]

    def next_ns(self) -> int | None:
        """Return when the next wait ends."""
        return self._timers.smallest_priority()

    def check(self) -> None:
        self._timers.check()
        assert set(self._timers) == set(self.held)
