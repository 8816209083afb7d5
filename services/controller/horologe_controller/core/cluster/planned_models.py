"""The tuner's plan in force: which shares hold each planned model, and its largest batch.

Without a plan, every share may run every model that it can, in any compiled batch size.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from horologe_common.core.protocol import instance

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from horologe_common.models import ModelSpec, Profile
    from horologe_common.wire import PlannedModel, ResourcePlan
    from horologe_controller.core.cluster.cluster import Cluster, WorkerMirror
    from horologe_controller.core.cluster.share import Share


class PlannedModels:
    """Assigns shares to planned models. A model that is not planned, or whose hardware is missing, has all shares."""

    def __init__(self) -> None:
        self.number = 0
        """Number of the plan in force; 0: none."""
        self._models: dict[str, tuple[PlannedModel, ...]] = {}
        """Entries of the plan by name, or by key `name/version`."""
        self._assigned: dict[str, dict[Share, Mapping[int, int]]] = {}
        """Model key -> its shares -> durations that the plan predicts there, by batch size."""
        self._standby: dict[str, dict[Share, bool]] = {}
        """Model key -> shares that keep it loaded and do not run it."""
        self._switching: dict[str, tuple[Mapping[Share, bool], Sequence[str]]] = {}
        """Name of a model -> shares that keep versions of it loaded while requests switch between them."""

    def replace_plan(self, plan: ResourcePlan) -> None:
        """Adopt a plan. `assign_shares` makes it effective."""
        self.number = plan.number
        self._models = {}
        for model in plan.models:
            self._models[model.model] = (*self._models.get(model.model, ()), model)

    def find_entries(self, key: str) -> tuple[PlannedModel, ...]:
        """Return the plan's entries for a model, by its key or its name."""
        return self._models.get(key) or self._models.get(key.partition("/")[0]) or ()

    def permits(self, share: Share, key: str) -> bool:
        """Return whether the share may run the model."""
        assigned = self._assigned.get(key)
        return assigned is None or share in assigned

    def stands_by(self, share: Share, key: str) -> bool:
        """Return whether the share keeps the model loaded and does not run it."""
        return share in self._standby.get(key, ())

    def slo_ns(self, key: str) -> int:
        """Return the SLO by which the plan wants the model's latencies counted; 0: none."""
        return max([entry.slo_ns for entry in self.find_entries(key)], default=0) if self._models else 0

    def adjust_profile(self, share: Share, key: str, profile: Profile) -> Profile:
        """Return the profile with the durations that the plan predicts for the share.

        A batch size without a prediction is scaled as the nearest one that has a prediction.
        """
        predicted = self._assigned.get(key, {}).get(share) or {}
        known = [size for size in predicted if profile.exec_ns.get(size)]
        if not known:
            return profile
        exec_ns = {}
        for size, profiled_ns in profile.exec_ns.items():
            nearest = min(known, key=lambda other: (abs(other - size), other))
            exec_ns[size] = profiled_ns * predicted[nearest] // profile.exec_ns[nearest]
        return msgspec.structs.replace(profile, exec_ns=exec_ns)

    def limit_batches(self, spec: ModelSpec) -> ModelSpec:
        """Return the spec with the batch sizes that the plan permits: at least the smallest."""
        entries = self.find_entries(spec.key) if self._models else ()
        largest = max([entry.max_batch for entry in entries], default=spec.max_batch)
        if largest >= spec.max_batch:
            return spec
        count = max(1, bisect_right(spec.batch_sizes, largest))
        return msgspec.structs.replace(spec, batch_sizes=spec.batch_sizes[:count])

    def reassign(self, cluster: Cluster) -> list[tuple[Share, str]]:
        """Assign shares to the planned models again. Return the shares that could run each changed model.

        Those that may run it come first: a model never has no share in between. The shares of draining workers stay as
        they are: their pending actions go on.
        """
        if not self._models and not self._assigned:
            return []
        candidates = UnplannedShares(cluster)
        before, stood_by = self._assigned, self._standby
        self._assign_shares(candidates, sorted(cluster.admitted))
        changed = [
            key
            for key in sorted(before | stood_by | self._assigned | self._standby)
            if before.get(key) != self._assigned.get(key) or stood_by.get(key) != self._standby.get(key)
        ]
        for share in (*chain.from_iterable(before.values()), *chain.from_iterable(stood_by.values())):
            share.kept = {}
        self._update_kept()
        pairs = []
        for key in changed:
            if key in before and key in self._assigned:  # all other shares may not run it, as before
                parts = (before[key], stood_by.get(key, {}), self._assigned[key], self._standby.get(key, {}))
                affected: Iterable[Share] = candidates.connected(dict.fromkeys(chain(*parts)))
            else:
                affected = candidates.of_model(key)
            pairs += [(share, key) for share in affected]
        return sorted(pairs, key=lambda pair: not self.permits(*pair))

    def _assign_shares(self, candidates: UnplannedShares, keys: Iterable[str]) -> None:
        """Assign shares to the planned models among the keys.

        A model gets the shares of the workers that the plan names. If none of them is there, it gets its number of
        shares of its hardware type, first those with the fewest other planned models, then those that it has.
        """
        before, self._assigned, self._standby = self._assigned, {}, {}
        load: dict[Share, int] = {}
        for key in keys:
            if not (entries := self.find_entries(key)):
                continue
            if not (assigned := _named_shares(key, entries, candidates)):
                held = before.get(key, {})
                order = candidates.of_model(key)
                order.sort(key=lambda share: (load.get(share, 0), share not in held, share.index))
                assigned = _pooled_shares(entries, order)
            if assigned:
                self._assigned[key] = assigned
            if standby := _standby_shares(key, entries, candidates, assigned):
                self._standby[key] = standby
            for share in assigned:
                load[share] = load.get(share, 0) + 1

    def _update_kept(self) -> None:
        """Write into each share the models that it must hold."""
        for key, share in self._holding():
            share.kept = share.kept | {key: True}

    def keep_for_switch(self, name: str, shares: Mapping[Share, bool], keys: Sequence[str]) -> Iterable[Share]:
        """Keep versions of a model loaded on the shares, in place of those of the last call. Return changed shares."""
        before, _ = self._switching.pop(name, ({}, ()))
        if shares:
            self._switching[name] = (shares, keys)
        changed = {**before, **shares}
        for share in changed:
            share.kept = {}
        self._update_kept()
        return changed

    def _holding(self) -> Iterator[tuple[str, Share]]:
        """Yield the pairs of a model and a share that must hold it."""
        yield from ((key, share) for key, shares in self._assigned.items() for share in shares)
        yield from ((key, share) for key, shares in self._standby.items() for share in shares)
        yield from ((key, share) for shares, keys in self._switching.values() for key in keys for share in shares)

    def check(self) -> None:
        """Assert that the shares keep what is assigned to them."""
        assert all(share.is_lost or key in share.kept for key, share in self._holding())


