"""A prediction of one model on its way: who waits for it, what was submitted, and how it ended."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.status import Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_common.core.protocol import Buffer
    from horologe_common.wire import Query, Tensor

OK = int(Status.OK)


class Waiter(msgspec.Struct, eq=False):
    """Who waits for a prediction of one model: a frontend's query, or the part `model` of an ensemble.

    The inputs are those staged at `frontend` under the query's id. `deadline_ns` is in this host's clock.
    """

    frontend: str
    query: Query
    arrival_ns: int
    deadline_ns: int
    ensemble: int = 0
    model: str = ""
    shadow: bool = False
    flight: int = 0
    number: int = 0
    """Among those that follow."""

    @property
    def best_effort(self) -> bool:
        """Whether it is served after all that have a deadline."""
        return self.shadow or self.query.best_effort

    def can_follow(self, leader: Waiter, now_ns: int) -> bool:
        """Whether what is in time for the leader is for this one: where not, it flies on its own.

        A quarter of its time is spared: a p99 of the way back that falls is no reason to ask twice.
        """
        if leader.best_effort:
            return self.best_effort
        return leader.deadline_ns <= self.deadline_ns + max(0, self.deadline_ns - now_ns) // 4


class Landing(NamedTuple):
    """How a prediction ended; outputs and their bytes only where the status is OK."""

    status: int
    outputs: tuple[Tensor, ...] = ()
    buffers: Sequence[Buffer] = ()
    reason: str = ""
    retry_after_ns: int = 0
    exec_ns: int = 0
    batch_size: int = 0
    cached: bool = False


class Flight(msgspec.Struct, eq=False):
    """One Submit under way: its leader's inputs are the ones submitted; those who follow ask the same.

    `ranks`: those who may lead next, the most urgent first; who has left meanwhile is in it still. So 20,000 who give
    up one by one cost a heap's logarithm each.
    """

    id: int
    key: str
    cache_key: bytes
    ttl_ns: int
    leader: Waiter
    submit: int
    followers: dict[int, Waiter]
    ranks: list[tuple[bool, int, int]]

    def follow(self, number: int, waiter: Waiter) -> None:
        """`number`: greater than any before."""
        waiter.flight, waiter.number = self.id, number
        self.followers[number] = waiter
        heapq.heappush(self.ranks, (waiter.best_effort, waiter.deadline_ns, number))

    def next_leads(self) -> bool:
        """Whether there is one."""
        while self.ranks:
            number = heapq.heappop(self.ranks)[2]
            if (waiter := self.followers.pop(number, None)) is not None:
                self.leader = waiter
                return True
        return False
