"""Which model to load where, and which to evict for it (Clockwork appendix B)."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_common.models import ModelSpec
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share
    from horologe_controller.core.scheduling.demand import Demand
    from horologe_controller.core.scheduling.scheduler import Plan
    from horologe_controller.settings import ControllerSettings


class Placement:
    """At most one LOAD a plan, with the UNLOADs that make room for it: the next is decided knowing of it."""

    def __init__(self, settings: ControllerSettings) -> None:
        self._settings = settings
        self._roomy: dict[Share, bool] = {}
        """Shares not filled yet. Where a model has once been evicted, only demand fills pages."""
        self._full: dict[Share, int] = {}
        """Shares in which so many pages could not be had. It stays so until something has happened on the share, or a
        model that it holds is asked for no more; to look again each time took 160 us with 10,000 requests waiting."""

        self._touched: dict[Share, bool] = {}
        """Shares on which something has happened since LOADs were last wanted."""
        self._ready: dict[Share, bool] = {}
        """Of the others, those with a LOAD lane that is free within the look-ahead."""
        self._at_ns: dict[Share, int] = {}
        """When, unless something happens, that of further ones will be."""
        self._later: list[tuple[int, int, Share]] = []
        """A heap of the same. Only entries that are in `_at_ns` count."""

    def touched(self, share: Share) -> None:
        """Something has happened on it."""
        self._full.pop(share, None)
        self._touched[share] = True

    def changed(self, share: Share) -> None:
        """The models it can hold are others."""
        self._roomy[share] = True

    def forget(self, share: Share) -> None:
        """It is gone."""
        for known in (self._roomy, self._full, self._ready, self._at_ns, self._touched):
            known.pop(share, None)

    def plan(self, now_ns: int, cluster: Cluster, demand: Demand, plan: Plan) -> int | None:
        """Add to the plan; returns when a LOAD lane wants more, if something waits for that."""
        if demand.first():
            return self._load_wanted(now_ns, cluster, demand, plan)
        if self._settings.preload:
            self._preload(cluster, plan)
        return None

    def _load_wanted(self, now_ns: int, cluster: Cluster, demand: Demand, plan: Plan) -> int | None:
        """LOAD for the share with the least to do: the neediest model it lacks."""
        for share in demand.take_left():
            self._full.pop(share, None)
        running = {(batch.share, batch.model): True for batch in plan.start}
        wake_ns = self._update(now_ns, cluster)
        for share in self._candidates(now_ns, demand, cluster.specs):
            if (model := demand.neediest(share, cluster.specs)) is None:
                continue
            pages = cluster.specs[model].pages
            if pages >= self._full.get(share, pages + 1):
                continue
            victims = _victims(share, pages, demand, running)
            if victims is not None:
                plan.unload.extend((share, victim) for victim in victims)
                plan.load.append((share, model))
                return None
            self._full[share] = pages
        return wake_ns

    def _update(self, now_ns: int, cluster: Cluster) -> int | None:
        """Which shares a LOAD can be given to now; returns when the next one can."""
        later = self._later
        while later and later[0][0] < now_ns:
            at_ns, _, share = heapq.heappop(later)
            if self._at_ns.get(share) == at_ns:
                self._touched[share] = True
        for share in self._touched:
            self._ready.pop(share, None)
            self._at_ns.pop(share, None)
            if not cluster.workers[share.worker].reachable or share.hangs(now_ns, self._settings.action_grace_ns):
                continue  # until something happens on it
            at_ns = share.load.free_at(now_ns) - self._settings.lookahead_ns
            if at_ns < now_ns or not share.load.pending:
                self._ready[share] = True
            else:
                self._at_ns[share] = at_ns
                heapq.heappush(later, (at_ns, share.index, share))
        self._touched.clear()
        while later and self._at_ns.get(later[0][2]) != later[0][0]:
            heapq.heappop(later)
        return later[0][0] if later else None

    def _candidates(self, now_ns: int, demand: Demand, specs: Mapping[str, ModelSpec]) -> list[Share]:
        """Shares that a LOAD can be given to, the one with the least to do first; hardly any that has no room for it.

        Most lack the neediest model of all: where its pages could not be had, nothing else is asked.
        """
        first, found, full = demand.first(), [], self._full
        pages = specs[first].pages if first in specs else 0
        for share in self._ready:
            if full.get(share, pages + 1) <= pages and share.lacks(first):
                continue
            if not share.hangs(now_ns, self._settings.action_grace_ns):
                found.append((demand.load_ns(share), share.index, share))
        found.sort()
        return [share for *_, share in found]

    def _preload(self, cluster: Cluster, plan: Plan) -> None:
        """Ahead of any demand: a model into pages that are free, on a share that loads nothing."""
        for share in list(self._roomy):
            if share.load.pending:
                continue
            fits = (key for key, spec in cluster.specs.items() if spec.pages <= share.pages_free and share.lacks(key))
            model = None if share.gone or not share.pages_free else next(fits, None)
            if model is None:
                del self._roomy[share]
            elif cluster.workers[share.worker].reachable:
                plan.load.append((share, model))
                return


def _victims(share: Share, pages: int, demand: Demand, running: Mapping[tuple[Share, str], bool]) -> list[str] | None:
    """Least recently used models to unload for `pages`; None if that cannot be had. Models in demand go last.

    One that runs stays; so does one that was loaded for requests still waiting, until it has run: else two models
    could evict each other for ever, and neither would run.
    """
    victims: list[str] = []
    wanted: list[str] = []
    found = share.pages_free
    for model, held in share.resident.items():
        if found >= pages:
            return victims
        if model in demand:
            if model not in share.unused and (share, model) not in running:
                wanted.append(model)
        elif (share, model) not in running and not share.busy_with(model):
            victims.append(model)
            found += held
    for model in wanted:
        if found >= pages:
            return victims
        if not share.busy_with(model):
            victims.append(model)
            found += share.resident[model]
    return victims if found >= pages else None
