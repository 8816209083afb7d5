"""Refusals: on arrival, of queued requests that are too late for any batch, or for the batch that was formed."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS, ms, s
from horologe_controller.core.scheduling.decisions import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import ModelQueue, RequestQueues
    from horologe_controller.core.scheduling.scheduling_policy import SchedulingPolicy

RESERVED_PART = 0.5
"""The work ahead of the last full batches is taken to need this much more than the median time. On a busy machine of
two cores, one request in a hundred waits for 1.3 times as long as all medians ahead of it say: what is admitted under
overload would end as often just after its deadline as just before it (experiments/results/schedulers.md)."""
BEST_EFFORT_PART = 1000
"""Best-effort work counts a thousandth: its models are loaded last."""
LASTING_NS = ms(10)
"""Most for which a refusal lasts: Results, cancellations and other events may make room earlier than it says. The work
ahead keeps the shares busy for longer than that, unless the budget is shorter."""
WINDOW_NS = s(2)
"""Length of a window of `ShortestWait`. A request counts in its own window and in the next one."""


def refuse_in_backoff(now_ns: int, request: Request, exec_ns: int, cluster: Cluster) -> Refusal | None:
    """Return a refusal if every share refuses to load the request's model until it is too late."""
    if not (retry_ns := cluster.load_retry_ns(request.model)):
        return None
    late_ns = max(now_ns, retry_ns) + cluster.profiled_load_ns(request.model) + exec_ns - request.deadline_ns
    return Refusal(request, Reason.LOAD_BACKOFF, late_ns) if late_ns > 0 else None


class ShortestWait:
    """Shortest time that a recent request could have waited behind other work, by window."""

    def __init__(self) -> None:
        self.window_end_ns = 0
        self._present_ns = self._before_ns = NEVER_NS

    def record(self, now_ns: int, wait_ns: int) -> None:
        """Add a request. One that was too late already does not count."""
        if now_ns >= self.window_end_ns:
            self._begin_window(now_ns)
        if 0 < wait_ns < self._present_ns:
            self._present_ns = wait_ns

    def at(self, now_ns: int) -> int:
        """Return the shortest wait in the present and the last window."""
        if now_ns >= self.window_end_ns:
            self._begin_window(now_ns)
        return min(self._present_ns, self._before_ns)

    def _begin_window(self, now_ns: int) -> None:
        self._before_ns = self._present_ns if now_ns < self.window_end_ns + WINDOW_NS else NEVER_NS
        self._present_ns, self.window_end_ns = NEVER_NS, now_ns + WINDOW_NS


