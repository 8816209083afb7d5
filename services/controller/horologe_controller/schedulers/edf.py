"""Earliest deadline first: the request with the least time left goes next, with as many of its model as still fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_controller.placement import loads
from horologe_controller.queues import Backlog, ModelQueue
from horologe_controller.scheduler import Batch, Plan, Refusal

if TYPE_CHECKING:
    from horologe_controller.cluster import Action, Cluster, Share
    from horologe_controller.queues import Request
    from horologe_controller.settings import Settings


HEADROOM, MOST_HEADROOM = 10, 4
"""Where others wait ahead, a tenth of a budget is kept for their taking longer than predicted; at most a quarter."""
RELIEF = 400
"""A request that is run takes back 1/400 of what one admitted in vain adds: about one in 400 is refused late."""
CAUTION_LIMIT_NS = s(1)


class Edf:
    """Also what the other schedulers build on: queueing, refusal, loading and the look-ahead; `_pick` is the policy."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.backlog = Backlog()
        self._caution_ns: dict[str, int] = {}
        self._memo_ns = -1
        self._exec_memo: dict[tuple[str, int], int | None] = {}
        self._typical_memo: dict[tuple[str, int], int] = {}
        self._free_memo: dict[str, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self.backlog)

    def add(self, now_ns: int, request: Request, cluster: Cluster) -> Refusal | None:
        """Queue, unless what is ahead of it already takes too long (or nothing can run it at all)."""
        spec = request.spec
        exec_ns = self._exec_ns(now_ns, spec.key, spec.compiled(request.rows), cluster)
        if exec_ns is None:
            return Refusal(request, "no worker can serve this model")
        if not request.best_effort:
            end_ns = self._start_ns(now_ns, request, cluster) + exec_ns
            end_ns += min(self._headroom_ns(now_ns, request, cluster), end_ns - now_ns - exec_ns)
            if end_ns > request.deadline_ns:
                if request.admitted:
                    self._learn(spec.key, exec_ns)
                return Refusal(request, "the work ahead of it takes past its deadline", end_ns - request.deadline_ns)
        request.admitted = True
        self.backlog.add(request, exec_ns)
        return None

    def remove(self, request: Request) -> None:
        self.backlog.remove(request)

    def observe(self, now_ns: int, action: Action, took_ns: int) -> None:
        """Nothing to learn here: the cluster keeps the estimates."""

    def check(self) -> None:
        self.backlog.check()

    def plan(self, now_ns: int, cluster: Cluster) -> Plan:
        self._memo_ns = -1
        plan = Plan([], [], [], [], None)
        if not self.backlog and not (self.settings.preload and cluster.has_room()):
            return plan
        plan.refuse = self._refusals(now_ns, cluster)
        if self._wants_loads(cluster):
            demand_ns = self.demand_ns(now_ns, cluster)
            plan.load, plan.unload = loads(
                now_ns, demand_ns, cluster, self.settings.lookahead_ns, self.settings.preload
            )
        doomed = {(id(share), model): True for share, model in plan.unload}
        wakes = [self.backlog.next_overdue_ns()]
        for share in cluster.shares():
            if share.exec.overdue(now_ns, self.settings.action_grace_ns):
                continue
            wakes.append(self._fill(now_ns, share, doomed, plan))
        plan.wake_ns = min((at for at in wakes if at is not None and at > now_ns), default=None)
        return plan

    def _wants_loads(self, cluster: Cluster) -> bool:
        """Whether a model in demand is missing somewhere, or one may be loaded ahead of any demand."""
        if self.settings.preload and cluster.has_room():
            return True
        return any(
            model not in share.resident
            for queues in (self.backlog.queues, self.backlog.best_effort)
            for model, _ in queues
            for share in cluster.shares()
        )

    def demand_ns(self, now_ns: int, cluster: Cluster) -> dict[str, int]:
        """Queued execution time per model, at the efficiency of full batches."""
        demand: dict[str, int] = {}
        for queues in (self.backlog.queues, self.backlog.best_effort):
            for (model, _), queue in queues.items():
                demand[model] = demand.get(model, 0) + queue.rows * self._row_ns(now_ns, queue, cluster)
        return demand

    def _headroom_ns(self, now_ns: int, request: Request, cluster: Cluster) -> int:
        """How much earlier than its deadline a request should end, by the estimates, to be admitted behind others."""
        budget_ns = max(0, request.deadline_ns - now_ns)
        overrun_ns = min(cluster.overruns.high(now_ns) or 0, budget_ns // MOST_HEADROOM)
        return max(budget_ns // HEADROOM, overrun_ns) + self._caution_ns.get(request.spec.key, 0)

    def _row_ns(self, now_ns: int, queue: ModelQueue, cluster: Cluster) -> int:
        """What a row mostly takes in a batch as large as the queue allows, asked once per instant."""
        self._remember(now_ns)
        spec = queue.spec
        size = spec.compiled(min(queue.rows, spec.max_batch))
        key = (spec.key, size)
        if (exec_ns := self._typical_memo.get(key)) is None:
            exec_ns = self._typical_memo[key] = cluster.typical_exec_ns(now_ns, spec.key, size)
        return exec_ns // min(size, queue.rows)

    def _start_ns(self, now_ns: int, request: Request, cluster: Cluster) -> int:
        """When the request could start if all with an earlier deadline went first, spread over all shares."""
        shares, free_ns = self._free_ns(now_ns, request.spec.key, cluster)
        if not shares:  # its workers may come back in time
            return now_ns
        ahead_ns = sum(
            queue.rows_before(request.deadline_ns) * self._row_ns(now_ns, queue, cluster)
            for queue in self.backlog.queues.values()
        )
        return now_ns + (ahead_ns + free_ns) // shares

    def _exec_ns(self, now_ns: int, model: str, size: int, cluster: Cluster) -> int | None:
        """`best_exec_ns`, asked once per instant: a drain of 64 requests wants the same answer 128 times."""
        self._remember(now_ns)
        key = (model, size)
        if key not in self._exec_memo:
            self._exec_memo[key] = cluster.best_exec_ns(now_ns, model, size)
        return self._exec_memo[key]

    def _free_ns(self, now_ns: int, model: str, cluster: Cluster) -> tuple[int, int]:
        """(how many shares can run the model, their outstanding work together), once per instant before a plan."""
        self._remember(now_ns)
        if model not in self._free_memo:
            outstanding = [share.outstanding_ns(now_ns) for share in cluster.shares() if model in share.estimates]
            self._free_memo[model] = (len(outstanding), sum(outstanding))
        return self._free_memo[model]

    def _remember(self, now_ns: int) -> None:
        if now_ns != self._memo_ns:
            self._memo_ns = now_ns
            self._exec_memo, self._typical_memo, self._free_memo = {}, {}, {}

    def _refusals(self, now_ns: int, cluster: Cluster) -> list[Refusal]:
        """Those that not even a batch of their own, started now, would finish in time."""
        refused = []
        for request in self.backlog.overdue(now_ns):
            spec = request.spec
            exec_ns = cluster.best_exec_ns(now_ns, spec.key, spec.compiled(request.rows))
            if exec_ns is not None and now_ns + exec_ns <= request.deadline_ns:
                self.backlog.again(request, request.deadline_ns - exec_ns)
                continue
            self.backlog.remove(request)
            late_ns = now_ns + (exec_ns or 0) - request.deadline_ns
            self._learn(spec.key, exec_ns or 0)
            refused.append(Refusal(request, "its turn did not come in time", late_ns))
        return refused

    def _learn(self, model: str, exec_ns: int) -> None:
        """A request admitted in vain: from now on be surer of the next ones."""
        self._caution_ns[model] = min(self._caution_ns.get(model, 0) + exec_ns, CAUTION_LIMIT_NS)

    def _fill(self, now_ns: int, share: Share, doomed: dict[tuple[int, str], bool], plan: Plan) -> int | None:
        """Batches for one share until it has work for the look-ahead; when it wants more, unless a Result comes first.

        A share that is full, or that has nothing it could start, changes with a Result or an arrival only.
        """
        free_ns, in_flight = share.exec.free_at(now_ns), len(share.exec.pending)
        ready = share.resident
        if doomed:
            ready = {model: pages for model, pages in ready.items() if (id(share), model) not in doomed}
        while self.backlog and in_flight < self.settings.in_flight and free_ns < now_ns + self.settings.lookahead_ns:
            batch = self._pick(now_ns, free_ns, share, ready) or self._pick_best_effort(now_ns, free_ns, share, ready)
            if batch is None:
                return None
            for request in batch.requests:
                self.backlog.remove(request)
            if caution_ns := self._caution_ns.get(batch.model):
                spec = batch.requests[0].spec
                relief_ns = len(batch.requests) * share.predict(now_ns, batch.model, spec.batch_sizes[0]) // RELIEF
                self._caution_ns[batch.model] = max(0, caution_ns - relief_ns)
            plan.start.append(batch)
            free_ns += batch.expected_ns
            in_flight += 1
        return None if in_flight >= self.settings.in_flight else free_ns - self.settings.lookahead_ns

    def _pick(self, now_ns: int, free_ns: int, share: Share, ready: dict[str, int]) -> Batch | None:
        """The earliest deadline, with the largest batch that its request and all others in it survive."""
        queues = sorted(
            (queue for (model, _), queue in self.backlog.queues.items() if model in ready),
            key=lambda queue: queue.first().deadline_ns,
        )
        for queue in queues:
            for size in reversed(self._sizes(queue)):
                expected_ns = share.predict(now_ns, queue.spec.key, size)
                end_ns = free_ns + expected_ns
                if end_ns <= queue.first().deadline_ns:
                    return self._batch(share, queue.batch(size, end_ns), free_ns, expected_ns)
        return None

    def _pick_best_effort(self, now_ns: int, free_ns: int, share: Share, ready: dict[str, int]) -> Batch | None:
        """What deadline traffic leaves: the oldest best-effort request with as many of its model as there are."""
        for (model, _), queue in self.backlog.best_effort.items():
            if model in ready:
                size = max(self._sizes(queue))
                requests = queue.batch(size, 0)
                expected_ns = share.predict(now_ns, model, queue.spec.compiled(sum(one.rows for one in requests)))
                return self._batch(share, requests, free_ns, expected_ns)
        return None

    def _sizes(self, queue: ModelQueue) -> list[int]:
        """Batch sizes that the queue can fill, and that hold its first request."""
        smallest = queue.spec.compiled(queue.first().rows)
        return [size for size in queue.spec.batch_sizes if smallest <= size <= max(queue.rows, smallest)]

    def _batch(self, share: Share, requests: list[Request], free_ns: int, expected_ns: int) -> Batch:
        spec = requests[0].spec
        size = spec.compiled(sum(request.rows for request in requests))
        latest_ns = min(request.deadline_ns for request in requests) - expected_ns
        return Batch(share, spec.key, size, requests, free_ns, latest_ns, expected_ns)
