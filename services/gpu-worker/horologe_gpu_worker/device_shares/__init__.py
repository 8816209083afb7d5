"""Device share: the part of a device to which this worker process is limited (iGniter section 4).

A mechanism limits it: the value of `worker.share_mechanism`. Its module is imported only if it is chosen.
"""

from __future__ import annotations

import os
from importlib import import_module
from math import isfinite
from typing import NamedTuple

from horologe_common.service.log import logger
from horologe_common.service.service import boot_id
from horologe_common.service.settings import SettingsError
from horologe_common.wanted_shares import GPU_ID
from horologe_common.wire import DeviceInfo
from horologe_gpu_worker.settings import WorkerSettings

MECHANISMS = ("mps", "mig", "cpu")
"""Mechanisms with a module of this package. Its function `enter` limits this process, before a model is opened, and
raises SettingsError if this machine cannot do it."""

log = logger("share")


class EnteredShare(NamedTuple):
    """The share that the process has now."""

    device: DeviceInfo
    percent: float
    """Part of the device. It differs from `worker.share_percent` where a mechanism has fixed sizes."""


def chosen_mechanism(settings: WorkerSettings) -> str:
    """Return the mechanism that the settings choose. Raises SettingsError for settings that contradict each other."""
    percent, on_cuda = settings.share_percent, settings.cuda is not None
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
    own = settings.cuda is None and settings.share_percent == 100
    return "/".join((boot_id(), settings.device, *((settings.name,) if own else ())))


def select_gpu(settings: WorkerSettings) -> None:
    """Have CUDA see only the GPU of `worker.device_id`, as its first device. Raises SettingsError for others."""
    if settings.cuda != 0:
        raise SettingsError(f"setting worker.device: got {settings.device!r}, wanted cuda: worker.device_id is a GPU")
    os.environ["CUDA_VISIBLE_DEVICES"] = settings.device_id


def enter_share(settings: WorkerSettings) -> EnteredShare:
    """Limit this process to its share of the device. Raises SettingsError."""
    mechanism = chosen_mechanism(settings)
    if settings.device_id.startswith(GPU_ID) and mechanism != "mig":
        select_gpu(settings)
    enter = import_module(f"{__name__}.{mechanism}").enter if mechanism in MECHANISMS else _enter_unlimited
    entered: EnteredShare = enter(settings)
    if mechanism != "whole":
        log.info("share entered", mechanism=mechanism, percent=entered.percent, device=entered.device.id)
    return entered


def _enter_unlimited(settings: WorkerSettings) -> EnteredShare:
    """Return a share that needs no step: of a whole device, of a container with limits, of an emulated device."""
    if (cuda := settings.cuda) is not None:
        from horologe_gpu_worker.nvml import describe_cuda_device

        return EnteredShare(describe_cuda_device(settings, cuda), settings.share_percent)
    device = DeviceInfo(device_id(settings), settings.hardware or settings.device)
    return EnteredShare(device, settings.share_percent)
