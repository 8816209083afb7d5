"""Whether a request that comes now can be expected to be done in time behind all the work that goes before it."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from horologe_common.clock import s
from horologe_controller.scheduler import Refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_controller.cluster import Cluster
    from horologe_controller.queues import ModelQueue, Request

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


class Admission:
    """Refuses on arrival what the work ahead leaves no time for, and learns from what was admitted in vain."""

    def __init__(self) -> None:
        self.ahead = Ahead()
        self.work_ns = 0
        """What all queues with deadlines mostly take, in batches as large as they fill now."""
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
            self.ahead.add(request.deadline_ns, request.cost_ns)
            self._counted(queue, work_ns)

    def left(self, now_ns: int, requests: Sequence[Request], queue: ModelQueue, cluster: Cluster) -> None:
        """They are not queued any more."""
        if not queue.best_effort:
            for request in requests:
                self.ahead.remove(request.deadline_ns, request.cost_ns)
            self._counted(queue, _queue_ns(now_ns, queue, cluster))

    def _counted(self, queue: ModelQueue, work_ns: int) -> None:
        self.work_ns += work_ns - queue.work_ns
        queue.work_ns = work_ns

    def in_vain(self, request: Request, exec_ns: int) -> None:
        """It was admitted and could not be run in time: from now on be surer of its model's next ones."""
        model = request.model
        self._caution_ns[model] = min(self._caution_ns.get(model, 0) + exec_ns, CAUTION_LIMIT_NS)

    def ran(self, model: str, requests: int, exec_ns: int) -> None:
        """So many requests of a model, of which one alone takes `exec_ns`, are run in time."""
        if caution_ns := self._caution_ns.get(model):
            self._caution_ns[model] = max(0, caution_ns - requests * exec_ns // RELIEF)

    def check(self, queues: Iterable[ModelQueue]) -> None:
        self.ahead.check()
        assert self.work_ns == sum(queue.work_ns for queue in queues if not queue.best_effort)

    def _wait_ns(self, now_ns: int, request: Request, cluster: Cluster) -> int:
        """Until it could start if all with an earlier deadline went first, spread over all shares."""
        capable = cluster.capable.get(request.model)
        if not capable:  # its workers may come back in time
            return 0
        before_ns, total_ns = self.ahead.before(request.deadline_ns), self.ahead.total_ns
        ahead_ns = self.work_ns * before_ns // total_ns if total_ns else 0
        lanes = None if len(capable) == cluster.size else [share.exec for share in capable]
        return (ahead_ns + cluster.outstanding.total_ns(now_ns, lanes)) // len(capable)

    def _headroom_ns(self, now_ns: int, request: Request, cluster: Cluster) -> int:
        """How much earlier than its deadline a request should end, by the estimates, to be admitted behind others."""
        budget_ns = max(0, request.deadline_ns - now_ns)
        overrun_ns = min(cluster.overruns.high(now_ns) or 0, budget_ns // MOST_HEADROOM)
        return max(budget_ns // HEADROOM, overrun_ns) + self._caution_ns.get(request.model, 0)


def _queue_ns(now_ns: int, queue: ModelQueue, cluster: Cluster) -> int:
    """What the rows of a queue mostly take in batches as large as they fill."""
    rows, sizes = queue.rows, queue.spec.batch_sizes
    if not rows:
        return 0
    size = sizes[max(1, bisect_right(sizes, rows)) - 1]
    return rows * cluster.quick_exec_ns(now_ns, queue.model, size)[1] // min(size, rows)
