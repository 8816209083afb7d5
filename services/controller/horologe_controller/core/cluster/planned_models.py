"""The tuner's plan in force: which shares hold each planned model, and its largest batch.

Without a plan, every share may run every model that it can, in any compiled batch size.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from horologe_common.models import ModelSpec
    from horologe_common.wire import Plan, PlannedModel
    from horologe_controller.core.cluster.cluster import Cluster
    from horologe_controller.core.cluster.share import Share


class PlannedModels:
    """Assigns shares to planned models. A model that is not planned, or whose hardware is missing, has all shares."""

    def __init__(self) -> None:
        self.number = 0
        """Number of the plan in force; 0: none."""
        self._models: dict[str, PlannedModel] = {}
        """By name, or by key `name/version`."""
        self._assigned: dict[str, dict[Share, bool]] = {}
        """Model key -> its shares."""

    def replace_plan(self, plan: Plan) -> None:
        """Adopt a plan. `assign_shares` makes it effective."""
        self.number = plan.number
        self._models = {model.model: model for model in plan.models}

    def find_model(self, key: str) -> PlannedModel | None:
        """Return the plan of a model, by its key or its name."""
        return self._models.get(key) or self._models.get(key.partition("/")[0])

    def permits(self, share: Share, key: str) -> bool:
        """Return whether the share may run the model."""
        assigned = self._assigned.get(key)
        return assigned is None or share in assigned

    def limit_batches(self, spec: ModelSpec) -> ModelSpec:
        """Return the spec with the batch sizes that the plan permits: at least the smallest."""
        planned = self.find_model(spec.key) if self._models else None
        if planned is None or planned.max_batch >= spec.max_batch:
            return spec
        count = max(1, bisect_right(spec.batch_sizes, planned.max_batch))
        return msgspec.structs.replace(spec, batch_sizes=spec.batch_sizes[:count])

    def reassign(self, cluster: Cluster) -> list[tuple[Share, str]]:
        """Assign shares to the planned models again. Return the shares that could run each changed model.

        Those that may run it come first: a model never has no share in between. The shares of draining workers stay as
        they are: their pending actions go on.
        """
        if not self._models and not self._assigned:
            return []
        workers = [worker for worker in cluster.workers.values() if not worker.draining]
        candidates = {
            key: [
                share
                for worker in workers
                if key in worker.models
                for share in worker.shares.values()
                if cluster.runnable_profile(worker, share, key) is not None
            ]
            for key in cluster.admitted
        }
        changed = self._assign_shares(candidates)
        pairs = [(share, key) for key in changed for share in candidates.get(key, ())]
        return sorted(pairs, key=lambda pair: not self.permits(*pair))

    def _assign_shares(self, candidates: Mapping[str, Iterable[Share]]) -> list[str]:
        """Assign shares to the planned models among `candidates`: model key -> the shares that could run it.

        A model gets its number of shares of its hardware type, first those with the fewest other planned models, then
        those that it has. Return the keys whose shares have changed.
        """
        before, self._assigned = self._assigned, {}
        load: dict[Share, int] = {}
        for key in sorted(candidates):
            if (planned := self.find_model(key)) is None:
                continue
            matching = [share for share in candidates[key] if planned.hardware in ("", share.hardware)]
            held = before.get(key, {})
            matching.sort(key=lambda share: (load.get(share, 0), share not in held, share.index))
            if matching:
                self._assigned[key] = dict.fromkeys(matching[: max(1, planned.shares)], True)
            for share in self._assigned.get(key, ()):
                load[share] = load.get(share, 0) + 1
        changed = [key for key in (before | self._assigned) if before.get(key) != self._assigned.get(key)]
        self._update_kept(before)
        return sorted(changed)

    def _update_kept(self, before: Mapping[str, Mapping[Share, bool]]) -> None:
        """Write into each share the models that it must hold."""
        for shares in before.values():
            for share in shares:
                share.kept = {}
        for key, shares in self._assigned.items():
            for share in shares:
                share.kept = share.kept | {key: True}

    def check(self) -> None:
        """Assert that the shares keep what is assigned to them."""
        for key, shares in self._assigned.items():
            assert all(share.is_lost or key in share.kept for share in shares)


def apply_plan(cluster: Cluster, plan: Plan) -> None:
    """Adopt a tuner's plan: the batch sizes and the shares of each model."""
    cluster.planned.replace_plan(plan)
    cluster.admit_models(cluster.admitted, cluster.reloading)
