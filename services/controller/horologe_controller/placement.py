"""Which models to load where, and which to evict (Clockwork appendix B)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import ms
from horologe_controller.cluster import LOAD_SIZE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from horologe_controller.cluster import Cluster, Share

CAPACITY_NS = ms(100)
"""Work a share is taken to do while the demand lasts: the default SLO of Clockwork's evaluation."""


def priorities(now_ns: int, demand_ns: Mapping[str, int], shares: list[Share]) -> dict[str, int]:
    """Load priority p_m = d_m - sum over g of a_m,g * capacity_g / l_g: a model's unfulfilled work, in ns.

    Allocations a_m,g share a model's demand among the shares that hold it, inversely to their load l_g.
    """
    load: dict[int, int] = {id(share): share.exec.free_at(now_ns) - now_ns for share in shares}
    allocations: list[tuple[str, int, int]] = []
    for model, demand in demand_ns.items():
        holders = [id(share) for share in shares if model in share.resident or model in share.loading]
        weights = [1 / (1 + load[holder]) for holder in holders]
        for holder, weight in zip(holders, weights, strict=True):
            part = int(demand * weight / sum(weights))
            allocations.append((model, holder, part))
            load[holder] += part
    unfulfilled = dict(demand_ns)
    for model, holder, part in allocations:
        unfulfilled[model] -= part * CAPACITY_NS // max(1, load[holder])
    return unfulfilled


def loads(
    now_ns: int, demand_ns: Mapping[str, int], cluster: Cluster, lookahead_ns: int, preload: bool
) -> tuple[list[tuple[Share, str]], list[tuple[Share, str]]]:
    """(loads, unloads) to give now: one LOAD per share whose LOAD lane has room, highest priority first."""
    chosen: list[tuple[Share, str]] = []
    evicted: list[tuple[Share, str]] = []
    free = [share for share in cluster.shares() if share.load.free_at(now_ns) < now_ns + lookahead_ns]
    if not free:
        return chosen, evicted
    if any(_absent(share, model) for share in free for model in demand_ns):  # most often nothing is: ranking costs
        ranked = sorted(priorities(now_ns, demand_ns, list(cluster.shares())).items(), key=lambda one: -one[1])
        for model, priority in ranked:
            if priority <= 0:
                break
            _place(now_ns, model, demand_ns, cluster, free, chosen, evicted)
    if preload and not chosen:
        for share in (share for share in free if share.pages_free):
            spare = next((key for key in cluster.specs if _fits(share, key, cluster)), None)
            if spare:
                chosen.append((share, spare))
    return chosen, evicted


def _place(
    now_ns: int, model: str, demand_ns: Mapping[str, int], cluster: Cluster, free: list[Share],
    chosen: list[tuple[Share, str]], evicted: list[tuple[Share, str]],
) -> None:  # fmt: skip
    """LOAD a model on the free share that will have it first, evicting the least recently used."""
    spec = cluster.specs.get(model)
    hosts = [share for share in free if spec and _absent(share, model)]
    for share in sorted(hosts, key=lambda one: one.exec.free_at(now_ns) + one.predict(now_ns, model, LOAD_SIZE)):
        victims = _victims(share, spec.pages if spec else 0, demand_ns)
        if victims is not None:
            evicted.extend((share, victim) for victim in victims)
            chosen.append((share, model))
            free.remove(share)
            return


def _victims(share: Share, pages: int, demand_ns: Mapping[str, int]) -> list[str] | None:
    """Least recently used models to unload for `pages`; None if that cannot be had. Models in demand go last.

    One that was loaded for requests still waiting stays until it has run: else two models could evict each other
    for ever, and neither would run.
    """
    idle = [
        model for model in share.resident
        if not share.busy_with(model) and not (model in share.unused and model in demand_ns)
    ]  # fmt: skip
    victims, found = [], share.pages_free
    for model in sorted(idle, key=lambda model: model in demand_ns):
        if found >= pages:
            break
        victims.append(model)
        found += share.resident[model]
    return victims if found >= pages else None


def _fits(share: Share, model: str, cluster: Cluster) -> bool:
    return cluster.specs[model].pages <= share.pages_free and _absent(share, model)


def _absent(share: Share, model: str) -> bool:
    """Whether the share could hold the model and does not."""
    return model in share.estimates and model not in share.resident and model not in share.loading
