"""Queued work by deadline and by the shares that could run it, for admission."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import ModelQueue

SLOT_BITS, BLOCK_BITS = 20, 26
"""Deadlines are distinguished to 2^20 ns (1 ms), in blocks of 2^26 ns (67 ms)."""


class WorkByDeadline:
    """Queued execution time in ns by deadline. `due_before` sums what is due before another deadline."""

    def __init__(self) -> None:
        self.total_ns = 0
        self._last_slot = 0
        self._slots: dict[int, int] = {}
        self._blocks: dict[int, int] = {}

    def add(self, requests: Iterable[Request], sign: int = 1) -> None:
        """Add the costs of requests, or subtract them if `sign` is -1. Equal deadlines in a row are added at once."""
        slot = cost_ns = 0
        for request in requests:
            request_slot = request.deadline_ns >> SLOT_BITS
            if request_slot != slot:
                if cost_ns:
                    self._add_cost(slot, sign * cost_ns)
                slot, cost_ns = request_slot, 0
            cost_ns += request.cost_ns
        if cost_ns:
            self._add_cost(slot, sign * cost_ns)

    def _add_cost(self, slot: int, cost_ns: int) -> None:
        slots, blocks, block = self._slots, self._blocks, slot >> BLOCK_BITS - SLOT_BITS
        self.total_ns += cost_ns
        if slot > self._last_slot:
            self._last_slot = slot
        slots[slot] = rest_ns = slots.get(slot, 0) + cost_ns
        if not rest_ns:
            del slots[slot]
        blocks[block] = rest_ns = blocks.get(block, 0) + cost_ns
        if not rest_ns:
            del blocks[block]

    def due_before(self, deadline_ns: int) -> int:
        """Return the work with a deadline up to this one, accurate to a slot."""
        last = deadline_ns >> SLOT_BITS
        if last >= self._last_slot or not self.total_ns:
            return self.total_ns
        block = deadline_ns >> BLOCK_BITS
        earlier_ns = sum(work_ns for index, work_ns in self._blocks.items() if index < block)
        first = block << (BLOCK_BITS - SLOT_BITS)
        slots = self._slots
        return earlier_ns + sum(slots.get(index, 0) for index in range(first, last + 1))

    def check(self) -> None:
        assert self.total_ns == sum(self._slots.values()) == sum(self._blocks.values())


class SharePool:
    """Queued work of the models that exactly these shares could run."""

    def __init__(self, shares: tuple[Share, ...]) -> None:
        self.shares = shares
        self.queued = WorkByDeadline()
        """Work as counted when each request was queued."""
        self.work_ns = 0
        """Work of its queues with deadlines in batches of the sizes that they fill."""
        self.neighbours: list[tuple[SharePool, int]] = []
        """(pool, number of common shares) of the pools with common shares, itself included."""

    def update_work(self, queue: ModelQueue, work_ns: int) -> None:
        self.work_ns += work_ns - queue.work_ns
        queue.work_ns = work_ns

    def move_queue(self, queue: ModelQueue, pool: SharePool, added: Sequence[Request]) -> None:
        """Count a queue in another pool, as other shares can run its model; all but the requests being added."""
        new = dict.fromkeys(added)
        moved = [request for request in queue if request not in new]
        self.queued.add(moved, -1)
        pool.queued.add(moved)
        self.work_ns -= queue.work_ns
        pool.work_ns += queue.work_ns

    def due_before_ns(self, deadline_ns: int) -> int:
        """Return the part of `work_ns` that is due up to this deadline."""
        total_ns = self.queued.total_ns
        return self.work_ns * self.queued.due_before(deadline_ns) // total_ns if total_ns else 0

    def work_ahead_ns(self, deadline_ns: int) -> int:
        """Return the work of its shares before this deadline, if all work is spread evenly over the capable shares."""
        total_ns = 0
        for pool, common in self.neighbours:
            total_ns += pool.due_before_ns(deadline_ns) * common // len(pool.shares)
        return total_ns


class SharePools:
    """Pools by model. Where all workers have all models there is one pool."""

    def __init__(self) -> None:
        self._pools: dict[tuple[Share, ...], SharePool] = {}
        self._of_model: dict[str, SharePool] = {}
        self._capable_version = -1

    def of_model(self, model: str, cluster: Cluster) -> SharePool:
        if cluster.capable_version != self._capable_version:
            self._capable_version = cluster.capable_version
            self._of_model.clear()
            self._discard_empty()
        pool = self._of_model.get(model)
        if pool is None:
            shares = tuple(cluster.capable.get(model, ()))
            pool = self._of_model[model] = self._pools.get(shares) or self._create(shares)
        return pool

    def _create(self, shares: tuple[Share, ...]) -> SharePool:
        pool = self._pools[shares] = SharePool(shares)
        own_shares = dict.fromkeys(shares)
        for other in self._pools.values():
            if common := sum([share in own_shares for share in other.shares]):
                pool.neighbours.append((other, common))
                if other is not pool:
                    other.neighbours.append((pool, common))
        return pool

    def _discard_empty(self) -> None:
        self._pools = {shares: pool for shares, pool in self._pools.items() if pool.queued.total_ns}
        for pool in self._pools.values():
            pool.neighbours = [(other, common) for other, common in pool.neighbours if other.queued.total_ns]

    def check(self, work_ns: int) -> None:
        for pool in self._pools.values():
            pool.queued.check()
        assert sum(pool.work_ns for pool in self._pools.values()) == work_ns
