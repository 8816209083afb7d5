"""Sensor of the CPU: its model, and a clock that counts as constant. No power.

Processors raise their clock when few cores work, whatever their power is. Eq. 9 does not describe that.
"""

from __future__ import annotations

from horologe_gpu_worker.measurement.device_sensor import DeviceLimits, DeviceReading
from horologe_gpu_worker.repository.profiling import cpu_model

NOMINAL_MHZ = 1.0
"""Only ratios of frequencies enter the model."""


class HostSensor:
    """A device without a power sensor."""

    def limits(self) -> DeviceLimits:
        """Return the CPU's name, and no power cap."""
        return DeviceLimits(cpu_model(), 0.0, NOMINAL_MHZ)

    def read(self) -> DeviceReading:
        """Return no power and the constant clock."""
        return DeviceReading(0.0, NOMINAL_MHZ)

    def close(self) -> None:
        """Do nothing."""
