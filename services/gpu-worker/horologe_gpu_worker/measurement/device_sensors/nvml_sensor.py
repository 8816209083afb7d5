"""Sensor of an NVIDIA GPU through NVML."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pynvml

from horologe_gpu_worker.measurement.device_sensor import DeviceLimits, DeviceLost, DeviceReading, SensorFailed
from horologe_gpu_worker.nvml import find_gpu

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    Result = TypeVar("Result")

LIBRARY = "libnvidia-ml.so.1"
LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)


class NvmlSensor:
    """Reads a GPU through NVML. `gpu` is its handle of `pynvml`."""

    def __init__(self, gpu: Any) -> None:
        self._gpu = gpu

    def limits(self) -> DeviceLimits:
        """Return name, enforced power limit and highest clock. Raises SensorFailed or DeviceLost."""
        return _checked(
            lambda: DeviceLimits(
                pynvml.nvmlDeviceGetName(self._gpu),
                pynvml.nvmlDeviceGetEnforcedPowerLimit(self._gpu) / 1000,
                float(pynvml.nvmlDeviceGetMaxClockInfo(self._gpu, pynvml.NVML_CLOCK_SM)),
                pynvml.nvmlSystemGetDriverVersion(),
            )
        )

    def read(self) -> DeviceReading:
        """Return power, clock and counted energy. Raises SensorFailed or DeviceLost."""
        return _checked(
            lambda: DeviceReading(
                pynvml.nvmlDeviceGetPowerUsage(self._gpu) / 1000,
                float(pynvml.nvmlDeviceGetClockInfo(self._gpu, pynvml.NVML_CLOCK_SM)),
                self._energy_j(),
            )
        )

    def _energy_j(self) -> float | None:
        """Return the energy since the driver was loaded, or None before Volta."""
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._gpu) / 1000)
        except pynvml.NVMLError_NotSupported:
            return None

    def close(self) -> None:
        """Do nothing: the library stays loaded."""


def open_nvml_sensor(cuda: int) -> NvmlSensor:
    """Return the sensor of a CUDA device. Raises SensorFailed if there is no NVML or no driver."""
    try:
        return NvmlSensor(find_gpu(cuda))
    except pynvml.NVMLError_LibraryNotFound as error:
        raise SensorFailed(f"NVML: {error}; wanted {LIBRARY}, which the NVIDIA driver installs") from error
    except (OSError, pynvml.NVMLError) as error:
        raise SensorFailed(f"NVML: {error}") from error


def _checked(read: Callable[[], Result]) -> Result:
    try:
        return read()
    except pynvml.NVMLError as error:
        if error.value in LOST:
            raise DeviceLost(f"the GPU is lost: NVML: {error}") from error
        raise SensorFailed(f"NVML: {error}") from error
