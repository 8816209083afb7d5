"""Placement: which model to load on which share, and which models to evict for it (Clockwork appendix B)."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS, ms
from horologe_common.core.indexed_heap import IndexedHeap
from horologe_controller.core.cluster.estimates import LOAD_SIZE
from horologe_controller.core.cluster.lane import BESIDE_NS
from horologe_controller.core.scheduling.loading.eviction import Eviction
from horologe_controller.core.traffic import LEAST_BUDGET, STARVED_WEIGHT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_common.models import ModelSpec
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.decisions import Decisions
    from horologe_controller.core.scheduling.loading.demand import Demand
    from horologe_controller.core.traffic import Traffic
    from horologe_controller.settings import ControllerSettings

KEPT_PAUSE_NS = ms(10)
"""Pause after a share has kept its models: to look at 200 models takes 30 us. A longer pause lets requests be lost
meanwhile (experiments/results/schedulers.md)."""
DRAIN_NS = ms(5)
"""Time for the last Result beyond its predicted arrival, before a draining share gets batches again."""


class LoadPlacement:
    """Plans at most one LOAD at a time, with the UNLOADs that make room for it: the next one sees its effect."""

    def __init__(self, settings: ControllerSettings, wait_ns: int = 0, traffic: Traffic | None = None) -> None:
        """`wait_ns`: see `Eviction`. `traffic`: None evicts only copies like others (Clockwork, appendix B)."""
        self._settings = settings
        self._wait_ns = wait_ns
        self._traffic = traffic
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

        self._changed: dict[Share, bool] = {}
        """Shares whose LOAD lane may be free within the look-ahead, or not any more."""
        self._free: dict[Share, bool] = {}
        """Other shares whose LOAD lane is free within the look-ahead."""
        self._free_later: IndexedHeap[Share, int] = IndexedHeap()
        """Other shares, by when their LOAD lane will be free within the look-ahead."""
        self._wakes: IndexedHeap[Share, int] = IndexedHeap()
        """The same, for shares with one pending LOAD. With several, the first Result comes before the lane runs dry."""

    def discard_share(self, share: Share) -> None:
        for shares in (self.preloadable, self._full, self._free, self._changed, self._unkept, self.draining):
            shares.pop(share, None)
        self._free_later.remove(share)
        self._wakes.remove(share)

    def mark_shares(self, shares: Mapping[Share, bool]) -> None:
        """Examine these shares at the next plan: something happened on them."""
        self._changed.update(shares)
        self._unkept |= {share: True for share in shares if share.kept}
        if self._full:
            for share in shares:
                self._full.pop(share, None)

    def drains_until(self, now_ns: int, share: Share, demand: Demand) -> int | None:
        """Return until when the share starts no batch; None if it may."""
        if (draining := self.draining.get(share)) is None:
            return None
        model, until_ns = draining
        if now_ns < until_ns and model in demand:
            return until_ns
        del self.draining[share]
        return None

    def plan_load(self, now_ns: int, cluster: Cluster, demand: Demand, plan: Decisions) -> int | None:
        """Add a LOAD to the plan: for demand, else into free pages. Return when the next LOAD lane will be free.

        While no LOAD lane is free, nothing is computed: the demand is updated when one is.
        """
        lane_free_ns = self._update_lanes(now_ns, cluster)
        if self._free:
            demand.update(now_ns, cluster.residency)
            if not (self._unkept and self._load_kept(now_ns, cluster.specs, demand, plan)):
                if (model := demand.most_urgent_anywhere()) is not None:
                    self._load_for_demand(now_ns, cluster, demand, plan, model)
                elif self.preloadable and self._settings.preload:
                    self._preload(cluster, plan)
            if plan.load:
                self._reserve_lane(now_ns, cluster.specs, *plan.load[0])
                plan.replan = bool(self._free)
                lane_free_ns = self._wakes.smallest_priority()
        return lane_free_ns if lane_free_ns is not None and len(demand) else None

    def _load_kept(self, now_ns: int, specs: Mapping[str, ModelSpec], demand: Demand, plan: Decisions) -> bool:
        """Load a model that the plan keeps on a share and that the share lacks. Return whether there is one."""
        starting = {(batch.share, batch.model): True for batch in plan.start}
        for share in list(self._unkept):
            missing = [model for model in share.kept if model in specs and share.can_load(model)]
            if not missing:
                del self._unkept[share]
            for model in missing if share in self._free else ():
                victims = _choose_victims(now_ns, share, specs[model].pages, demand, starting)
                if victims is not None:
                    plan.unload.extend((share, victim) for victim in victims)
                    plan.load.append((share, model))
                    return True
        return False

    def _load_for_demand(self, now_ns: int, cluster: Cluster, demand: Demand, plan: Decisions, urgent: str) -> None:
        """Give the least loaded share the LOAD of the model that needs it most, of those that the share lacks.

        `urgent`: the model that needs it most of all.
        """
        self._update_full(now_ns, demand)
        starting = {(batch.share, batch.model): True for batch in plan.start}
        drainable: tuple[Share, str] | None = None
        for share in self._candidates(now_ns, demand, cluster.specs, urgent):
            if (model := demand.most_urgent(share, cluster.specs)) is None:
                continue
            pages = cluster.specs[model].pages
            if pages >= self._full.get(share, pages + 1):
                continue
            eviction = self._guard(now_ns, share, model, cluster, demand)
            victims = _choose_victims(now_ns, share, pages, demand, starting, eviction)
            if victims is not None:
                plan.unload.extend((share, victim) for victim in victims)
                plan.load.append((share, model))
                self.draining.pop(share, None)
                return
            if drainable is None and self._is_starved(cluster, model):
                victims = _choose_victims(now_ns, share, pages, demand, {}, eviction, drained=True)
                drainable = None if victims is None else (share, model)
            self._full[share] = pages
            if eviction is not None and eviction.has_kept:
                self._refill_ns = min(self._refill_ns, now_ns + KEPT_PAUSE_NS)
        if drainable is not None:
            self._drain(now_ns, *drainable, cluster, demand)

    def _is_starved(self, cluster: Cluster, model: str) -> bool:
        """Return whether the model is loaded nowhere, and gets less than a quarter of a fair part."""
        if self._traffic is None or model in cluster.residency.shares_of:
            return False
        return self._traffic.weight(cluster.specs[model]) > STARVED_WEIGHT

    def _drain(self, now_ns: int, share: Share, model: str, cluster: Cluster, demand: Demand) -> None:
        """Let the share start no batch until what it runs has ended, if a starved model would lose a request otherwise.

        All models that would make room for it are running. Where their batches follow each other without a gap, it
        would never be loaded.
        """
        if self._traffic is None or any(model == waiting for waiting, _ in self.draining.values()):
            return
        end_ns, load_ns = share.exec.free_at(now_ns), share.predict(now_ns, model, LOAD_SIZE)
        exec_ns = cluster.cached_exec_ns(now_ns, model, cluster.specs[model].batch_sizes[0])[0]
        latest_ns = demand.first_deadline_ns(model) - exec_ns - load_ns - self._wait_ns
        has_time = self._traffic.of_model(model).budget_ns >= LEAST_BUDGET * exec_ns
        if has_time and end_ns + self._traffic.batch_ns >= latest_ns:
            self.draining[share] = model, end_ns + cluster.latency.round_trip_ns + DRAIN_NS

    def _update_full(self, now_ns: int, demand: Demand) -> None:
        """Forget which shares had no room, where that may have changed."""
        for share in demand.pop_relieved_shares():
            self._full.pop(share, None)
        if now_ns >= self._refill_ns:
            self._full.clear()
            self._refill_ns = NEVER_NS

    def _guard(self, now_ns: int, share: Share, model: str, cluster: Cluster, demand: Demand) -> Eviction | None:
        """Return what keeps only copies from a LOAD for demand; None if nothing does."""
        if self._traffic is None:
            return None
        return Eviction(now_ns, share, model, cluster, demand, self._traffic, self._wait_ns)

    def _reserve_lane(self, now_ns: int, specs: Mapping[str, ModelSpec], share: Share, model: str) -> None:
        """Record whether the share's LOAD lane has work for the look-ahead with a LOAD of the model."""
        load_ns = share.predict(now_ns, model, LOAD_SIZE)
        if specs[model].loads_beside:
            load_ns = min(load_ns, BESIDE_NS)
        end_ns = share.loads_free_at(now_ns) + load_ns
        if (at_ns := end_ns - self._settings.lookahead_ns) >= now_ns:
            del self._free[share]
            self._set_free_later(share, at_ns, len(share.load.pending) + 1)

    def _update_lanes(self, now_ns: int, cluster: Cluster) -> int | None:
        """Update which shares a LOAD can be given to now. Return when the next one can."""
        later = self._free_later
        for share in later.pop_up_to(now_ns - 1):
            self._changed[share] = True
        for share in self._changed:
            self._free.pop(share, None)
            later.remove(share)
            self._wakes.remove(share)
            if not cluster.workers[share.worker].reachable or share.hangs(now_ns):
                continue  # until something happens on it
            at_ns = share.loads_free_at(now_ns) - self._settings.lookahead_ns
            if at_ns < now_ns or not (share.load.pending or share.beside.pending):
                self._free[share] = True
            else:
                self._set_free_later(share, at_ns, len(share.load.pending) or 1)
        self._changed.clear()
        return self._wakes.smallest_priority()

    def _set_free_later(self, share: Share, at_ns: int, pending: int) -> None:
        self._free_later.push(share, at_ns)
        if pending == 1:
            self._wakes.push(share, at_ns)

    def _candidates(self, now_ns: int, demand: Demand, specs: Mapping[str, ModelSpec], model: str) -> list[Share]:
        """Return shares that a LOAD can be given to, the least loaded first.

        Most of them lack the most urgent `model`. Shares without room for it are left out.
        """
        candidates, full = [], self._full
        pages = specs[model].pages if model in specs else 0
        for share in self._free:
            if full.get(share, pages + 1) <= pages and share.can_load(model):
                continue
            if not share.hangs(now_ns):
                candidates.append((demand.load_ns(share), share.index, share))
        candidates.sort()
        return [share for *_, share in candidates]

    def _preload(self, cluster: Cluster, plan: Decisions) -> None:
        """Load a model without demand into free pages of a share that loads nothing else."""
        specs = cluster.specs
        for share, untried in list(self.preloadable.items()):
            if share.load.pending or share.beside.pending or not cluster.workers[share.worker].reachable:
                continue
            if untried is None:
                untried = self.preloadable[share] = deque(specs)
            while untried and share.pages_free:
                model = untried.popleft()
                if model not in specs or model in cluster.retired:
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
