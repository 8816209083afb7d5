"""The shares that may run each model, and the profiles of the model there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.clock import NEVER_NS
from horologe_controller.core.cluster.estimates import FIRST_RUN_NS, Estimate, new_pace
from horologe_controller.core.cluster.model_profiles import BATCH_COST_NS, LOAD_SIZE, ModelProfiles

if TYPE_CHECKING:
    from horologe_common.models import ModelSpec, Profile
    from horologe_common.wire import ModelReport
    from horologe_controller.core.cluster.planned_models import PlannedModels
    from horologe_controller.core.cluster.share import ClusterChanges, Share


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

    def update_share(self, share: Share, model: str, profile: Profile | None, spec: ModelSpec) -> None:
        """Let the share run the model, stand by, or neither. `profile`: None if it could not run it without a plan.

        `spec`: as the worker reports it.
        """
        if profile is not None and self._planned.permits(share, model):
            share.end_standby(model)
            seed = self.profiles.add_profile(model, self._planned.adjust_profile(share, model, profile))
            # The pace of a share is relative to measured profiles.
            pace = share.pace if profile.measured else new_pace(NEVER_NS)
            slack_ns = 0 if profile.measured else FIRST_RUN_NS
            cost_ns = BATCH_COST_NS["cpu" if _runs_on_cpu(spec, share) else "device"]
            estimate = Estimate(seed, pace, spec.content_hash, share.trials, slack_ns, cost_ns)
            self._add_share(share, model, estimate)
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


def _runs_on_cpu(spec: ModelSpec, share: Share) -> bool:
    """Return whether batches take cores from services. All models of a CUDA worker count as on its GPU."""
    return spec.runtime != "emulated" and not share.device.startswith("cuda")


def runnable_profile(
    model: ModelReport, served: ModelSpec | None, pages_total: int, *, reloading: bool
) -> Profile | None:
    """Return the model's profile if a share of `pages_total` could run it; None for another content or batch sizes.

    `served`: the spec of all workers, None if there is none yet. `reloading`: workers read the model again, and may
    run the content before or the new one.
    """
    spec, profile = model.spec, model.profile
    served = served or spec
    same_content = spec.content_hash == served.content_hash and spec.has_same_rows(served)
    right_content = same_content or (reloading and spec.is_compatible(served))
    fits = right_content and spec.pages <= pages_total
    if profile is None or not fits or missing_batch_sizes(profile, served.batch_sizes):
        return None
    return profile


def missing_batch_sizes(profile: Profile, sizes: tuple[int, ...]) -> list[int]:
    """Return the batch sizes that the profile has no measurement of."""
    return [size for size in sizes if size not in profile.exec_ns]
