"""Queues that wait for more requests, so that a larger batch can be made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.core.indexed_heap import Timers

if TYPE_CHECKING:
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import ModelQueue


class QueueWaits:
    """Queues that wait for more requests, each until a time. A queue is identified by its first request."""

    def __init__(self) -> None:
        self._timers = Timers()
        self.held: dict[int, ModelQueue] = {}
        """Waiting queues by the id of their first request."""
        self._rows: dict[int, int] = {}
        """Rows that they wait for, if this is what they wait for."""

    def hold_queue(self, queue: ModelQueue, until_ns: int, rows: int = 0) -> None:
        """Have the queue examined again at `until_ns`, or when it has `rows` rows; 0: whenever requests arrive.

        Of several calls the earliest time and the fewest rows count.
        """
        key = queue[0].id
        held_ns = self._timers.priority(key)
        if held_ns is None or until_ns < held_ns:
            self.held[key] = queue
            self._timers.arm(key, until_ns)
        self._rows[key] = rows if held_ns is None else min(rows, self._rows[key])

    def is_too_small(self, queue: ModelQueue) -> bool:
        """Return whether the queue waits for more rows than it has."""
        return queue.rows < self._rows.get(queue[0].id, 0)

    def release_requests(self, requests: list[Request]) -> None:
        """End the waits of queues whose first request is among those that have left."""
        for request in requests:
            if self.held.pop(request.id, None) is not None:
                self._timers.cancel(request.id)
                del self._rows[request.id]

    def pop_expired(self, now_ns: int) -> list[ModelQueue]:
        """Remove and return the queues that have waited long enough."""
        expired = self._timers.pop_expired(now_ns)
        for key in expired:
            del self._rows[key]
        return [self.held.pop(key) for key in expired]

    def next_ns(self) -> int | None:
        """Return when the next wait ends."""
        return self._timers.next_ns()

    def check(self) -> None:
        self._timers.check()
        assert set(self._timers) == set(self.held) == set(self._rows)
