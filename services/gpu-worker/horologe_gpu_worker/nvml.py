"""GPUs by NVML, NVIDIA's management library: their handles, descriptions and metrics."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any

import pynvml

from horologe_common.core.instruments import Stats
from horologe_common.service.log import logger
from horologe_common.wire import DeviceInfo
from horologe_gpu_worker.device_shares import device_id
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import load_driver

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import Driver
    from horologe_gpu_worker.settings import WorkerSettings

BUS_ID_BYTES = 32
FIGURES: Mapping[str, Callable[[Any], float]] = {
    "nv_gpu_utilization": lambda gpu: pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    "nv_gpu_memory_total_bytes": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).total,
    "nv_gpu_memory_used_bytes": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).used,
    "nv_gpu_power_usage": lambda gpu: pynvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    "nv_gpu_power_limit": lambda gpu: pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    "nv_energy_consumption": lambda gpu: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,
}
"""Metric, under Triton's name -> its value."""

log = logger("nvml")


def find_gpu(cuda: int) -> Any:
    """Return NVML's handle of a CUDA device. Raises NVMLError, or OSError if there is no CUDA driver."""
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id(load_driver(), cuda))


def pci_bus_id(driver: Driver, device: int) -> str:
    """Return the PCI bus id of a CUDA device, by which NVML finds the same GPU. Creates no context."""
    number, text = ctypes.c_int(), ctypes.create_string_buffer(BUS_ID_BYTES)
    driver("cuDeviceGet", ctypes.byref(number), device)
    driver("cuDeviceGetPCIBusId", text, BUS_ID_BYTES, number.value)
    return text.value.decode()


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


def gpu_metrics(cuda: int) -> Callable[[], Stats] | None:
    """Return a function that reads the metrics of a CUDA device; None without NVML."""
    try:
        gpu = find_gpu(cuda)
        return partial(_read_metrics, gpu, pynvml.nvmlDeviceGetUUID(gpu))
    except (OSError, pynvml.NVMLError) as error:  # NVML, the driver, or the library is missing
        log.warning("no metrics of the GPU", reason=str(error))
        return None


def _read_metrics(gpu: Any, uuid: str) -> Stats:
    """Read what the GPU supports: a MIG device has no utilisation, and no GPU before Volta counts its energy."""
    stats = Stats()
    for name, read in FIGURES.items():
        try:
            stats.set(name, uuid, to=read(gpu))
        except pynvml.NVMLError:  # not supported, or the GPU is lost
            continue
    return stats
