"""Queued requests: by model and deadline, and when each must be checked for being too late."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, ClassVar

from horologe_common.clock import NEVER_NS
from horologe_common.core.indexed_heap import COMPACT_ABOVE
from horologe_controller.core.scheduling.client_order import ClientOrder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from horologe_common.models import ModelSpec
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request

    QueueKey = tuple[int, bool]
    """(`shape_key`, best effort), within a model."""


class ModelQueue:
    """Queued requests of one model (and shape) in order of deadline, then arrival."""

    def __init__(
        self,
        spec: ModelSpec,
        shape_key: int = 0,
        best_effort: bool = False,
        number: int = 0,
        share: Share | None = None,
    ) -> None:
        self.spec = spec
        self.model = spec.key
        self.key = shape_key, best_effort
        self.best_effort = best_effort
        self.share = share
        """The only share that may run its requests (`Request.share`). None: any may."""
        self.number = number
        """Order of creation, which breaks ties in heaps."""
        self.rows = 0
        self.most_rows = 0
        """Largest value of `rows` since the last batch was popped: the next batch could have been that large."""
        self.derived: object = None
        """Values that the policy has computed from the present requests. Reset to None when they change."""
        self.clients: ClientOrder | None = None
        """Set while the queue is not empty, once it has had requests of two clients."""
        self._client = ""
        """The only client, if there is no `clients`."""
        self._lost_ns: int | None = None
        """When a request was last lost for lack of time."""
        self._deadlines: list[int] = []
        self._requests: list[Request] = []

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __getitem__(self, index: int) -> Request:
        return self._requests[index]

    __hash__: ClassVar[Any] = object.__hash__  # compiled, a class with `__lt__` has no other hash

    def __lt__(self, other: ModelQueue) -> bool:
        return self.number < other.number

    def record_loss(self, now_ns: int) -> None:
        """Note that a request of this queue was refused for lack of time."""
        self._lost_ns = now_ns

    def is_losing(self, now_ns: int) -> bool:
        """Return whether a request was lost within the budget of the newest one. Best-effort requests only wait."""
        return self.best_effort or (self._lost_ns is not None and now_ns - self._lost_ns <= self.newest_budget_ns())

    def insert(self, arrivals: Sequence[Request]) -> None:
        """Insert requests, in any order."""
        self.derived = None
        if (order := self._find_order(arrivals)) is not None:
            order.add(arrivals, self._requests)
        deadlines, requests, rows = self._deadlines, self._requests, self.rows
        for request in arrivals:
            deadline_ns = request.deadline_ns
            if not deadlines or deadlines[-1] <= deadline_ns:
                deadlines.append(deadline_ns)
                requests.append(request)
            else:
                at = bisect_right(deadlines, deadline_ns)
                deadlines.insert(at, deadline_ns)
                requests.insert(at, request)
            rows += request.rows
        self.rows = rows
        if rows > self.most_rows:
            self.most_rows = rows

    def _find_order(self, arrivals: Sequence[Request]) -> ClientOrder | None:
        """Return the order between clients; None while the queued requests and the arrivals are of one client."""
        if self.clients is None:
            if not self._requests:
                self._client = arrivals[0].client
            if any(request.client != self._client for request in arrivals):
                self.clients = ClientOrder(self.best_effort)
                self.clients.add(self._requests, ())
        return self.clients

    def find_displaced(self, arrival: Request) -> list[Request]:
        """Return queued requests of other clients whose place the arrival takes, if any (`ClientOrder`)."""
        order = self._find_order((arrival,))
        return [] if order is None else order.find_displaced(self, arrival)

    def place_of(self, request: Request) -> int:
        """Return the index of a request. Raises ValueError if it is not in this queue."""
        return self._requests.index(request, bisect_left(self._deadlines, request.deadline_ns))

    def remove(self, request: Request) -> None:
        self.derived = None
        at = self.place_of(request)
        del self._deadlines[at], self._requests[at]
        self.rows -= request.rows
        if self.clients is not None:
            self.clients.withdraw((request,))

    def pop_batch(self, places: range | tuple[int, ...], starts: bool = True) -> list[Request]:
        """Remove and return the requests at these ascending indexes. `starts`: they run now."""
        self.derived = None
        if isinstance(places, range):
            batch = self._requests[places.start : places.stop]
            del self._requests[places.start : places.stop], self._deadlines[places.start : places.stop]
        else:
            batch = [self._requests[place] for place in places]
            for place in reversed(places):
                del self._requests[place], self._deadlines[place]
        if self.clients is not None:
            (self.clients.start if starts else self.clients.withdraw)(batch)
        self.rows -= sum(request.rows for request in batch)
        self.most_rows = self.rows
        return batch

    def batch_sizes(self) -> tuple[int, ...]:
        """Return the batch sizes that the queue could have filled since its last batch, largest first."""
        sizes, rows = self.spec.batch_sizes, self.most_rows
        limit = rows if self.rows == len(self._requests) else self.spec.compiled_batch_size(min(rows, sizes[-1]))
        return sizes[bisect_right(sizes, limit, 1) - 1 :: -1]

    def newest_budget_ns(self) -> int:
        """Return the time between arrival and deadline of the request with the latest deadline."""
        newest = self._requests[-1]
        return newest.deadline_ns - newest.arrival_ns

    def first_in_time(self, end_ns: int, size: int) -> int:
        """Return the index of the first request that fits a batch of `size` and has its deadline at `end_ns` or later.

        The result is `len(self)` if there is none.
        """
        place = bisect_left(self._deadlines, end_ns)
        if self.rows > len(self._requests):
            while place < len(self._requests) and self._requests[place].rows > size:
                place += 1
        return place

    def least_rows_between(self, first_ns: int, last_ns: int) -> int:
        """Return how many rows have their deadlines between these times, at least: all, or one for each request."""
        place, end = bisect_left(self._deadlines, first_ns), bisect_right(self._deadlines, last_ns)
        return self.rows if end - place == len(self._requests) else max(0, end - place)

    def first_deadline_after(self, at_ns: int) -> int:
        """Return the first deadline at `at_ns` or later; `NEVER_NS` if there is none."""
        place = bisect_left(self._deadlines, at_ns)
        return self._deadlines[place] if place < len(self._deadlines) else NEVER_NS

    def count_filling(self, place: int, size: int) -> int:
        """Return how many requests from index `place` on make a batch of `size`; 0 if they are too few for that size.

        A batch is padded only if no smaller size holds its first request, or if the next request does not fit.
        Example: rows 3, 3, 3 and size 4 give 1, as the second request does not fit; rows 1 and size 4 give 0.
        """
        if self.rows == len(self._requests):  # all requests have one row, as nearly always
            count = rows = min(size, self.rows - place)
        else:
            count, rows = self._fit_rows(place, size)
        if rows == size or not count:
            return count
        compiled = self.spec.compiled_batch_size
        more = place + count < len(self._requests)
        return count if compiled(rows) == size and (more or compiled(self._requests[place].rows) == size) else 0

    def _fit_rows(self, place: int, size: int) -> tuple[int, int]:
        """Return (requests, rows) from index `place` on that fit into `size` rows, in order."""
        count = rows = 0
        for index in range(place, len(self._requests)):
            more = self._requests[index].rows
            if rows + more > size:
                break
            count += 1
            rows += more
        return count, rows


class RequestQueues:
    """All queues by model, and for each request the time when it must be checked for being too late."""

    def __init__(self) -> None:
        self._queues: dict[str, dict[QueueKey, ModelQueue]] = {}
        """Non-empty queues."""
        self.count = 0
        """Number of requests."""
        self.urgent: dict[Request, ModelQueue] = {}
        """Requests that go before all others after a while (`Request.urgent_ns`), in the order of arrival."""
        self._checks: list[tuple[int, int, Request]] = []
        """Heap of (`Request.check_ns`, id, request). An entry whose time is not that of its request is stale."""
        self._created = 0

    def __iter__(self) -> Iterator[ModelQueue]:
        for queues in self._queues.values():
            yield from queues.values()

    def of_model(self, model: str) -> Iterable[ModelQueue]:
        """Return the non-empty queues of a model."""
        queues = self._queues.get(model)
        return queues.values() if queues else ()

    def first_deadline_ns(self, model: str) -> int:
        """Return the earliest deadline of the model's requests. Raises ValueError if it has none."""
        return min([queue[0].deadline_ns for queue in self._queues[model].values()])

    def find_queue(self, request: Request) -> ModelQueue | None:
        """Return the queue for a request, or None if it is empty."""
        queues = self._queues.get(request.model)
        return queues.get((request.shape_key, request.best_effort)) if queues else None

    def enqueue(self, requests: Sequence[Request], exec_ns: int, queue: ModelQueue | None = None) -> ModelQueue:
        """Insert requests for one queue and return it. `exec_ns`: the shortest possible execution time of each.

        `queue`: what `find_queue` returned for them, if known.
        """
        if queue is None and (queue := self.find_queue(requests[0])) is None:
            queue = self._create_queue(requests[0])
        queue.insert(requests)
        self.count += len(requests)
        checks = self._checks
        for request in requests:
            request.queued = request.admitted = True
            request.check_ns = check_ns = request.deadline_ns - exec_ns + 1
            heappush(checks, (check_ns, request.id, request))
            if request.urgent_ns is not None:
                self.urgent[request] = queue
        if len(checks) > COMPACT_ABOVE and len(checks) > 2 * self.count:
            self._checks = [entry for entry in checks if entry[0] == entry[2].check_ns]
            heapify(self._checks)
        return queue

    def _create_queue(self, request: Request) -> ModelQueue:
        self._created += 1
        key = request.shape_key, request.best_effort
        queue = ModelQueue(request.spec, *key, self._created, request.share)
        self._queues.setdefault(request.model, {})[key] = queue
        return queue

    def dequeue(self, request: Request) -> ModelQueue:
        """Remove a request and return its queue."""
        queue = self._queues[request.model][request.shape_key, request.best_effort]
        queue.remove(request)
        self._discard(queue, [request])
        return queue

    def pop_batch(self, queue: ModelQueue, places: range | tuple[int, ...], starts: bool = True) -> list[Request]:
        """Remove and return the requests at these ascending indexes of a queue. `starts`: they run now."""
        batch = queue.pop_batch(places, starts)
        self._discard(queue, batch)
        return batch

    def _discard(self, queue: ModelQueue, requests: list[Request]) -> None:
        self.count -= len(requests)
        for request in requests:
            request.queued = False
            request.check_ns = None
            if self.urgent:
                self.urgent.pop(request, None)
        if not queue:
            queues = self._queues[queue.model]
            del queues[queue.key]
            if not queues:
                del self._queues[queue.model]

    def pop_overdue(self, now_ns: int) -> list[Request]:
        """Return the requests whose last possible start has passed. Each is returned once per `check_after`."""
        checks, overdue = self._checks, []
        while checks and checks[0][0] <= now_ns:
            check_ns, _, request = heappop(checks)
            if request.check_ns == check_ns:
                request.check_ns = None
                overdue.append(request)
        return overdue

    def check_after(self, request: Request, last_start_ns: int) -> None:
        """Let `pop_overdue` return the request once `last_start_ns` has passed."""
        request.check_ns = check_ns = last_start_ns + 1
        heappush(self._checks, (check_ns, request.id, request))

    def has_checks_due(self, now_ns: int) -> bool:
        """Return whether `pop_overdue` may have something to return."""
        return bool(self._checks) and self._checks[0][0] <= now_ns

    def next_overdue_ns(self) -> int | None:
        """Return when `pop_overdue` has something to return."""
        checks = self._checks
        while checks and checks[0][0] != checks[0][2].check_ns:
            heappop(checks)
        return checks[0][0] if checks else None

    def check(self) -> None:
        entries = {(check_ns, number) for check_ns, number, _ in self._checks}
        for queue in self:
            assert all((request.check_ns, request.id) in entries for request in queue if request.check_ns is not None)
            assert all(request.queued for request in queue)
            assert all((request in self.urgent) == (request.urgent_ns is not None) for request in queue)
        assert self.count == sum(map(len, self))
        for queue in self:
            assert queue.rows == sum(request.rows for request in queue) > 0
            if queue.clients is not None:
                queue.clients.check(queue)
            else:
                assert all(request.client == queue[0].client for request in queue)
            deadlines = [request.deadline_ns for request in queue]
            assert deadlines == sorted(deadlines) == queue._deadlines