class Admission:
    """Refuses what must be late: alone, or behind the requests of its own queue with earlier deadlines.

    These count if they could be in time in a full batch. They go first, and take at least as long as full batches on
    all shares. So a refusal costs little: if the request were queued, it would be given up later, or another one in its
    place. How much time other models get is for the policy to decide, batch by batch.
    """

    def __init__(self, enabled: bool, cluster: Cluster) -> None:
        self.shortest_wait = ShortestWait()
        self._cluster = cluster
        self._enabled = enabled

    def refuse_on_arrival(
        self,
        now_ns: int,
        requests: Sequence[Request],
        exec_ns: int,
        queue: ModelQueue | None,
        counted: bool,
        expires: bool,
    ) -> Refusal | None:
        """Return a refusal of the first request unless all may end in time.

        The requests are for one queue and have equal rows. The first has the earliest deadline: a later one leaves more
        time. One of them alone takes `exec_ns`. `queue`: None if it is empty. `counted`: what it holds counts.
        `expires`: only the deadline counts.
        """
        first, budget_ns = requests[0], requests[0].deadline_ns - requests[0].arrival_ns
        cluster = self._cluster
        self.shortest_wait.record(now_ns, budget_ns - exec_ns)
        refusal = refuse_in_backoff(now_ns, first, exec_ns, cluster)
        if refusal is not None or expires:
            return refusal
        late_ns = now_ns + cluster.latency.dispatch_ns + exec_ns - first.deadline_ns
        if late_ns > 0:
            shares = len(cluster.capable.get(first.model, ())) or 1
            return Refusal(first, Reason.EXECUTION_TOO_LONG, late_ns, LASTING_NS, exec_ns // shares)
        if not counted or not self._enabled:
            return None
        late_ns, fewer_ns, place_ns = _least_lateness_ns(now_ns, requests, exec_ns, cluster, queue)
        if late_ns <= 0:
            return None
        refuses_ns = min(late_ns - (now_ns - first.arrival_ns), fewer_ns, LASTING_NS)
        return Refusal(first, Reason.WORK_AHEAD, late_ns, refuses_ns, place_ns)


def _least_lateness_ns(
    now_ns: int, requests: Sequence[Request], exec_ns: int, cluster: Cluster, queue: ModelQueue | None
) -> tuple[int, int, int]:
    """Return how much later than the first deadline the last request ends, in full batches on all capable shares.

    If these are more than one for each share, they run after what is in flight. For fewer, it does not count: requests
    that come together would be admitted in part, and the batches of clients that ask again at once would stay small
    (Clockwork's Fig. 5 with an SLO of 25 ms: 0.90 instead of 1.00 of the bound).

    Also return the time until fewer queued requests count, and the work of one request. Until then, a request with the
    same budget that comes a time later is less late by at most that time.
    """
    first = requests[0]
    shares = cluster.capable.get(first.model, ()) if first.share is None else (first.share,)
    budget_ns, time_ns, rows = first.deadline_ns - now_ns, exec_ns, len(requests) * first.rows
    most_rows, fewer_ns, row_ns = rows + queue.rows if queue else rows, NEVER_NS, 0.0
    # what takes half of the budget one by one makes nothing late: the other half is for what is in flight, and for
    # batches that take longer than their requests alone. Without shares, workers may reconnect in time
    if most_rows > first.rows and shares and 2 * most_rows * exec_ns > budget_ns * len(shares):
        times_ns = [(cluster.cached_exec_ns(now_ns, first.model, size)[1], size) for size in first.spec.batch_sizes]
        fitting = [(ns / size, ns, size) for ns, size in times_ns if ns <= budget_ns]
        row_ns, batch_ns, size = min(fitting, default=(0.0, 0, 1))  # too late even on an idle share
        if queue:
            rows += queue.least_rows_between(now_ns + batch_ns, requests[-1].deadline_ns)
            fewer_ns = queue.first_deadline_after(now_ns + batch_ns) - now_ns - batch_ns
        work_ns = rows * row_ns
        if (waiting := rows - len(shares) * size) > 0:
            work_ns += sum([share.exec.free_at(now_ns) - now_ns for share in shares])
            work_ns += RESERVED_PART * waiting * row_ns
        time_ns = max(exec_ns, int(work_ns) // len(shares))
    place_ns = int((1 + RESERVED_PART) * first.rows * row_ns) // max(1, len(shares))
    return time_ns - budget_ns, fewer_ns, place_ns


def count_cost(now_ns: int, requests: Iterable[Request], queue: ModelQueue, cluster: Cluster) -> None:
    """Set the cost of queued requests: their part of what the queue takes in batches of the size that it fills now."""
    rows, sizes = queue.rows, queue.spec.batch_sizes
    size = sizes[max(1, bisect_right(sizes, rows)) - 1]
    work_ns = rows * cluster.cached_exec_ns(now_ns, queue.model, size)[1] // min(size, rows)
    part = BEST_EFFORT_PART if queue.best_effort else 1
    for request in requests:
        request.cost_ns = work_ns * request.rows // rows // part or 1


class LateRefusals:
    """Removes late requests from their queues. `on_dequeued` gets the requests that have left a queue."""

    def __init__(
        self,
        policy: SchedulingPolicy,
        queues: RequestQueues,
        on_dequeued: Callable[[list[Request], ModelQueue], None],
    ) -> None:
        self._policy = policy
        self._queues = queues
        self._on_dequeued = on_dequeued

    def refuse_overdue(self, now_ns: int) -> Iterator[Refusal]:
        """Refuse queued requests that are too late by the policy's deadline rule: with workers, or without any."""
        policy, expires = self._policy, self._policy.deadline_rule == "expire"
        reason = Reason.EXPIRED if expires else Reason.OVERDUE
        for request in self._queues.pop_overdue(now_ns):
            exec_ns = 1 if expires else policy.shortest_exec_ns(now_ns, request)
            if exec_ns and now_ns + exec_ns <= request.deadline_ns:
                self._queues.check_after(request, request.deadline_ns - exec_ns)
                continue
            queue = self._queues.dequeue(request)
            self._on_dequeued([request], queue)
            if not request.best_effort and request.model in self._policy.cluster.capable:
                queue.record_loss(now_ns)
                policy.on_request_late(now_ns, request)
            if expires:
                exec_ns = policy.shortest_exec_ns(now_ns, request)
            if request.model in self._policy.cluster.capable:
                yield Refusal(request, reason, now_ns + exec_ns - request.deadline_ns)
            else:
                yield Refusal(request, Reason.NO_WORKER)

    def drop_heads(self, now_ns: int, queue: ModelQueue, count: int) -> Iterator[Refusal]:
        """Refuse the first `count` requests of a queue."""
        heads = self._queues.pop_batch(queue, range(count), starts=False)
        self._on_dequeued(heads, queue)
        for request in heads:
            late_ns = now_ns + self._policy.shortest_exec_ns(now_ns, request) - request.deadline_ns
            yield Refusal(request, Reason.BATCH_FORMED, late_ns)
