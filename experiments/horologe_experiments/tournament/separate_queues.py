"""The second form of a baseline: a queue for each application and length that the default scheduler knows.

A scheduler without distributions has one queue for each model, and one duration for each batch size. Here each *kind*
of a dynamic model's requests, an application and a range of lengths, has a queue and a profile of its own. So the
scheduler batches only requests of one kind, and predicts each kind's own durations. The kinds share the weights.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from horologe_controller.core.cluster.estimates import Estimate
from horologe_controller.core.cluster.model_profiles import LOAD_SIZE
from horologe_controller.core.scheduling.scheduling_policy import SchedulingPolicy
from horologe_controller.schedulers import SCHEDULERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from horologe_controller.core.cluster.lane import Action
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.runtime_distributions import RuntimeDistributions
    from horologe_controller.core.scheduling.queues import ModelQueue
    from horologe_controller.core.scheduling.strategy import Strategy

SEPARATE = ", queues"
"""Suffix of the name of a second form."""


class KindShare:
    """A share, as a policy sees it that asks for one kind of a dynamic model's requests."""

    def __init__(self, share: Share, model: str, kind: int, distributions: RuntimeDistributions) -> None:
        self._share = share
        profile_ns = share.estimates[model].seed_ns
        pace = profile_ns[min(size for size in profile_ns if size != LOAD_SIZE)] / distributions.mean_ns
        seed_ns = {size: int(pace * _kind_ns(distributions, kind, size)) for size in profile_ns if size != LOAD_SIZE}
        seed_ns[LOAD_SIZE] = profile_ns[LOAD_SIZE]
        self.estimates = {model: Estimate(seed_ns, share.pace)}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._share, name)

    def predict(self, now_ns: int, model: str, size: int) -> int:
        """Return the predicted duration of a batch of the kind."""
        return self.estimates[model].predict(now_ns, size)


def _kind_ns(distributions: RuntimeDistributions, kind: int, size: int) -> float:
    return distributions.base_ns + distributions.scale(size) * distributions.longest_row((kind,) * size).mean_ns


class SeparateQueues(SchedulingPolicy):
    """Another policy, with a queue and estimates for each kind of a dynamic model's requests."""

    uses_distributions = True

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.parameters = policy.parameters
        self._policy = policy
        self.deadline_rule, self.just_in_time, self.waits = policy.deadline_rule, policy.just_in_time, policy.waits
        self.cluster = policy.cluster
        self._views: dict[tuple[Share, str, int], KindShare] = {}
        """By share, model and `shape_key` of its requests: 1 + the kind."""

    def _view(self, share: Share, model: str, shape_key: int) -> Any:
        """Return the share with the kind's estimates; the share itself if the model is static."""
        distributions = self.cluster.distributions.get(model)
        if distributions is None or shape_key <= 0 or model not in share.estimates:
            return share
        view = self._views.get((share, model, shape_key))
        if view is None:
            view = self._views[share, model, shape_key] = KindShare(share, model, shape_key - 1, distributions)
        return view

    def best_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Return the policy's batch of the kind."""
        return self._policy.best_batch(now_ns, start_ns, self._view(share, queue.model, queue.key[0]), queue)

    def best_effort_batch(self, now_ns: int, start_ns: int, share: Share, queue: ModelQueue) -> Strategy | None:
        """Return the policy's batch without deadlines."""
        return self._policy.best_effort_batch(now_ns, start_ns, self._view(share, queue.model, queue.key[0]), queue)

    def shortest_exec_ns(self, now_ns: int, request: Request) -> int:
        """Return the shortest predicted time of the request's kind alone, on any share."""
        shares = self.cluster.capable.get(request.model, ())
        if request.model not in self.cluster.distributions or not shares:
            return self._policy.shortest_exec_ns(now_ns, request)
        size, key = request.spec.compiled_batch_size(request.rows), request.shape_key
        views = [self._view(share, request.model, key) for share in shares]
        return min(int(view.predict(now_ns, request.model, size)) for view in views)

    def on_requests_arrived(self, requests: Sequence[Request]) -> None:
        """Set the kind of the requests, which chooses their queue."""
        distributions = self.cluster.distributions.get(requests[0].model)
        if distributions is not None:
            for request in requests:
                request.shape_key = 1 + distributions.kind_of(request.application, request.length)
        self._policy.on_requests_arrived(requests)

    def on_batch_chosen(self, start_ns: int, share: Share, strategy: Strategy) -> bool:
        """Call the policy's hook."""
        queue = strategy.queue
        return self._policy.on_batch_chosen(start_ns, self._view(share, queue.model, queue.key[0]), strategy)

    def count_late_heads(self, queue: ModelQueue, end_ns: int) -> int:
        """Return what the policy refuses."""
        count_late_heads = self._policy.count_late_heads
        return 0 if count_late_heads is None else count_late_heads(queue, end_ns)

    def on_result(self, action: Action, took_ns: int) -> None:
        """Add the duration to the kind's estimates."""
        view = self._view(action.share, action.model, action.requests[0].shape_key)
        if view is not action.share:
            view.estimates[action.model].observe(action.end_ns, action.batch_size, took_ns)
            action = copy(action)
            action.share = view
        if self._policy.on_result is not None:
            self._policy.on_result(action, took_ns)

    def on_share_lost(self, share: Share) -> None:
        """Discard the views of the share."""
        for key in [key for key in self._views if key[0] is share]:
            self._policy.on_share_lost(self._views.pop(key))  # type: ignore[arg-type]
        self._policy.on_share_lost(share)


def register_separate_queues(scheduler: str) -> str:
    """Add the second form of a scheduler to the registry. Return its name."""
    create, name = SCHEDULERS[scheduler], scheduler + SEPARATE
    SCHEDULERS[name] = lambda settings, cluster: SeparateQueues(create(settings, cluster))
    return name
