"""A share of a GPU as a MIG device (Multi-Instance GPU), whose sizes an administrator has set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pynvml

from horologe_common.service.settings import SettingsError
from horologe_common.wanted_shares import GPU_ID
from horologe_gpu_worker.device_shares import EnteredShare
from horologe_gpu_worker.file_lock import lock_file
from horologe_gpu_worker.nvml import describe_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from horologe_gpu_worker.settings import WorkerSettings

TOLERANCE_PERCENT = 2.5
"""A slice within this of `worker.share_percent` fits: the unit of plans is 2.5%, the smallest slice has 14%."""
VISIBLE = "CUDA_VISIBLE_DEVICES"


class MigDevice(NamedTuple):
    """A slice of a GPU, whose NVML handle is `gpu`. `percent`: its compute slices, 1 of 7 for `1g` of an H100."""

    gpu: Any
    uuid: str
    percent: float


def enter(settings: WorkerSettings) -> EnteredShare:
    """Take a free MIG device of the wanted size, and hide all other devices from CUDA.

    Only a slice that CUDA_VISIBLE_DEVICES names, or of the GPU that `worker.device_id` names, if they do. Raises
    SettingsError without NVML, or if no slice of this size is free.
    """
    if settings.cuda != 0:
        raise SettingsError(f"setting worker.device: got {settings.device!r}, wanted cuda for share_mechanism 'mig'")
    try:
        pynvml.nvmlInit()
        device = _claim(settings, list(_find_permitted(settings.device_id)))
        info = describe_gpu(settings, device.gpu)
    except pynvml.NVMLError as error:
        raise SettingsError(f"setting worker.share_mechanism: got 'mig', and NVML cannot be used: {error}") from error
    os.environ[VISIBLE] = device.uuid
    return EnteredShare(info, device.percent)


def _find_permitted(gpu_id: str) -> Iterator[MigDevice]:
    visible = os.environ.get(VISIBLE, "")
    for index in range(pynvml.nvmlDeviceGetCount()):
        gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
        if gpu_id.startswith(GPU_ID) and pynvml.nvmlDeviceGetUUID(gpu) != gpu_id:
            continue
        for device in mig_devices(gpu):
            if not visible.startswith("MIG-") or device.uuid == visible:
                yield device


def _claim(settings: WorkerSettings, devices: list[MigDevice]) -> MigDevice:
    """Claim the free device that is nearest to the wanted size."""
    percent, folder = settings.share_percent, Path(settings.cache) / "claims"
    distances = {device.uuid: abs(device.percent - percent) for device in devices}
    fitting = [device for device in devices if distances[device.uuid] <= TOLERANCE_PERCENT]
    for device in sorted(fitting, key=lambda device: distances[device.uuid]):
        if lock_file(folder / f"{device.uuid}.lock") is not None:
            return device
    sizes = ", ".join(f"{device.percent:g}%" for device in devices) or "none: MIG is off"
    used = f"; all {len(fitting)} of this size are in use" if fitting else ""
    raise SettingsError(f"setting worker.share_percent: got {percent:g}, wanted a MIG device, of {sizes}{used}")


def mig_devices(gpu: Any) -> Iterator[MigDevice]:
    """Yield the MIG devices of a GPU: none if MIG is off or not supported. Raises NVMLError."""
    try:
        is_on, _ = pynvml.nvmlDeviceGetMigMode(gpu)
    except pynvml.NVMLError_NotSupported:
        return
    most = pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu) if is_on else 0
    for index in range(most):
        try:
            device = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except pynvml.NVMLError_NotFound:  # fewer than possible
            continue
        slices = pynvml.nvmlDeviceGetAttributes(device).computeInstanceSliceCount
        yield MigDevice(gpu, pynvml.nvmlDeviceGetUUID(device), round(100 * slices / most, 1))
