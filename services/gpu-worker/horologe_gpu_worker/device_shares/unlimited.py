"""Shares that need no step in this process: a whole device, a container with limits, a share of an emulated device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.wire import DeviceInfo
from horologe_gpu_worker.device_share import EnteredShare, device_id
from horologe_gpu_worker.settings import device_config

if TYPE_CHECKING:
    from horologe_gpu_worker.settings import WorkerSettings


class UnlimitedShare:
    """A share as the settings declare it."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings

    def enter(self) -> EnteredShare:
        """See `ShareMechanism`."""
        settings = self._settings
        if (cuda := device_config(settings).cuda) is not None:
            from horologe_gpu_worker.device_shares.gpu_description import describe_cuda_device

            return EnteredShare(describe_cuda_device(settings, cuda), settings.share_percent)
        device = DeviceInfo(device_id(settings), settings.hardware or settings.device)
        return EnteredShare(device, settings.share_percent)
