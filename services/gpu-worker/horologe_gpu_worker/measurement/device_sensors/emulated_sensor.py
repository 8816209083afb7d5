"""Sensor of an emulated device: power and clock that follow from the activity of its shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from horologe_gpu_worker.measurement.device_sensor import DeviceLimits, DeviceReading
from horologe_gpu_worker.measurement.emulated_figures import EmulatedFigures

if TYPE_CHECKING:
    from pathlib import Path


class EmulatedSensor:
    """Reads the file of an emulated device. `folder` is that of a model that declares the device."""

    def __init__(self, device_file: str, folder: Path) -> None:
        self._figures = EmulatedFigures(device_file, folder)

    def limits(self) -> DeviceLimits:
        """Return the declared limits."""
        gpu = self._figures.gpu
        return DeviceLimits(f"emulated {gpu.name}", gpu.max_power_w, gpu.max_frequency_mhz)

    def read(self) -> DeviceReading:
        """Return power and clock now."""
        return DeviceReading(*self._figures.power_and_frequency())

    def close(self) -> None:
        """Give the slot of the view back."""
        self._figures.close()
