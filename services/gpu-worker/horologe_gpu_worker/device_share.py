"""Interface of a device share: it limits this worker process to a part of a device (iGniter section 4)."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, NamedTuple, Protocol

from horologe_common.service.service import boot_id
from horologe_common.service.settings import SettingsError
from horologe_gpu_worker.settings import WorkerSettings, device_config

if TYPE_CHECKING:
    from horologe_common.wire import DeviceInfo


class EnteredShare(NamedTuple):
    """The share that the process has now."""

    device: DeviceInfo
    percent: float
    """Part of the device. It differs from `worker.share_percent` where a mechanism has fixed sizes."""


class ShareMechanism(Protocol):
    """A mechanism of `worker.share_mechanism`. Created with the worker's settings."""

    def enter(self) -> EnteredShare:
        """Limit this process, before a model is opened. Raises SettingsError if this machine cannot do it."""


def chosen_mechanism(settings: WorkerSettings) -> str:
    """Return the mechanism that the settings choose. Raises SettingsError for settings that contradict each other."""
    percent, on_cuda = settings.share_percent, device_config(settings).cuda is not None
    if not (isfinite(percent) and 0 < percent <= 100):
        raise SettingsError(f"setting worker.share_percent: got {percent:g}, wanted above 0 and at most 100")
    mechanism: str = settings.share_mechanism
    if mechanism == "auto":
        mechanism = "whole" if percent == 100 else "mps" if on_cuda else "emulated"
    if mechanism == "whole" and percent != 100:
        raise SettingsError(f"setting worker.share_percent: got {percent:g}, wanted 100 for share_mechanism 'whole'")
    permitted = ("whole", "container", "mps", "mig") if on_cuda else ("whole", "container", "cpu", "emulated")
    if mechanism not in permitted:
        wanted = f"wanted one of {', '.join(permitted)} for worker.device {settings.device!r}"
        raise SettingsError(f"setting worker.share_mechanism: got {mechanism!r}, {wanted}")
    if percent != 100 and settings.shares != 1:
        raise SettingsError(f"setting worker.shares: got {settings.shares}, wanted 1 for a share of {percent:g}%")
    return mechanism


def device_id(settings: WorkerSettings) -> str:
    """Return the id of a device that has none of its own: the host, and the device.

    Workers with a whole CPU device have devices of their own: each takes the place of one core.
    """
    if settings.device_id:
        return settings.device_id
    own = device_config(settings).cuda is None and settings.share_percent == 100
    return "/".join((boot_id(), settings.device, *((settings.name,) if own else ())))
