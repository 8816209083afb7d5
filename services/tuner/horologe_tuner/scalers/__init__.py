"""Registry of scalers by the value of `tuner.scaler`. A scaler's packages are imported only if it is chosen."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from horologe_tuner.scaler import Scaler
    from horologe_tuner.settings import TunerSettings

SCALERS = {
    "process": ("process", "ProcessScaler"),
    "docker": ("compose", "ComposeScaler"),
    "swarm": ("swarm", "SwarmScaler"),
    "kubernetes": ("kubernetes", "KubernetesScaler"),
}
"""Value of `tuner.scaler` -> module of this package and class."""


def create_scaler(settings: TunerSettings) -> Scaler | None:
    """Return the scaler; None for `none`. Raises SettingsError for invalid settings, ScalingError without an engine."""
    if settings.scaler == "none":
        return None
    module, name = SCALERS[settings.scaler]
    return cast("Scaler", getattr(import_module(f"{__name__}.{module}"), name)(settings))
