"""Which shares hold each model, and what has changed in the cluster since the last plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from horologe_controller.core.cluster.share import Share


class ClusterChanges:
    """Changes of the cluster since the last `clear`.

    The mirror writes through the `mark_*` methods. `Planner.plan` reads and clears all but the last two,
    `Controller._adopt_model_changes` those.
    """

    def __init__(self) -> None:
        self.shares: dict[Share, bool] = {}
        """Changed shares. True: the share is reachable now, or the set of models that it can hold changed."""
        self.resident_models: dict[tuple[Share, str], bool] = {}
        """Models that were placed on a share or removed from it."""
        self.shares_reconfigured = False
        """True if `shares` contains a True."""
        self.revised_models: dict[str, bool] = {}
        """Models with a new spec, and models that no share can run any more. Their requests are queued again."""
        self.unservable: dict[tuple[Share, str], bool] = {}
        """Models that occupy pages of a share which cannot run them any more. They are unloaded."""

    def mark_share(self, share: Share) -> None:
        """Record that the actions or the models of the share have changed."""
        self.shares.setdefault(share, False)

    def mark_reconfigured(self, share: Share) -> None:
        """Record that the share can hold other models than before, or can be reached now."""
        self.shares[share] = self.shares_reconfigured = True

    def mark_residency(self, share: Share, model: str) -> None:
        """Record that the model was placed on the share or removed from it."""
        self.shares.setdefault(share, False)
        self.resident_models[share, model] = True

    def mark_revised(self, model: str) -> None:
        """Record that requests for the model have to be queued again."""
        self.revised_models[model] = True

    def mark_unservable(self, share: Share, model: str) -> None:
        """Record that the share holds the model and cannot run it."""
        self.unservable[share, model] = True

    def clear(self) -> None:
        """Start an empty record for the next plan."""
        self.shares.clear()
        self.resident_models.clear()
        self.shares_reconfigured = False


class ModelResidency:
    """Shares that hold each model (resident or being loaded). Shares keep it up to date."""

    def __init__(self, changes: ClusterChanges) -> None:
        self.shares_of: dict[str, dict[Share, bool]] = {}
        """Model key -> share -> whether the model is resident there already."""
        self._changes = changes

    def add_model(self, share: Share, model: str, *, resident: bool) -> None:
        self.shares_of.setdefault(model, {})[share] = resident
        self._changes.mark_residency(share, model)

    def remove_model(self, share: Share, model: str) -> None:
        shares = self.shares_of[model]
        del shares[share]
        if not shares:
            del self.shares_of[model]
        self._changes.mark_residency(share, model)

    def count_resident(self, model: str) -> int:
        """Return the number of shares where the model is resident."""
        return sum(self.shares_of.get(model, {}).values())