class UnplannedShares:
    """Shares that could run models without a plan, of workers that do not drain.

    A plan that names workers asks for their shares only. With 200 models on 400 workers, to ask for all shares of each
    model would take 80,000 checks at every switch of a model.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._workers = {address: worker for address, worker in cluster.workers.items() if not worker.draining}
        self._by_name = {instance(address).partition("/")[2]: worker for address, worker in self._workers.items()}

    def of_model(self, key: str) -> list[Share]:
        """Return all shares that could run the model."""
        return [share for worker in self._workers.values() for share in self._runnable(key, worker)]

    def of_worker(self, key: str, name: str) -> list[Share]:
        """Return the shares of the worker `name` that could run the model; none if it is not connected."""
        worker = self._by_name.get(name)
        return [] if worker is None else self._runnable(key, worker)

    def connected(self, shares: Iterable[Share]) -> Iterator[Share]:
        """Yield those shares whose worker is connected and does not drain."""
        return (share for share in shares if share.worker in self._workers)

    def _runnable(self, key: str, worker: WorkerMirror) -> list[Share]:
        shares = worker.shares.values() if key in worker.models else ()
        return [share for share in shares if self._cluster.runnable_profile(worker, share, key) is not None]


def _named_shares(
    key: str, entries: Iterable[PlannedModel], candidates: UnplannedShares
) -> dict[Share, Mapping[int, int]]:
    """Return the shares of the workers that the entries name, with the durations predicted there.

    An entry without a connected worker gets the first of its standby shares, one that has the model if possible.
    """
    assigned: dict[Share, Mapping[int, int]] = {}
    for entry in entries:
        named = [share for name in entry.workers for share in candidates.of_worker(key, name)]
        assigned |= dict.fromkeys(named, entry.exec_ns)
        if not named and (standby := [share for name in entry.standby for share in candidates.of_worker(key, name)]):
            standby.sort(key=lambda share: key not in share.held and key not in share.resident)
            assigned[standby[0]] = {}
    return assigned


def _standby_shares(
    key: str, entries: Iterable[PlannedModel], candidates: UnplannedShares, assigned: Container[Share]
) -> dict[Share, bool]:
    """Return the shares of the standby workers that the entries name, without those that run the model."""
    names = [name for entry in entries for name in entry.standby]
    return {share: True for name in names for share in candidates.of_worker(key, name) if share not in assigned}


def _pooled_shares(entries: Iterable[PlannedModel], shares: Iterable[Share]) -> dict[Share, Mapping[int, int]]:
    """Return as many shares of each entry's hardware type as it wants, the first of them."""
    assigned: dict[Share, Mapping[int, int]] = {}
    for entry in entries:
        matching = [share for share in shares if entry.hardware in ("", share.hardware) and share not in assigned]
        assigned |= {share: {} for share in matching[: max(1, entry.shares)]}
    return assigned


def apply_plan(cluster: Cluster, plan: ResourcePlan) -> None:
    """Adopt a tuner's plan: the batch sizes and the shares of each model."""
    cluster.planned.replace_plan(plan)
    cluster.admit_models(cluster.admitted, cluster.reloading)
