"""LOADs: which model a share loads next, and which models it evicts for it (Clockwork appendix B)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS
from horologe_controller.core.cluster.model_profiles import LOAD_SIZE
from horologe_controller.core.scheduling.loading.demand import Demand
from horologe_controller.core.scheduling.loading.eviction import Eviction
from horologe_controller.core.scheduling.loading.load_lanes import LoadLanes
from horologe_controller.core.traffic import LEAST_BUDGET, STARVED_WEIGHT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.requests.request import Request
    from horologe_controller.core.scheduling.decisions import Decisions
    from horologe_controller.core.scheduling.queues import ModelQueue, RequestQueues
    from horologe_controller.core.traffic import Traffic
    from horologe_controller.settings import ControllerSettings


class LoadPlanner:
    """Demand of the queued requests, and LOADs for it. Costs nothing while every share holds all it can run.

    Plans at most one LOAD at a time, with the UNLOADs that make room for it: the next one sees its effect.
    """

    def __init__(
        self, settings: ControllerSettings, cluster: Cluster, queues: RequestQueues, traffic: Traffic | None
    ) -> None:
        """`traffic`: None evicts only copies like others (Clockwork, appendix B)."""
        self._cluster = cluster
        self.demand = Demand(queues, traffic)
        self.models_missing = False
        """True if some share lacks a model that it could hold. Demand is counted only then."""
        self._preloads = settings.preload
        self._wait_ns = 3 * settings.lookahead_ns
        """Time for which a LOAD waits behind others, and then its EXEC. In `fig6`, 3 times the look-ahead serves 4%
        more than 2 times, and 4 times the same. Also the pause after a share has kept its models, as it takes 30 us to
        look at 200 of them, and the time for the last Result of a share that drains."""
        self._traffic = traffic
        self._lanes = LoadLanes(settings.lookahead_ns, cluster)
        self.preloadable: dict[Share, deque[str] | None] = {}
        """Shares that may have free pages to preload into, since they were reconfigured, with the models that have not
        been tried since then (None: all). After the first eviction on a share, only demand fills its pages."""
        self._unkept: dict[Share, bool] = {}
        """Shares that may lack a model which the plan keeps there."""
        self._full: dict[Share, float] = {}
        """Share -> pages that could not be freed there. Valid until something happens on the share, or a model that it
        holds has no demand any more. To try again each time took 160 us with 10,000 requests queued."""

        self.draining: dict[Share, tuple[str, int]] = {}
        """Shares that run what was started and start nothing more: the model that waits for room, and until when."""
        self._refill_ns = NEVER_NS
        """When to forget `_full`, after a share has kept a model: others may become worth more."""

    def discard_share(self, share: Share) -> None:
        self.demand.discard_share(share)
        self._lanes.discard_share(share)
        for shares in (self.preloadable, self._full, self._unkept, self.draining):
            shares.pop(share, None)

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

    def mark_shares(self, shares: dict[Share, bool]) -> None:
        """Examine these shares again: something happened on them."""
        self._lanes.mark_shares(shares)
        self._unkept |= {share: True for share in shares if share.kept}
        if self._full:
            for share in shares:
                self._full.pop(share, None)

    def update_missing(
        self,
        now_ns: int,
        queues: Iterable[ModelQueue],
        exec_ns_of: Callable[[int, Request], int],
    ) -> None:
        """Find out whether a model is missing, and count the requests of the queues if that has changed."""
        before, self.models_missing = self.models_missing, any(share.missing_models for share in self._cluster.shares())
        if before and not self.models_missing:
            self.demand.clear()
        elif self.models_missing and not before:
            # Also those whose worker cannot be reached yet: models that they hold take part of the demand.
            workers = self._cluster.workers.values()
            self.mark_shares({share: True for worker in workers for share in worker.shares.values()})
            for queue in queues:
                load_ns = self._cluster.profiled_load_ns(queue.model)
                for request in queue:
                    self.add_requests(now_ns, [request], exec_ns_of(now_ns, request), load_ns)

    def drains_until(self, now_ns: int, share: Share) -> int | None:
        """Return until when the share starts no batch; None if it may."""
        if (draining := self.draining.get(share)) is None:
            return None
        model, until_ns = draining
        if now_ns < until_ns and model in self.demand:
            return until_ns
        del self.draining[share]
        return None

    def plan(self, now_ns: int, plan: Decisions) -> int | None:
        """Add a LOAD to the plan: for demand, else into free pages.

        Return when a LOAD lane will be free, if demand waits for that. While no lane is free, nothing is computed: the
        demand is updated when one is.
        """
        lanes, demand = self._lanes, self.demand
        lanes.update(now_ns)
        if lanes.free:
            demand.update(now_ns, self._cluster.residency)
            if not (self._unkept and self._load_kept(now_ns, plan)):
                if (model := demand.most_urgent_anywhere()) is not None:
                    self._load_for_demand(now_ns, plan, model)
                elif self.preloadable and self._preloads:
                    self._preload(plan)
            if plan.load:
                lanes.reserve(now_ns, *plan.load[0])
                plan.replan = bool(lanes.free)
        lane_free_ns = lanes.next_ns()
        return lane_free_ns if lane_free_ns is not None and len(demand) else None

    def _load_kept(self, now_ns: int, plan: Decisions) -> bool:
        """Load a model that the plan keeps on a share and that the share lacks. Return whether there is one."""
        specs, starting = self._cluster.specs, {(batch.share, batch.model): True for batch in plan.start}
        for share in list(self._unkept):
            missing = [model for model in share.kept if model in specs and share.can_load(model)]
            if not missing:
                del self._unkept[share]
            for model in missing if share in self._lanes.free else ():
                victims = _choose_victims(now_ns, share, specs[model].pages, self.demand, starting)
                if victims is not None:
                    plan.unload.extend((share, victim) for victim in victims)
                    plan.load.append((share, model))
                    return True
        return False

    def _load_for_demand(self, now_ns: int, plan: Decisions, urgent: str) -> None:
        """Give the least loaded share the LOAD of the model that needs it most, of those that the share lacks.

        `urgent`: the model that needs it most of all.
        """
        demand, traffic, eviction = self.demand, self._traffic, None
        self._update_full(now_ns)
        starting = {(batch.share, batch.model): True for batch in plan.start}
        drainable: tuple[Share, str] | None = None
        for share in self._candidates(now_ns, urgent):
            if (model := demand.most_urgent(share, self._cluster.specs)) is None:
                continue
            pages = self._cluster.specs[model].pages
            if pages >= self._full.get(share, pages + 1):
                continue
            if traffic is not None:  # else only copies are evicted like others
                eviction = Eviction(now_ns, share, model, self._cluster, demand, traffic, self._wait_ns)
            victims = _choose_victims(now_ns, share, pages, demand, starting, eviction)
            if victims is not None:
                plan.unload.extend((share, victim) for victim in victims)
                plan.load.append((share, model))
                self.draining.pop(share, None)
                return
            if drainable is None and self._is_starved(model):
                victims = _choose_victims(now_ns, share, pages, demand, {}, eviction, drained=True)
                drainable = None if victims is None else (share, model)
            self._full[share] = pages
            if eviction is not None and eviction.has_kept:
                self._refill_ns = min(self._refill_ns, now_ns + self._wait_ns)
        if drainable is not None:
            self._drain(now_ns, *drainable)

    def _is_starved(self, model: str) -> bool:
        """Return whether the model is loaded nowhere, and gets less than a quarter of a fair part."""
        if self._traffic is None or model in self._cluster.residency.shares_of:
            return False
        return self._traffic.weight(self._cluster.specs[model]) > STARVED_WEIGHT

    def _drain(self, now_ns: int, share: Share, model: str) -> None:
        """Let the share start no batch until what it runs has ended, if a starved model would lose a request otherwise.

        All models that would make room for it are running. Where their batches follow each other without a gap, it
        would never be loaded.
        """
        if self._traffic is None or any(model == waiting for waiting, _ in self.draining.values()):
            return
        end_ns, load_ns = share.exec.free_at(now_ns), share.predict(now_ns, model, LOAD_SIZE)
        exec_ns = self._cluster.cached_exec_ns(now_ns, model, self._cluster.specs[model].batch_sizes[0])[0]
        latest_ns = self.demand.first_deadline_ns(model) - exec_ns - load_ns - self._wait_ns
        has_time = self._traffic.of_model(model).budget_ns >= LEAST_BUDGET * exec_ns
        if has_time and end_ns + self._traffic.batch_ns >= latest_ns:
            self.draining[share] = model, end_ns + self._cluster.latency.round_trip_ns + self._wait_ns

    def _update_full(self, now_ns: int) -> None:
        """Forget which shares had no room, where that may have changed."""
        for share in self.demand.pop_relieved_shares():
            self._full.pop(share, None)
        if now_ns >= self._refill_ns:
            self._full.clear()
            self._refill_ns = NEVER_NS

    def _candidates(self, now_ns: int, model: str) -> list[Share]:
        """Return shares that a LOAD can be given to, the least loaded first.

        Most of them lack the most urgent `model`. Shares without room for it are left out.
        """
        candidates, full = [], self._full
        specs = self._cluster.specs
        pages = specs[model].pages if model in specs else 0
        for share in self._lanes.free:
            if full.get(share, pages + 1) <= pages and share.can_load(model):
                continue
            if not share.hangs(now_ns):
                candidates.append((self.demand.load_ns(share), share.index, share))
        candidates.sort()
        return [share for *_, share in candidates]

    def _preload(self, plan: Decisions) -> None:
        """Load a model without demand into free pages of a share that loads nothing else."""
        specs = self._cluster.specs
        for share, untried in list(self.preloadable.items()):
            if share.load.pending or share.beside.pending or not self._cluster.workers[share.worker].reachable:
                continue
            if untried is None:
                untried = self.preloadable[share] = deque(specs)
            while untried and share.pages_free:
                model = untried.popleft()
                if model not in specs or model in self._cluster.retired:
                    continue
                if specs[model].pages <= share.pages_free and share.can_load(model):
                    plan.load.append((share, model))
                    return
            del self.preloadable[share]


def _choose_victims(
    now_ns: int,
    share: Share,
    pages: float,
    demand: Demand,
    starting: Mapping[tuple[Share, str], bool],
    eviction: Eviction | None = None,
    *,
    drained: bool = False,
) -> list[str] | None:
    """Return the least recently used models to unload for `pages`; None if there are too few.

    Models with demand, and those whose streams would be lost, come last.

    A running model stays. So does a model that was loaded for requests still waiting, until it has run: otherwise two
    models could evict each other forever, and neither would run. `drained`: as if the share ran nothing.
    """
    victims: list[str] = []
    in_demand: list[str] = []
    free = share.pages_free
    for model, held in share.resident.items():
        if free >= pages:
            return victims
        if model in share.kept or (eviction is not None and eviction.keeps(model)):
            continue
        if model in demand or share.has_streams(now_ns, model):
            if model not in share.unused and (share, model) not in starting:
                in_demand.append(model)
        elif (share, model) not in starting and (drained or not share.is_running(model)):
            victims.append(model)
            free += held
    for model in in_demand:
        if free >= pages:
            return victims
        if drained or not share.is_running(model):
            victims.append(model)
            free += share.resident[model]
    return victims if free >= pages else None
