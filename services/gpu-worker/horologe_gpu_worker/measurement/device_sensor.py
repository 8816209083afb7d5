"""Device sensor interface: limits, power and clock of a device, and their means over a run."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

from horologe_common.clock import monotonic_ns
from horologe_common.status import HorologeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

SAMPLE_S = 0.05
"""Seconds between samples of power and clock. NVML updates them every 20 to 100 ms."""


class SensorFailed(HorologeError):
    """There is no sensor, or it cannot be read."""


class DeviceLost(HorologeError):
    """The device answers no more. Nothing else can be measured on it."""


class DeviceLimits(NamedTuple):
    """Constant figures of a device."""

    name: str
    max_power_w: float
    """Power cap. 0: the device has no power sensor."""
    max_frequency_mhz: float
    driver: str = ""


class DeviceReading(NamedTuple):
    """Power and clock of a device."""

    power_w: float
    frequency_mhz: float
    energy_j: float | None = None
    """Energy since any time in the past; None: not counted."""


class DeviceSensor(Protocol):
    """Reads a device. Raises DeviceLost, or SensorFailed."""

    def limits(self) -> DeviceLimits:
        """Return the limits of the device."""
        ...

    def read(self) -> DeviceReading:
        """Return power and clock now."""
        ...

    def close(self) -> None:
        """Free the sensor."""
        ...


class SensorWindow:
    """Reads a sensor on a thread while its `with` block runs. Call `mean` afterwards."""

    def __init__(
        self, sensor: DeviceSensor, clock: Callable[[], int] = monotonic_ns, sample_s: float = SAMPLE_S
    ) -> None:
        self._sensor = sensor
        self._sample_s = sample_s
        self._clock = clock
        self._readings: list[tuple[int, DeviceReading]] = []
        self._error: HorologeError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="sensor", daemon=True)

    def __enter__(self) -> SensorWindow:
        self._read()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._ended.set()
        self._thread.join()
        if error is None:
            self._read()

    def mean(self) -> DeviceReading:
        """Return the mean power and clock. Power comes from the counted energy if there is one.

        Raises the first error of the sensor.
        """
        if self._error:
            raise self._error
        (first_ns, first), (last_ns, last) = self._readings[0], self._readings[-1]
        count = len(self._readings)
        power_w = sum(reading.power_w for _, reading in self._readings) / count
        if first.energy_j is not None and last.energy_j is not None and last_ns > first_ns:
            power_w = (last.energy_j - first.energy_j) / ((last_ns - first_ns) / 1e9)
        return DeviceReading(power_w, sum(reading.frequency_mhz for _, reading in self._readings) / count)

    def _sample(self) -> None:
        while not self._ended.wait(self._sample_s) and self._error is None:
            self._read()

    def _read(self) -> None:
        try:
            self._readings.append((self._clock(), self._sensor.read()))
        except HorologeError as error:
            self._error = self._error or error
