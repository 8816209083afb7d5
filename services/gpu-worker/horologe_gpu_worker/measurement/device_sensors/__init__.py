"""Registry of device sensors by kind of device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_gpu_worker.measurement.device_sensors.host_sensor import HostSensor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from horologe_gpu_worker.measurement.device_sensor import DeviceSensor
    from horologe_gpu_worker.runtime import DeviceConfig


def _nvml_sensor(device: DeviceConfig, folder: Path) -> DeviceSensor:
    from horologe_gpu_worker.measurement.device_sensors.nvml_sensor import open_nvml_sensor

    return open_nvml_sensor(device.cuda or 0)


def _emulated_sensor(device: DeviceConfig, folder: Path) -> DeviceSensor:
    from horologe_gpu_worker.measurement.device_sensors.emulated_sensor import EmulatedSensor

    return EmulatedSensor(device.emulated_device, folder)


DEVICE_SENSORS: dict[str, Callable[[DeviceConfig, Path], DeviceSensor]] = {
    "nvml": _nvml_sensor,
    "emulated": _emulated_sensor,
    "host": lambda device, folder: HostSensor(),
}
"""Kind of sensor -> factory. The folder is that of a measured model: an emulated one declares its device."""
