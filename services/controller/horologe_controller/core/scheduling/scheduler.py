"""Interface between the controller and its scheduler: what to start, load, unload and refuse."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request


class Batch(msgspec.Struct):
    """Requests of one model to run together on one share. `latest_ns`: the last start that makes every deadline."""

    share: Share
    model: str
    batch_size: int
    requests: list[Request]
    start_ns: int
    latest_ns: int
    expected_ns: int


class Refusal(msgspec.Struct):
    """A request that is not run. `retry_after_ns`: how much later its deadline would have had to be.

    HTTP sends this time as Retry-After. At most 0: a later deadline would not help.
    """

    request: Request
    reason: str
    retry_after_ns: int = 0

    def describe(self) -> str:
        """Return the reason for the submitter, with the possible and the wanted time if a longer budget would help."""
        if self.retry_after_ns <= 0:
            return self.reason
        budget_ns = self.request.deadline_ns - self.request.arrival_ns
        earliest_ms, wanted_ms = (budget_ns + self.retry_after_ns) / 1e6, budget_ns / 1e6
        return f"{self.reason}: possible in {earliest_ms:.1f} ms at the earliest, wanted in {wanted_ms:.1f} ms"


class Plan(msgspec.Struct):
    """Decisions, to be carried out in this order: refuse, unload, load, start.

    A plan has at most one LOAD. If `replan`, another may follow: `Scheduler.plan` is called again at once, with the
    LOAD in the mirror.
    """

    start: list[Batch]
    load: list[tuple[Share, str]]
    unload: list[tuple[Share, str]]
    refuse: list[Refusal]
    wake_ns: int | None
    replan: bool = False


class Scheduler(Protocol):
    """Queues requests and plans actions. Deterministic: no clock, no randomness, no iteration over sets."""

    def add(self, now_ns: int, requests: Sequence[Request], cluster: Cluster) -> list[Refusal]:
        """Queue requests for one queue: equal in model, shape and best effort. Return refusals of those not queued."""

    def remove(self, now_ns: int, request: Request, cluster: Cluster) -> None:
        """Remove a queued request (cancelled)."""

    def plan(self, now_ns: int, cluster: Cluster) -> Plan:
        """Decide. Read and clear `cluster.changes`. The requests that the plan starts or refuses are dequeued."""

    def observe(self, now_ns: int, action: Action, took_ns: int) -> None:
        """Take note that an INFER ran for `took_ns`. The estimates have it already."""

    def __len__(self) -> int:
        """Return the number of queued requests."""

    def check(self) -> None:
        """Assert the invariants of its queues."""
