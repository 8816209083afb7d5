"""Requests waiting for execution, by model and deadline; who can still make it, and what is ahead of whom."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from horologe_common.models import ModelSpec
    from horologe_controller.core.requests.request import Request

    QueueKey = tuple[int, bool]
    """(`shape_key`, best effort), within a model."""

SWEEP_FROM = 64


class ModelQueue:
    """Waiting requests of one model (and shape) in order of deadline, then arrival."""

    def __init__(self, spec: ModelSpec, shape_key: int = 0, best_effort: bool = False) -> None:
        self.spec = spec
        self.model = spec.key
        self.key = shape_key, best_effort
        self.best_effort = best_effort
        self.rows = 0
        self.most_rows = 0
        """Most rows there were since the last batch was taken: so large the next could have been."""
        self.work_ns = 0
        """What its rows were taken to take when last counted (admission.py)."""
        self._deadlines: list[int] = []
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    def add(self, request: Request) -> None:
        deadlines, deadline_ns = self._deadlines, request.deadline_ns
        if not deadlines or deadlines[-1] <= deadline_ns:
            deadlines.append(deadline_ns)
            self._requests.append(request)
        else:
            at = bisect_right(deadlines, deadline_ns)
            deadlines.insert(at, deadline_ns)
            self._requests.insert(at, request)
        self.rows += request.rows
        if self.rows > self.most_rows:
            self.most_rows = self.rows

    def place(self, request: Request) -> int:
        """Where it is. Raises ValueError if it is not here."""
        return self._requests.index(request, bisect_left(self._deadlines, request.deadline_ns))

    def remove(self, request: Request) -> None:
        at = self.place(request)
        del self._deadlines[at], self._requests[at]
        self.rows -= request.rows

    def take(self, places: range | tuple[int, ...]) -> list[Request]:
        """Remove and return the requests at these places, in order."""
        if isinstance(places, range):
            taken = self._requests[places.start : places.stop]
            del self._requests[places.start : places.stop], self._deadlines[places.start : places.stop]
        else:
            taken = [self._requests[place] for place in places]
            for place in reversed(places):
                del self._requests[place], self._deadlines[place]
        self.rows -= sum(request.rows for request in taken)
        self.most_rows = self.rows
        return taken

    def sizes(self) -> Iterator[int]:
        """Batch sizes that the queue could have filled since the last batch was taken, largest first."""
        sizes, rows = self.spec.batch_sizes, self.most_rows
        limit = rows if self.rows == len(self._requests) else self.spec.compiled_batch_size(min(rows, sizes[-1]))
        return (size for size in reversed(sizes) if size <= limit or size == sizes[0])

    def newest_budget_ns(self) -> int:
        """How long the request with the latest deadline was given."""
        newest = self._requests[-1]
        return newest.deadline_ns - newest.arrival_ns

    def newest_arrival_ns(self) -> int:
        """When the request with the latest deadline came."""
        return self._requests[-1].arrival_ns

    def surviving(self, end_ns: int, size: int) -> int:
        """The place of the first request that a batch of `size` holds and whose deadline is `end_ns` or later."""
        place = bisect_left(self._deadlines, end_ns)
        if self.rows > len(self._requests):
            while place < len(self._requests) and self._requests[place].rows > size:
                place += 1
        return place

    def filling(self, place: int, size: int) -> int:
        """How many requests from `place` on make a batch of `size`; 0 where there are too few for that size.

        A size is padded only where no smaller one holds the first request, or where the next one does not fit.
        """
        if self.rows == len(self._requests):  # single rows, as nearly always
            count = rows = min(size, self.rows - place)
        else:
            count, rows = self._fit(place, size)
        if rows == size or not count:
            return count
        compiled = self.spec.compiled_batch_size
        more = place + count < len(self._requests)
        return count if compiled(rows) == size and (more or compiled(self._requests[place].rows) == size) else 0

    def _fit(self, place: int, size: int) -> tuple[int, int]:
        """(requests, rows) from `place` on that fit into `size` rows, in order."""
        count = rows = 0
        for index in range(place, len(self._requests)):
            more = self._requests[index].rows
            if rows + more > size:
                break
            count += 1
            rows += more
        return count, rows


class Backlog:
    """All queues by model, and a heap of last possible starts."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[QueueKey, ModelQueue]] = {}
        """Only those that hold any request."""
        self._requests: dict[int, Request] = {}
        self._looks: list[tuple[int, int, Request]] = []
        """A heap. Only entries of queued requests with the same `look_ns` count."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[ModelQueue]:
        for queues in self._queues.values():
            yield from queues.values()

    def of(self, model: str) -> Iterable[ModelQueue]:
        """The queues of a model."""
        queues = self._queues.get(model)
        return queues.values() if queues else ()

    def add(self, request: Request, exec_ns: int) -> ModelQueue:
        """Put it into its queue, which is returned; `exec_ns` is the shortest time in which it could be run."""
        queues = self._queues.get(request.model)
        if queues is None:
            queues = self._queues[request.model] = {}
        key = request.shape_key, request.best_effort
        queue = queues.get(key)
        if queue is None:
            queue = queues[key] = ModelQueue(request.spec, *key)
        queue.add(request)
        request.queued = True
        self._requests[request.id] = request
        self.again(request, request.deadline_ns - exec_ns)
        return queue

    def remove(self, request: Request) -> ModelQueue:
        """Out of its queue, which is returned."""
        queue = self._queues[request.model][request.shape_key, request.best_effort]
        queue.remove(request)
        self._left(queue, [request])
        return queue

    def take(self, queue: ModelQueue, places: range | tuple[int, ...]) -> list[Request]:
        """Remove and return a batch."""
        taken = queue.take(places)
        self._left(queue, taken)
        return taken

    def _left(self, queue: ModelQueue, requests: list[Request]) -> None:
        for request in requests:
            request.queued = False
            del self._requests[request.id]
        if not queue:
            queues = self._queues[queue.model]
            del queues[queue.key]
            if not queues:
                del self._queues[queue.model]

    def overdue(self, now_ns: int) -> list[Request]:
        """The requests whose last possible start (as of `add` or `again`) has passed; each is told of once."""
        found = []
        while (at_ns := self.next_overdue_ns()) is not None and at_ns <= now_ns:
            request = heapq.heappop(self._looks)[2]
            request.look_ns = 0
            found.append(request)
        return found

    def again(self, request: Request, last_start_ns: int) -> None:
        """`overdue` is to tell of it once `last_start_ns` has passed."""
        request.look_ns = last_start_ns + 1
        heapq.heappush(self._looks, (request.look_ns, request.id, request))
        if len(self._looks) > 2 * len(self._requests) + SWEEP_FROM:
            self._looks = [entry for entry in self._looks if entry[2].queued and entry[2].look_ns == entry[0]]
            heapq.heapify(self._looks)

    def next_overdue_ns(self) -> int | None:
        looks = self._looks
        while looks and not (looks[0][2].queued and looks[0][2].look_ns == looks[0][0]):
            heapq.heappop(looks)
        return looks[0][0] if looks else None

    def check(self) -> None:
        looked_at = {request.id for at_ns, _, request in self._looks if at_ns == request.look_ns}
        assert all(request.id in looked_at for request in self._requests.values() if request.look_ns)
        assert len(self) == sum(map(len, self))
        for queue in self:
            assert queue.rows == sum(request.rows for request in queue) > 0
            deadlines = [request.deadline_ns for request in queue]
            assert deadlines == sorted(deadlines) == queue._deadlines
