"""Whether a request that comes now can be expected to be done in time behind all the work that goes before it."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_controller.core.scheduling.scheduler import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import ModelQueue

HEADROOM, MOST_HEADROOM = 10, 4
"""Where others wait ahead, a tenth of a budget is kept for their taking longer than predicted; at most a quarter."""
RELIEF = 400
"""A request that is run takes back 1/400 of what one admitted in vain adds: about one in 400 is refused late."""
CAUTION_LIMIT_NS = s(1)
BEST_EFFORT_PART = 1000
"""Best-effort work counts so many times less: a model is loaded for it where none is wanted for deadlines."""
SLOT_BITS, BLOCK_BITS = 20, 26
"""Deadlines are told apart to 2^20 ns (1 ms), in blocks of 2^26 ns (67 ms)."""


class Ahead:
    """Queued work (ns of execution) by deadline; how much of it is due before another deadline."""

    def __init__(self) -> None:
        self.total_ns = 0
        self._last_slot = 0
        self._slots: dict[int, int] = {}
        self._blocks: dict[int, int] = {}

    def add(self, deadline_ns: int, cost_ns: int) -> None:
        self.total_ns += cost_ns
        slot, block = deadline_ns >> SLOT_BITS, deadline_ns >> BLOCK_BITS
        if slot > self._last_slot:
            self._last_slot = slot
        self._slots[slot] = self._slots.get(slot, 0) + cost_ns
        self._blocks[block] = self._blocks.get(block, 0) + cost_ns

    def remove(self, deadline_ns: int, cost_ns: int) -> None:
        self.total_ns -= cost_ns
        for sums, place in ((self._slots, deadline_ns >> SLOT_BITS), (self._blocks, deadline_ns >> BLOCK_BITS)):
            if left_ns := sums[place] - cost_ns:
                sums[place] = left_ns
            else:
                del sums[place]

    def before(self, deadline_ns: int) -> int:
        """Work with a deadline up to this, to the slot."""
        last = deadline_ns >> SLOT_BITS
        if last >= self._last_slot or not self.total_ns:
            return self.total_ns
        block = deadline_ns >> BLOCK_BITS
        earlier_ns = sum(work_ns for place, work_ns in self._blocks.items() if place < block)
        first = block << (BLOCK_BITS - SLOT_BITS)
        slots = self._slots
        return earlier_ns + sum(slots.get(place, 0) for place in range(first, last + 1))

    def check(self) -> None:
        assert self.total_ns == sum(self._slots.values()) == sum(self._blocks.values())


class Pool:
    """Queued work of the models that just these shares could run."""

    def __init__(self, shares: tuple[Share, ...]) -> None:
        self.shares = shares
        self.ahead = Ahead()
        self.work_ns = 0
        """What its queues with deadlines mostly take, in batches as large as they fill now."""
        self.neighbours: list[tuple[Pool, int]] = []
        """Pools that have shares in common with it, itself included, and how many."""

    def before_ns(self, deadline_ns: int) -> int:
        """What of its work is due up to this deadline."""
        total_ns = self.ahead.total_ns
        return self.work_ns * self.ahead.before(deadline_ns) // total_ns if total_ns else 0

    def wait_ns(self, deadline_ns: int) -> int:
        """What its shares do before, if all work is spread evenly over the shares that could do it."""
        found_ns = 0
        for pool, common in self.neighbours:
            found_ns += pool.before_ns(deadline_ns) * common // len(pool.shares)
        return found_ns


class Pools:
    """Models by the shares that could run them: where all workers have all models there is one pool."""

    def __init__(self) -> None:
        self._pools: dict[tuple[Share, ...], Pool] = {}
        self._of: dict[str, Pool] = {}
        self._fits = -1

    def of(self, model: str, cluster: Cluster) -> Pool:
        if cluster.fits != self._fits:
            self._fits = cluster.fits
            self._of.clear()
            self._forget()
        pool = self._of.get(model)
        if pool is None:
            shares = tuple(cluster.capable.get(model, ()))
            pool = self._of[model] = self._pools.get(shares) or self._new(shares)
        return pool

    def _new(self, shares: tuple[Share, ...]) -> Pool:
        pool = self._pools[shares] = Pool(shares)
        mine = dict.fromkeys(shares)
        for other in self._pools.values():
            if common := sum([share in mine for share in other.shares]):
                pool.neighbours.append((other, common))
                if other is not pool:
                    other.neighbours.append((pool, common))
        return pool

    def _forget(self) -> None:
        """Those in which nothing waits."""
        self._pools = {shares: pool for shares, pool in self._pools.items() if pool.ahead.total_ns}
        for pool in self._pools.values():
            pool.neighbours = [(other, common) for other, common in pool.neighbours if other.ahead.total_ns]

    def check(self, work_ns: int) -> None:
        for pool in self._pools.values():
            pool.ahead.check()
        assert sum(pool.work_ns for pool in self._pools.values()) == work_ns


class Admission:
    """Refuses on arrival what the work ahead leaves no time for, and learns from what was admitted in vain."""

    def __init__(self) -> None:
        self._pools = Pools()
        self._pool_of: dict[ModelQueue, Pool] = {}
        """Where each queue is counted that is not empty."""
        self._caution_ns: dict[str, int] = {}

    def refusal(self, now_ns: int, request: Request, exec_ns: int, cluster: Cluster) -> Refusal | None:
        """None if the request, running `exec_ns`, can be expected to end by its deadline."""
        start_ns = now_ns + self._wait_ns(now_ns, request, cluster)
        end_ns = start_ns + exec_ns
        end_ns += min(self._headroom_ns(now_ns, request, cluster), start_ns - now_ns)
        if end_ns <= request.deadline_ns:
            return None
        if request.admitted:
            self.in_vain(request, exec_ns)
        return Refusal(request, "the work ahead of it takes past its deadline", end_ns - request.deadline_ns)

    def entered(self, now_ns: int, request: Request, queue: ModelQueue, cluster: Cluster) -> None:
        """It has been put into its queue: its part of what the queue takes now is its cost."""
        work_ns = _queue_ns(now_ns, queue, cluster)
        cost_ns = work_ns * request.rows // queue.rows
        request.cost_ns = max(1, cost_ns // BEST_EFFORT_PART if request.best_effort else cost_ns)
        if not request.best_effort:
            pool, before = self._pools.of(queue.model, cluster), self._pool_of.get(queue)
            if pool is not before:
                self._pool_of[queue] = pool
                if before is not None:
                    _move(queue, before, pool, request)
            pool.ahead.add(request.deadline_ns, request.cost_ns)
            _counted(queue, pool, work_ns)

    def left(self, now_ns: int, requests: Sequence[Request], queue: ModelQueue, cluster: Cluster) -> None:
        """They are not queued any more."""
        if not queue.best_effort:
            pool = self._pool_of[queue]
            for request in requests:
                pool.ahead.remove(request.deadline_ns, request.cost_ns)
            _counted(queue, pool, _queue_ns(now_ns, queue, cluster))
            if not queue:
                del self._pool_of[queue]

    def in_vain(self, request: Request, exec_ns: int) -> None:
        """It was admitted and could not be run in time: from now on be surer of its model's next ones."""
        model = request.model
        self._caution_ns[model] = min(self._caution_ns.get(model, 0) + exec_ns, CAUTION_LIMIT_NS)

    def ran(self, model: str, requests: int, exec_ns: int) -> None:
        """So many requests of a model, of which one alone takes `exec_ns`, are run in time."""
        if caution_ns := self._caution_ns.get(model):
            self._caution_ns[model] = max(0, caution_ns - requests * exec_ns // RELIEF)

    def check(self, queues: Iterable[ModelQueue]) -> None:
        self._pools.check(sum(queue.work_ns for queue in queues if not queue.best_effort))

    def _wait_ns(self, now_ns: int, request: Request, cluster: Cluster) -> int:
        """Until it could start if all with an earlier deadline went first, each on the shares that could run it."""
        pool = self._pools.of(request.model, cluster)
        if not pool.shares:  # its workers may come back in time
            return 0
        lanes = None if len(pool.shares) == cluster.size else [share.exec for share in pool.shares]
        return (pool.wait_ns(request.deadline_ns) + cluster.outstanding.total_ns(now_ns, lanes)) // len(pool.shares)

    def _headroom_ns(self, now_ns: int, request: Request, cluster: Cluster) -> int:
        """How much earlier than its deadline a request should end, by the estimates, to be admitted behind others."""
        budget_ns = max(0, request.deadline_ns - now_ns)
        overrun_ns = min(cluster.overruns.high_quantile(now_ns) or 0, budget_ns // MOST_HEADROOM)
        return max(budget_ns // HEADROOM, overrun_ns) + self._caution_ns.get(request.model, 0)


def _counted(queue: ModelQueue, pool: Pool, work_ns: int) -> None:
    pool.work_ns += work_ns - queue.work_ns
    queue.work_ns = work_ns


def _move(queue: ModelQueue, before: Pool, pool: Pool, comes: Request) -> None:
    """Other shares can run the model now; what waits, but for the request that comes, counts with theirs."""
    for request in queue:
        if request is not comes:
            before.ahead.remove(request.deadline_ns, request.cost_ns)
            pool.ahead.add(request.deadline_ns, request.cost_ns)
    before.work_ns -= queue.work_ns
    pool.work_ns += queue.work_ns


def _queue_ns(now_ns: int, queue: ModelQueue, cluster: Cluster) -> int:
    """What the rows of a queue mostly take in batches as large as they fill."""
    rows, sizes = queue.rows, queue.spec.batch_sizes
    if not rows:
        return 0
    size = sizes[max(1, bisect_right(sizes, rows)) - 1]
    return rows * cluster.quick_exec_ns(now_ns, queue.model, size)[1] // min(size, rows)
