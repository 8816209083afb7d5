"""Requests waiting for execution, by model and deadline; who can still make it, and what is ahead of whom."""

from __future__ import annotations

import bisect
import heapq
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_common.models import ModelSpec


UNPLACED, FINISHED = 0, -1
"""In the place of an action's id: the request is in none yet, or has ended."""


class Request(msgspec.Struct, eq=False):
    """A submit as the controller holds it. `deadline_ns` is when EXEC must have ended."""

    id: int
    submitter: str
    submit_id: int
    spec: ModelSpec
    rows: int
    holder: str
    input_id: int
    arrival_ns: int
    deadline_ns: int
    best_effort: bool
    alike: int = 0
    action_id: int = UNPLACED
    attempts: int = 0
    queued: bool = False
    admitted: bool = False


class ModelQueue:
    """Waiting requests of one model (and shape) in order of deadline, then arrival."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.rows = 0
        self._order: list[tuple[int, int]] = []
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        key = (request.deadline_ns, request.id)
        at = len(self._order) if not self._order or self._order[-1] < key else bisect.bisect(self._order, key)
        self._order.insert(at, key)
        self._requests.insert(at, request)
        self.rows += request.rows

    def remove(self, request: Request) -> None:
        at = bisect.bisect_left(self._order, (request.deadline_ns, request.id))
        del self._order[at], self._requests[at]
        self.rows -= request.rows

    def first(self) -> Request:
        return self._requests[0]

    def rows_before(self, deadline_ns: int) -> int:
        """Rows with a deadline up to this, exactly for single-row requests and in proportion otherwise."""
        if not self._order:
            return 0
        return self.rows * bisect.bisect(self._order, (deadline_ns, 1 << 62)) // len(self._order)

    def batch(self, size: int, end_ns: int) -> list[Request]:
        """The earliest requests whose deadline is `end_ns` or later, up to `size` rows together."""
        chosen: list[Request] = []
        rows = 0
        start = bisect.bisect_left(self._order, (end_ns, 0))
        for index in range(start, len(self._requests)):
            request = self._requests[index]
            if rows + request.rows > size:
                break
            chosen.append(request)
            rows += request.rows
            if rows == size:
                break
        return chosen


class Backlog:
    """All queues, those with a deadline and the best-effort ones, and a heap of last possible starts."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], ModelQueue] = {}
        """(model key, `alike`) -> queue of requests with a deadline; only those that hold any."""
        self.best_effort: dict[tuple[str, int], ModelQueue] = {}
        self._last_starts: list[tuple[int, int, Request]] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, request: Request, exec_ns: int) -> None:
        """Queue; `exec_ns` is the shortest time in which it could be run."""
        queues = self.best_effort if request.best_effort else self.queues
        key = (request.spec.key, request.alike)
        queue = queues.get(key)
        if queue is None:
            queue = queues[key] = ModelQueue(request.spec)
        queue.add(request)
        self._size += 1
        request.queued = True
        heapq.heappush(self._last_starts, (request.deadline_ns - exec_ns, request.id, request))

    def remove(self, request: Request) -> None:
        queues = self.best_effort if request.best_effort else self.queues
        key = (request.spec.key, request.alike)
        queue = queues[key]
        queue.remove(request)
        self._size -= 1
        request.queued = False
        if not queue:
            del queues[key]

    def overdue(self, now_ns: int) -> Iterator[Request]:
        """Take, one by one, the queued requests whose last possible start (as of `add`) has passed."""
        heap = self._last_starts
        while heap and (heap[0][0] < now_ns or not heap[0][2].queued):
            request = heapq.heappop(heap)[2]
            if request.queued:
                yield request

    def again(self, request: Request, last_start_ns: int) -> None:
        """Ask `overdue` again at `last_start_ns`."""
        heapq.heappush(self._last_starts, (last_start_ns, request.id, request))

    def next_overdue_ns(self) -> int | None:
        heap = self._last_starts
        while heap and not heap[0][2].queued:
            heapq.heappop(heap)
        return heap[0][0] + 1 if heap else None

    def check(self) -> None:
        queues = (*self.queues.values(), *self.best_effort.values())
        assert self._size == sum(map(len, queues))
        for queue in queues:
            assert queue.rows == sum(request.rows for request in queue) > 0
            order = [(request.deadline_ns, request.id) for request in queue]
            assert order == sorted(order)
