"""Interface of a scheduling policy: the part of a scheduler that chooses batches. `Planner` does the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import msgspec
from msgspec import Meta

from horologe_common.service.settings import convert_settings
from horologe_controller.core.scheduling.queue_waits import QueueWaits
from horologe_controller.core.scheduling.strategy import oldest_strategy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.strategy import Rank, Strategy
    from horologe_controller.core.traffic import Traffic
    from horologe_controller.settings import ControllerSettings


class PolicyParameters(msgspec.Struct, frozen=True):
    """The table `[controller.policy]`: parameters that every policy has. A policy with more derives its own struct."""

    window_ns: Annotated[int, Meta(ge=0)] = 0
    """Drop an INFER that has not begun this long after its predicted start, and plan its requests again while their
    deadlines allow. 0: it may begin as long as the policy allows: with `horologe`, while the last request of a static
    batch can be in time by the median."""


class SchedulingPolicy:
    """Chooses batches for a `Planner`. A policy derives from this class. Only `best_batch` has no default.

    A policy is deterministic: no clock, no randomness, no iteration over sets. It must not change what it is given.
    """

    deadline_rule: Literal["predict", "expire", "ignore"] = "predict"
    """predict: refuse requests that cannot be in time, and plan no batch that would end too late. expire: refuse a
    request once its deadline has passed. ignore: run every request, however late."""
    just_in_time: bool = False
    """Give a share its next batch only `DECISION_LEAD_NS` before it runs dry, instead of `lookahead_ns` ahead."""
    uses_distributions: bool = False
    """Requests of models whose distributions are known differ in `shortest_exec_ns`. They are admitted one by one, and
    not refused for queued work with earlier deadlines: a short request that arrives later may go first."""
    traffic: Traffic | None = None
    """Ledger of a policy that has one. With it, only copies of models are kept in memory while they are worth more."""
    count_late_heads: Callable[[ModelQueue, int], int] | None = None
    """Return how many requests at the head of a queue to refuse, after a batch of it that ends at the given time. This
    hook, and the next three, are methods of the policies that need them."""
    on_requests_queued: Callable[[Sequence[Request]], None] | None = None
    """Called after requests for one queue were queued."""
    on_requests_removed: Callable[[list[Request], ModelQueue], None] | None = None
    """Called after requests have left their queue: started, refused or cancelled."""
    on_result: Callable[[Action, int], None] | None = None
    """Called after an INFER has run for the given time."""
    Parameters: ClassVar[type[PolicyParameters]] = PolicyParameters
    """Struct of the parameters. Each field has a default, and a docstring for docs/scheduler-parameters.md."""
    parameters: PolicyParameters

    def __init__(self, settings: ControllerSettings, cluster: Cluster) -> None:
        """Raises SettingsError for a parameter that the policy does not have, and for a wrong value."""
        self.cluster = cluster
        self.waits = QueueWaits()
        """To let a queue wait, a policy calls `waits.hold_queue` and returns no batch."""
        known = f"the parameters of {settings.scheduler} are"
        self.parameters = convert_settings(self.Parameters, "controller.policy", settings.policy, known)

    def best_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Return the best batch of the queue that could start at `start_ns` on the share; None for no batch now.

        Called when the queue, its model's residency or its estimates have changed, and when the last rank comes first.
        Meanwhile the rank must not fall as `start_ns` grows, unless the queue has a `rank_bound`.
        """
        raise NotImplementedError

    def rank_bound(self, queue: ModelQueue) -> Rank | None:
        """Return a lower bound of the rank of a non-empty queue for any start, until the queue changes.

        None: `best_batch` never returns a lower rank for a later start. Otherwise it is called whenever the bound comes
        first.
        """
        return None

    def best_effort_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Return the best batch of a queue without deadlines. Called if `best_batch` finds none in the others.

        Default: the oldest requests. While another queue waits, only a batch that ends before that wait does.
        """
        wait_ns = self.waits.next_ns()
        if wait_ns is None:
            return oldest_strategy(now_ns, start_ns, share, queue)
        strategy = oldest_strategy(now_ns, start_ns, share, queue, wait_ns)
        if strategy is None and queue:
            self.waits.hold_queue(queue, wait_ns)
        return strategy

    def shortest_exec_ns(self, now_ns: int, request: Request) -> int:
        """Return the shortest time in which the request could run alone; 0 if no share ever could run it."""
        return self.cluster.request_exec_ns(now_ns, request)

    def on_requests_arrived(self, requests: Sequence[Request]) -> None:
        """Called before requests for one queue are queued or refused."""

    def on_request_late(self, now_ns: int, request: Request) -> None:
        """Called after a request with a deadline was refused because devices had no time for it."""

    def on_refused_again(self, now_ns: int, request: Request, count: int) -> None:
        """Called after `count` requests have arrived, and were refused because devices had no time for `request`."""

    def on_batch_chosen(self, start_ns: int, share: Share, strategy: Strategy) -> bool:
        """Called before a batch is taken from its queue. Return whether the ranks of all queues have changed."""
        return False

    def on_share_lost(self, share: Share) -> None:
        """Called after the worker of the share has disconnected."""

    def check(self, queues: Iterable[ModelQueue]) -> None:
        """Assert the policy's invariants. `queues`: all non-empty queues."""
