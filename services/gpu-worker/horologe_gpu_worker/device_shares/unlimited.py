"""A whole device, and a share of an emulated one: nothing limits the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_common.wire import DeviceInfo
from horologe_gpu_worker.device_share import EnteredShare, device_id

if TYPE_CHECKING:
    from horologe_gpu_worker.settings import WorkerSettings


class UnlimitedShare:
    """A share by declaration. The times of emulated models depend on its percentage."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings

    def enter(self) -> EnteredShare:
        """See `DeviceShare`."""
        settings = self._settings
        device = DeviceInfo(device_id(settings), settings.hardware or settings.device)
        return EnteredShare(device, settings.share_percent)
