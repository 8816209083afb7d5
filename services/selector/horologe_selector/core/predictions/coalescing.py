"""One Submit in flight and the equal queries that wait for its prediction: request coalescing, or single flight."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from horologe_selector.core.predictions.inflight import Waiter


class InflightPrediction(msgspec.Struct, eq=False):
    """Submit in flight for the leader's inputs, and the followers, which have equal inputs.

    `leader_heap` orders followers for promotion to leader, the most urgent first. Entries of followers that have left
    stay in it until they are popped, so removing a follower is a dictionary operation.
    """

    submit_id: int
    key: str
    cache_key: bytes
    content_hash: str
    """Content of the model in `cache_key`."""
    ttl_ns: int
    leader: Waiter
    followers: dict[int, Waiter]
    leader_heap: list[tuple[bool, int, int]]

    def add_follower(self, sequence: int, waiter: Waiter) -> None:
        """Add a follower; `sequence` must be greater than all before."""
        waiter.submit_id, waiter.sequence = self.submit_id, sequence
        self.followers[sequence] = waiter
        heapq.heappush(self.leader_heap, (waiter.best_effort, waiter.deadline_ns, sequence))

    def promote_follower(self) -> bool:
        """Make the most urgent follower the leader. Return False if there is none."""
        while self.leader_heap:
            sequence = heapq.heappop(self.leader_heap)[2]
            if (waiter := self.followers.pop(sequence, None)) is not None:
                self.leader = waiter
                return True
        return False
