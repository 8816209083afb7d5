"""Metrics of an NVIDIA GPU from NVML, under Triton's names."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pynvml

from horologe_common.core.instruments import Stats
from horologe_common.service.log import logger
from horologe_gpu_worker.measurement.device_sensors.nvml_sensor import find_gpu

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FIGURES: Mapping[str, Callable[[Any], float]] = {
    "nv_gpu_utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "nv_gpu_memory_total_bytes": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).total,
    "nv_gpu_memory_used_bytes": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "nv_gpu_power_usage": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "nv_gpu_power_limit": lambda gpu: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "nv_energy_consumption": lambda gpu: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,
}

log = logger("metrics")


def gpu_metrics(cuda: int) -> Callable[[], Stats] | None:
    """Return a function that reads the metrics of a CUDA device; None without NVML."""
    try:
        gpu = find_gpu(cuda)
        return partial(_read, gpu, pynvml.nvmlDeviceGetUUID(gpu))
    except (OSError, pynvml.NVMLError) as error:  # NVML, the driver, or the library is missing
        log.warning("no metrics of the GPU", reason=str(error))
        return None


def _read(gpu: Any, uuid: str) -> Stats:
    """Read what the GPU supports: a MIG device has no utilisation, and no GPU before Volta counts its energy."""
    stats = Stats()
    for name, read in FIGURES.items():
        try:
            stats.set(name, uuid, to=read(gpu))
        except pynvml.NVMLError:  # not supported, or the GPU is lost
            continue
    return stats
