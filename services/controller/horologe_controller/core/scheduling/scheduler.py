"""The interface of a scheduler: what to start, load, unload and refuse, given the queue and the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
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
    """`retry_after_ns`: by how much the earliest possible end misses the deadline."""

    request: Request
    reason: str
    retry_after_ns: int = 0

    def told(self) -> str:
        """The reason as the submitter reads it: with the times, where another deadline would have done."""
        if self.retry_after_ns <= 0:
            return self.reason
        budget_ns = self.request.deadline_ns - self.request.arrival_ns
        earliest_ms, wanted_ms = (budget_ns + self.retry_after_ns) / 1e6, budget_ns / 1e6
        return f"{self.reason}: possible in {earliest_ms:.1f} ms at the earliest, wanted in {wanted_ms:.1f} ms"


def too_long(now_ns: int, request: Request, exec_ns: int) -> Refusal | None:
    """None if the request could be in time were it started now, on its own."""
    late_ns = now_ns + exec_ns - request.deadline_ns
    return Refusal(request, "its execution alone takes longer", late_ns) if late_ns > 0 else None


class Plan(msgspec.Struct):
    """Decisions, to be carried out in this order: refuse, unload, load, start.

    At most one LOAD: where there is one, the scheduler is asked again at once, when the mirror knows of it.
    """

    start: list[Batch]
    load: list[tuple[Share, str]]
    unload: list[tuple[Share, str]]
    refuse: list[Refusal]
    wake_ns: int | None


class Scheduler(Protocol):
    """A policy. Deterministic: no clock, no randomness, no iteration over sets."""

    def add(self, now_ns: int, request: Request, cluster: Cluster) -> Refusal | None:
        """Queue a request, or refuse it at once."""

    def remove(self, now_ns: int, request: Request, cluster: Cluster) -> None:
        """Forget a queued request (cancelled)."""

    def plan(self, now_ns: int, cluster: Cluster) -> Plan:
        """Decide. What the plan starts and refuses is not queued any more; the mirror is as `cluster.changes` says."""

    def observe(self, now_ns: int, action: Action, took_ns: int) -> None:
        """An action has ended after `took_ns`: the estimates know of it."""

    def __len__(self) -> int:
        """Requests queued."""

    def check(self) -> None:
        """Assert the laws of its queues."""
