"""Sensor of an NVIDIA GPU: NVML."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from horologe_gpu_worker.measurement.device_sensor import DeviceLimits, DeviceLost, DeviceReading, SensorFailed
from horologe_gpu_worker.nvml import LIBRARY, GpuLost, NvmlError, load_nvml
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import load_driver

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from horologe_gpu_worker.nvml import NvmlGpu
    from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import Driver

    Result = TypeVar("Result")

BUS_ID_BYTES = 32


class NvmlSensor:
    """Reads a GPU through NVML."""

    def __init__(self, gpu: NvmlGpu) -> None:
        self._gpu = gpu

    def limits(self) -> DeviceLimits:
        """Return name, enforced power limit and highest clock. Raises SensorFailed or DeviceLost."""
        gpu = self._gpu
        driver = "nvmlSystemGetDriverVersion"
        return _checked(lambda: DeviceLimits(gpu.name, gpu.power_cap_w, gpu.max_frequency_mhz, gpu.nvml.text(driver)))

    def read(self) -> DeviceReading:
        """Return power, clock and counted energy. Raises SensorFailed or DeviceLost."""
        gpu = self._gpu
        return _checked(lambda: DeviceReading(gpu.power_w, gpu.frequency_mhz, gpu.energy_j))

    def close(self) -> None:
        """Do nothing: the library stays loaded."""


def open_nvml_sensor(cuda: int) -> NvmlSensor:
    """Return the sensor of a CUDA device. Raises SensorFailed if there is no NVML or no driver."""
    try:
        return NvmlSensor(load_nvml().gpu(pci_bus_id=pci_bus_id(load_driver(), cuda)))
    except NvmlError as error:
        raise SensorFailed(f"NVML: {error}") from error
    except OSError as error:
        raise SensorFailed(f"NVML: {error}; wanted {LIBRARY}, which the NVIDIA driver installs") from error


def pci_bus_id(driver: Driver, device: int) -> str:
    """Return the PCI bus id of a CUDA device, by which NVML finds the same GPU. Creates no context."""
    number, text = ctypes.c_int(), ctypes.create_string_buffer(BUS_ID_BYTES)
    driver("cuDeviceGet", ctypes.byref(number), device)
    driver("cuDeviceGetPCIBusId", text, BUS_ID_BYTES, number.value)
    return text.value.decode()


def _checked(read: Callable[[], Result]) -> Result:
    try:
        return read()
    except GpuLost as error:
        raise DeviceLost(f"the GPU is lost: {error}") from error
    except NvmlError as error:
        raise SensorFailed(f"NVML: {error}") from error
