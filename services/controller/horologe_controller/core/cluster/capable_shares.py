"""The shares that may run each model, and the profiles of the model there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS
from horologe_controller.core.cluster.estimates import FIRST_RUN_NS, LOAD_SIZE, Estimate, new_pace, profiled_ns

if TYPE_CHECKING:
    from collections.abc import Iterable

    from horologe_common.models import Profile
    from horologe_controller.core.cluster.planned_models import PlannedModels
    from horologe_controller.core.cluster.residency import ClusterChanges
    from horologe_controller.core.cluster.share import Share

    ProfiledDurations = dict[int, int]
    """Durations in ns by batch size, LOAD under `LOAD_SIZE`."""


class ModelProfiles:
    """Distinct profiles of the shares that can run each model. The last one is kept when no share can."""

    def __init__(self) -> None:
        self._seeds: dict[str, dict[tuple[tuple[int, int], ...], ProfiledDurations]] = {}
        self._shortest_ns: dict[tuple[str, int], int] = {}
        """Results of `shortest_ns` since the last change."""

    def __contains__(self, model: str) -> bool:
        return model in self._seeds

    def add_profile(self, model: str, profile: Profile) -> ProfiledDurations:
        """Return the profile's durations, as one object for all shares with an equal profile."""
        self._shortest_ns.clear()
        seed = {LOAD_SIZE: max(1, profile.load_ns), **profile.exec_ns}
        return self._seeds.setdefault(model, {}).setdefault(tuple(seed.items()), seed)

    def discard_unused(self, model: str, capable: Iterable[Share]) -> None:
        """Discard the profiles that none of the capable shares uses, but for the last."""
        seeds = self._seeds[model]
        for key, seed in list(seeds.items()):
            if len(seeds) > 1 and not any(share.estimates[model].seed_ns is seed for share in capable):
                del seeds[key]
                self._shortest_ns.clear()

    def discard_model(self, model: str) -> None:
        self._shortest_ns.clear()
        del self._seeds[model]

    def shortest_ns(self, model: str, size: int) -> int:
        """Return the shortest profiled duration of a batch of `size`; 0 if no share could ever run the model."""
        shortest_ns = self._shortest_ns.get((model, size))
        if shortest_ns is None:
            seeds = self._seeds.get(model, {}).values()
            shortest_ns = min([profiled_ns(seed, size) for seed in seeds], default=0)
            self._shortest_ns[model, size] = shortest_ns
        return shortest_ns


class CapableShares:
    """Capable shares by model. Each has an estimate of the model, and is permitted to run it by the plan.

    `cached_exec`: results by model and batch size, which are discarded when a share of the model changes.
    """

    def __init__(
        self, planned: PlannedModels, changes: ClusterChanges, cached_exec: dict[str, dict[int, tuple[int, int, int]]]
    ) -> None:
        self.of_model: dict[str, dict[Share, bool]] = {}
        self.profiles = ModelProfiles()
        self._planned = planned
        self._changes = changes
        self._cached_exec = cached_exec

    def update_share(self, share: Share, model: str, profile: Profile | None, content_hash: str) -> None:
        """Let the share run the model, stand by, or neither. `profile`: None if it could not run it without a plan."""
        if profile is not None and self._planned.permits(share, model):
            share.end_standby(model)
            seed = self.profiles.add_profile(model, self._planned.adjust_profile(share, model, profile))
            # The pace of a share is relative to measured profiles.
            pace = share.pace if profile.measured else new_pace(NEVER_NS)
            slack_ns = 0 if profile.measured else FIRST_RUN_NS
            self._add_share(share, model, Estimate(seed, pace, content_hash, share.trials, slack_ns))
        elif profile is not None and self._planned.stands_by(share, model):
            self._withdraw_share(share, model)
            share.begin_standby(model, Estimate({LOAD_SIZE: max(1, profile.load_ns)}, share.pace))
        else:
            self.withdraw_model(share, model)

    def _add_share(self, share: Share, model: str, fresh: Estimate) -> None:
        """Set the share's estimate of the model, unless it has measurements of the same content and profile."""
        estimate = share.estimates.get(model)
        same_content = estimate is not None and estimate.content_hash == fresh.content_hash
        if estimate is None or not same_content or estimate.seed_ns is not fresh.seed_ns:
            if same_content:
                share.pace.clear()  # it is relative to the durations that the plan replaces
            share.estimates[model] = fresh
            self._cached_exec.pop(model, None)
            self.of_model.setdefault(model, {})[share] = True
            self.profiles.discard_unused(model, self.of_model[model])

    def withdraw_model(self, share: Share, model: str) -> None:
        """Record that the share cannot run the model (any more)."""
        withdrawn = self._withdraw_share(share, model) or share.end_standby(model)
        if withdrawn and model in share.resident:
            self._changes.mark_unservable(share, model)

    def _withdraw_share(self, share: Share, model: str) -> bool:
        """Remove the share from those that may run the model. Return whether it was one."""
        if share.estimates.pop(model, None) is None:
            return False
        self._remove_share(share, model)
        if model not in self.of_model:
            self.profiles.discard_model(model)
            self._changes.mark_revised(model)
        self._cached_exec.pop(model, None)
        return True

    def remove_lost(self, share: Share) -> None:
        """Remove a share whose worker has disconnected. Its profiles are kept while no other share has the model."""
        for model in share.estimates:
            self._remove_share(share, model)

    def _remove_share(self, share: Share, model: str) -> None:
        capable = self.of_model[model]
        del capable[share]
        if not capable:
            del self.of_model[model]
        self.profiles.discard_unused(model, capable)
