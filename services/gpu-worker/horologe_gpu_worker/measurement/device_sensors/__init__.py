"""Registry of device sensors by kind of device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_gpu_worker.measurement.device_sensor import DeviceLimits, DeviceReading
from horologe_gpu_worker.repository.profile_cache import cpu_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from horologe_gpu_worker.measurement.device_sensor import DeviceSensor
    from horologe_gpu_worker.settings import WorkerSettings


NOMINAL_MHZ = 1.0
"""Only ratios of frequencies enter the model."""


class HostSensor:
    """Sensor of the CPU: its name, and a clock that counts as constant. No power.

    Processors raise their clock when few cores work, whatever their power is. Eq. 9 does not describe that.
    """

    def limits(self) -> DeviceLimits:
        return DeviceLimits(cpu_model(), 0.0, NOMINAL_MHZ)

    def read(self) -> DeviceReading:
        return DeviceReading(0.0, NOMINAL_MHZ)

    def close(self) -> None:
        pass


def _nvml_sensor(settings: WorkerSettings, folder: Path) -> DeviceSensor:
    from horologe_gpu_worker.measurement.device_sensors.nvml_sensor import open_nvml_sensor

    return open_nvml_sensor(settings.cuda or 0)


def _emulated_sensor(settings: WorkerSettings, folder: Path) -> DeviceSensor:
    from horologe_gpu_worker.measurement.emulated_figures import EmulatedFigures

    return EmulatedFigures(settings.emulated_device, folder)


DEVICE_SENSORS: dict[str, Callable[[WorkerSettings, Path], DeviceSensor]] = {
    "nvml": _nvml_sensor,
    "emulated": _emulated_sensor,
    "host": lambda settings, folder: HostSensor(),
}
"""Kind of sensor -> factory. The folder is that of a measured model: an emulated one declares its device."""
