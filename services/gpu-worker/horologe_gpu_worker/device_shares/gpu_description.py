"""Description of the GPU of a share, from NVML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pynvml

from horologe_common.service.log import logger
from horologe_common.wire import DeviceInfo
from horologe_gpu_worker.device_shares import device_id
from horologe_gpu_worker.measurement.device_sensors.nvml_sensor import find_gpu

if TYPE_CHECKING:
    from horologe_gpu_worker.settings import WorkerSettings

log = logger("share")


def describe_cuda_device(settings: WorkerSettings, cuda: int) -> DeviceInfo:
    """Return UUID, name, memory and power limit of a CUDA device. Without NVML, only what the settings say."""
    try:
        return describe_gpu(settings, find_gpu(cuda))
    except (OSError, pynvml.NVMLError) as error:  # NVML, the driver, or the library is missing
        log.warning("memory and power limit of the GPU are not known", reason=str(error))
        return DeviceInfo(device_id(settings), settings.hardware or settings.device)


def describe_gpu(settings: WorkerSettings, gpu: Any) -> DeviceInfo:
    """Return the description of a GPU from its NVML handle. Raises NVMLError."""
    return DeviceInfo(
        settings.device_id or pynvml.nvmlDeviceGetUUID(gpu),
        pynvml.nvmlDeviceGetName(gpu),
        pynvml.nvmlDeviceGetMemoryInfo(gpu).total,
        pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    )
