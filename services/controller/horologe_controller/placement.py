"""Which model to load where, and which to evict for it (Clockwork appendix B)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_controller.cluster import Cluster
    from horologe_controller.demand import Demand
    from horologe_controller.scheduler import Plan
    from horologe_controller.settings import Settings
    from horologe_controller.share import Share


class Placement:
    """At most one LOAD a plan, with the UNLOADs that make room for it: the next is decided knowing of it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._roomy: dict[Share, bool] = {}
        """Shares not filled yet. Where a model has once been evicted, only demand fills pages."""
        self._full: dict[Share, int] = {}
        """Shares in which so many pages could not be had. It stays so until something has happened on the share, or a
        model that it holds is asked for no more; to look again each time took 160 us with 10,000 requests waiting."""

    def touched(self, share: Share) -> None:
        """Something has happened on it."""
        self._full.pop(share, None)

    def changed(self, share: Share) -> None:
        """The models it can hold are others."""
        self._roomy[share] = True

    def forget(self, share: Share) -> None:
        """It is gone."""
        self._roomy.pop(share, None)
        self._full.pop(share, None)

    def plan(self, now_ns: int, cluster: Cluster, demand: Demand, plan: Plan) -> int | None:
        """Add to the plan; returns when a LOAD lane wants more, if something waits for that."""
        if demand.unfulfilled():
            return self._load_wanted(now_ns, cluster, demand, plan)
        if self._settings.preload:
            self._preload(cluster, plan)
        return None

    def _load_wanted(self, now_ns: int, cluster: Cluster, demand: Demand, plan: Plan) -> int | None:
        """LOAD for the share with the least to do: the neediest model it lacks."""
        for share in demand.take_left():
            self._full.pop(share, None)
        running = {(batch.share, batch.model): True for batch in plan.start}
        horizon_ns = now_ns + self._settings.lookahead_ns
        free, wake_ns = [], None
        for share in cluster.shares():
            if share.hangs(now_ns, self._settings.action_grace_ns):
                continue
            if not share.load.pending or (free_ns := share.load.free_at(now_ns)) < horizon_ns:
                free.append((demand.load_ns(share), share.index, share))
            else:
                wake_ns = free_ns if wake_ns is None else min(wake_ns, free_ns)
        for _, _, share in sorted(free):
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
        return None if wake_ns is None else wake_ns - self._settings.lookahead_ns

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
    found = share.pages_free
    for wanted in (False, True):
        for model, held in share.resident.items():
            if found >= pages:
                return victims
            if (model in demand) is wanted and not (
                (wanted and model in share.unused) or (share, model) in running or share.busy_with(model)
            ):
                victims.append(model)
                found += held
    return victims if found >= pages else None
