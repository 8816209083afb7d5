"""A share of a GPU as a MIG device (Multi-Instance GPU), whose sizes an administrator has set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from horologe_common.service.settings import SettingsError
from horologe_common.wanted_shares import GPU_ID
from horologe_gpu_worker.device_share import EnteredShare
from horologe_gpu_worker.device_shares.claims import claim_part
from horologe_gpu_worker.device_shares.gpu_description import describe_gpu
from horologe_gpu_worker.nvml import load_nvml
from horologe_gpu_worker.settings import device_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_gpu_worker.nvml import MigDevice, Nvml, NvmlGpu
    from horologe_gpu_worker.settings import WorkerSettings

TOLERANCE_PERCENT = 2.5
"""A slice within this of `worker.share_percent` fits: the unit of plans is 2.5%, the smallest slice has 14%."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


class MigShare:
    """Takes a free MIG device of the wanted size, and hides all other devices from CUDA.

    Only a slice that CUDA_VISIBLE_DEVICES names, or of the GPU that `worker.device_id` names, if they do.
    """

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings

    def enter(self) -> EnteredShare:
        """See `DeviceShare`. Raises SettingsError without NVML, or if no slice of this size is free."""
        if device_config(self._settings).cuda != 0:
            raise SettingsError(
                f"setting worker.device: got {self._settings.device!r}, wanted cuda for share_mechanism 'mig'"
            )
        try:
            gpu, device = self._claim(list(self._find_devices(load_nvml())))
            info = describe_gpu(self._settings, gpu)
        except OSError as error:
            raise SettingsError(
                f"setting worker.share_mechanism: got 'mig', and NVML cannot be used: {error}"
            ) from error
        os.environ[VISIBLE] = device.uuid
        return EnteredShare(info, device.percent)

    def _find_devices(self, nvml: Nvml) -> Iterator[tuple[NvmlGpu, MigDevice]]:
        """Yield the permitted MIG devices of all GPUs."""
        visible, gpu_id = os.environ.get(VISIBLE, ""), self._settings.device_id
        for gpu in nvml.gpus():
            if gpu_id.startswith(GPU_ID) and gpu.uuid != gpu_id:
                continue
            for device in gpu.mig_devices():
                if not visible.startswith("MIG-") or device.uuid == visible:
                    yield gpu, device

    def _claim(self, devices: list[tuple[NvmlGpu, MigDevice]]) -> tuple[NvmlGpu, MigDevice]:
        """Claim the free device that is nearest to the wanted size."""
        percent, folder = self._settings.share_percent, Path(self._settings.cache) / "claims"
        distances = {device.uuid: abs(device.percent - percent) for _, device in devices}
        fitting = [pair for pair in devices if distances[pair[1].uuid] <= TOLERANCE_PERCENT]
        for pair in sorted(fitting, key=lambda pair: distances[pair[1].uuid]):
            if claim_part(folder, pair[1].uuid):
                return pair
        sizes = ", ".join(f"{device.percent:g}%" for _, device in devices) or "none: MIG is off"
        used = f"; all {len(fitting)} of this size are in use" if fitting else ""
        raise SettingsError(f"setting worker.share_percent: got {percent:g}, wanted a MIG device, of {sizes}{used}")
