"""Status of the tuner for operators."""

from __future__ import annotations

import msgspec

from horologe_tuner.core.journal import RecentEntry
from horologe_tuner.core.plans.running_plan import PlanStatus


class TunerStatus(msgspec.Struct, frozen=True):
    """State of the tuner for operators."""

    blind: str
    """Why arrivals cannot be seen; empty: they can."""
    dry_run: bool
    scaler: str
    scaler_error: str
    workers_wanted: dict[str, int]
    """By hardware type."""
    workers_running: dict[str, int]
    """As the scaler reports them."""
    devices_connected: dict[str, int]
    """As the controller reports them."""
    unserved_models: tuple[str, ...]
    """Planned models that no worker serves."""
    plans: tuple[PlanStatus, ...]
    journal: tuple[RecentEntry, ...]
    """The last entries, newest first."""
    shares_running: tuple[str, ...] = ()
    """Workers of shares, as the scaler reports them."""
