"""Admission: refuse a request on arrival that cannot be expected to end in time behind the work ahead of it."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS, s
from horologe_controller.core.scheduling.queued_work import SharePools
from horologe_controller.core.scheduling.scheduler import Reason, Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.models import ModelSpec
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queued_work import SharePool
    from horologe_controller.core.scheduling.queues import ModelQueue

HEADROOM, MAX_HEADROOM = 10, 4
"""Behind other requests, a tenth of the budget is reserved for their running longer than predicted. Where EXECs have
recently overrun by more, that much is reserved, up to a quarter of the budget."""
RELIEF = 400
"""Aim at one late refusal in 400 admitted requests. A request of 5 ms that was admitted and refused later raises
caution about its model by 5 ms. Each request of 5 ms that runs lowers it by 5 ms / 400."""
CAUTION_LIMIT_NS = s(1)
BEST_EFFORT_PART = 1000
"""Best-effort work counts a thousandth: its models are loaded last."""
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
        self.at(now_ns)
        if 0 < wait_ns < self._present_ns:
            self._present_ns = wait_ns

    def at(self, now_ns: int) -> int:
        """Return the shortest wait in the present and the last window."""
        if now_ns >= self.window_end_ns:
            self._before_ns = self._present_ns if now_ns < self.window_end_ns + WINDOW_NS else NEVER_NS
            self._present_ns, self.window_end_ns = NEVER_NS, now_ns + WINDOW_NS
        return min(self._present_ns, self._before_ns)


class Admission:
    """Sums up the queued work, and becomes more cautious about models whose requests were admitted in vain.

    If it is off, it refuses only requests that would be late without any other, and sums up nothing.
    """

    def __init__(self, enabled: bool) -> None:
        self.shortest_wait = ShortestWait()
        self._enabled = enabled
        self._pools = SharePools()
        self._pool_of: dict[ModelQueue, SharePool] = {}
        """Pool in which each non-empty queue is counted."""
        self._caution_ns: dict[str, int] = {}

    def refuse_on_arrival(
        self, now_ns: int, requests: Sequence[Request], exec_ns: int, cluster: Cluster, rows: int | None, expires: bool
    ) -> Refusal | None:
        """Return a refusal of the first request unless all can be expected to end in time.

        The requests are for one queue and have equal rows. The first has the earliest deadline: a later one leaves more
        time. One of them alone takes `exec_ns`. `rows`: those in the queue already, or None if queued work does not
        count. `expires`: only the deadline counts.
        """
        first, budget_ns = requests[0], requests[0].deadline_ns - requests[0].arrival_ns
        self.shortest_wait.record(now_ns, budget_ns - budget_ns // HEADROOM - exec_ns)
        refusal = refuse_in_backoff(now_ns, first, exec_ns, cluster)
        if refusal is not None or expires:
            return refusal
        if rows is not None and self._enabled:
            return self.refuse_crowded_out(now_ns, requests, exec_ns, cluster, rows)
        late_ns = now_ns + cluster.latency.dispatch_ns + exec_ns - first.deadline_ns
        return Refusal(first, Reason.EXECUTION_TOO_LONG, late_ns) if late_ns > 0 else None

    def refuse_crowded_out(
        self, now_ns: int, requests: Sequence[Request], exec_ns: int, cluster: Cluster, rows: int
    ) -> Refusal | None:
        """Return a refusal of the first request if it might miss its deadline behind other work.

        That work is due by the last deadline of the requests, or is that of the requests behind it.
        """
        request, delay_ns = requests[0], self._queueing_delay_ns(now_ns, requests, cluster, rows)
        begin_ns = now_ns + max(delay_ns, cluster.latency.dispatch_ns)
        end_ns = begin_ns + exec_ns + min(self._headroom_ns(now_ns, request, cluster), delay_ns)
        if end_ns <= request.deadline_ns:
            return None
        if request.admitted and len(requests) == 1:
            self.raise_caution(request, exec_ns)
        return Refusal(request, Reason.WORK_AHEAD, end_ns - request.deadline_ns)

    def count_requests(self, now_ns: int, requests: Sequence[Request], queue: ModelQueue, cluster: Cluster) -> None:
        """Count requests that were queued. The cost of a request is its part of the queue's work."""
        work_ns = _work_ns(now_ns, queue.spec, queue.rows, cluster)
        rows, part = queue.rows, BEST_EFFORT_PART if queue.best_effort else 1
        for request in requests:
            request.cost_ns = work_ns * request.rows // rows // part or 1
        if self._enabled and not queue.best_effort:
            pool, before = self._pools.of_model(queue.model, cluster), self._pool_of.get(queue)
            if pool is not before:
                self._pool_of[queue] = pool
                if before is not None:
                    before.move_queue(queue, pool, requests)
            pool.queued.add(requests)
            pool.update_work(queue, work_ns)

    def discount_requests(self, now_ns: int, requests: Sequence[Request], queue: ModelQueue, cluster: Cluster) -> None:
        """Stop counting requests that have left their queue."""
        if self._enabled and not queue.best_effort:
            pool = self._pool_of[queue]
            pool.queued.add(requests, -1)
            pool.update_work(queue, _work_ns(now_ns, queue.spec, queue.rows, cluster))
            if not queue:
                del self._pool_of[queue]

    def raise_caution(self, request: Request, exec_ns: int) -> None:
        """Reserve `exec_ns` more for the model's next requests: this one was admitted and did not run in time."""
        model = request.model
        if self._enabled:
            self._caution_ns[model] = min(self._caution_ns.get(model, 0) + exec_ns, CAUTION_LIMIT_NS)

    def lower_caution(self, model: str, requests: int, exec_ns: int) -> None:
        """Reserve less for the model: a batch of its requests, of which one alone takes `exec_ns`, runs in time."""
        if caution_ns := self._caution_ns.get(model):
            self._caution_ns[model] = max(0, caution_ns - requests * exec_ns // RELIEF)

    def check(self, queues: Iterable[ModelQueue]) -> None:
        self._pools.check(sum(queue.work_ns for queue in queues if not queue.best_effort))

    def _queueing_delay_ns(self, now_ns: int, requests: Sequence[Request], cluster: Cluster, rows: int) -> int:
        """Return the time until a capable share is free, if all requests with earlier deadlines go first."""
        first, count = requests[0], len(requests)
        pool = self._pools.of_model(first.model, cluster)
        if not pool.shares:  # its workers may reconnect in time
            return 0
        lanes = None if len(pool.shares) == cluster.size else [share.exec for share in pool.shares]
        work_ns = cluster.outstanding.total_ns(now_ns, lanes) + pool.work_ahead_ns(requests[-1].deadline_ns)
        if count > 1:
            more_ns = _work_ns(now_ns, first.spec, rows + count * first.rows, cluster)
            more_ns = max(0, more_ns - _work_ns(now_ns, first.spec, rows, cluster))
            work_ns += more_ns * (count - 1) // count
        return work_ns // len(pool.shares)

    def _headroom_ns(self, now_ns: int, request: Request, cluster: Cluster) -> int:
        """Return how long before its deadline a request behind others must end, by the estimates."""
        budget_ns = max(0, request.deadline_ns - now_ns)
        overrun_ns = min(cluster.latency.overruns.high_quantile(now_ns) or 0, budget_ns // MAX_HEADROOM)
        return max(budget_ns // HEADROOM, overrun_ns) + self._caution_ns.get(request.model, 0)


def _work_ns(now_ns: int, spec: ModelSpec, rows: int, cluster: Cluster) -> int:
    """Return the median execution time of `rows` of a model, in batches of the largest size that they fill."""
    if not rows:
        return 0
    sizes = spec.batch_sizes
    size = sizes[max(1, bisect_right(sizes, rows)) - 1]
    return rows * cluster.cached_exec_ns(now_ns, spec.key, size)[1] // min(size, rows)
