"""LOADs: which model a share loads next. Demand is counted only while a share lacks a model that it could hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_controller.core.scheduling.loading.demand import Demand
from horologe_controller.core.scheduling.loading.load_placement import LoadPlacement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.decisions import Decisions
    from horologe_controller.core.scheduling.queues import ModelQueue, RequestQueues
    from horologe_controller.core.traffic import Traffic
    from horologe_controller.settings import ControllerSettings


class LoadPlanner:
    """Demand of the queued requests, and LOADs for it. Costs nothing while every share holds all it can run."""

    def __init__(self, settings: ControllerSettings, queues: RequestQueues, traffic: Traffic | None) -> None:
        self.demand = Demand(queues, traffic)
        self.models_missing = False
        """True if some share lacks a model that it could hold."""
        self._wait_ns = 3 * settings.lookahead_ns
        """Time for which a LOAD waits behind others, and then its EXEC. In `fig6`, 3 times the look-ahead serves 4%
        more than 2 times, and 4 times the same."""
        self.placement = LoadPlacement(settings, self._wait_ns, traffic)

    def add_requests(self, now_ns: int, requests: Iterable[Request], exec_ns: int, load_ns: int) -> None:
        """Count queued requests of one model, if a model is missing. One alone takes `exec_ns`, a LOAD `load_ns`.

        A LOAD does not help requests that only one share may run.
        """
        for request in requests:
            if request.share is not None:
                continue
            last_start_ns = request.deadline_ns - exec_ns
            helped_until_ns = last_start_ns - load_ns - self._wait_ns
            self.demand.add_request(request, helped_until_ns if helped_until_ns > now_ns else last_start_ns)

    def remove_requests(self, requests: Sequence[Request]) -> None:
        """Stop counting requests of one model that have left their queue."""
        self.demand.remove_requests(requests)

    def mark_shares(self, shares: dict[Share, bool]) -> None:
        """Examine these shares again: something happened on them."""
        self.placement.mark_shares(shares)
        self.demand.mark_shares(shares)

    def update_missing(
        self,
        now_ns: int,
        cluster: Cluster,
        queues: Iterable[ModelQueue],
        exec_ns_of: Callable[[int, Request, Cluster], int],
    ) -> None:
        """Find out whether a model is missing, and count the requests of the queues if that has changed."""
        before, self.models_missing = self.models_missing, any(share.missing_models for share in cluster.shares())
        if before and not self.models_missing:
            self.demand.clear()
        elif self.models_missing and not before:
            # Also those whose worker cannot be reached yet: models that they hold take part of the demand.
            workers = cluster.workers.values()
            self.mark_shares({share: True for worker in workers for share in worker.shares.values()})
            for queue in queues:
                load_ns = cluster.profiled_load_ns(queue.model)
                for request in queue:
                    self.add_requests(now_ns, [request], exec_ns_of(now_ns, request, cluster), load_ns)

    def plan(self, now_ns: int, cluster: Cluster, plan: Decisions) -> int | None:
        """Add a LOAD to the plan. Return when a LOAD lane will be free, if demand waits for that."""
        return self.placement.plan_load(now_ns, cluster, self.demand, plan)

    def discard_share(self, share: Share) -> None:
        self.placement.discard_share(share)
        self.demand.discard_share(share)
