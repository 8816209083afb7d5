"""Figures of an emulated device that instruments would show: power, clock, scheduling delay, L2 utilisation.

They follow from the activity of its shares, by the equations that also make its batches slower.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from horologe_common.clock import monotonic_ns
from horologe_common.interference.colocation import LEAST_BUSY
from horologe_common.interference.prediction import (
    INTERFERENCE_MODELS,
    Alone,
    Prediction,
    run_alone,
    stack_coefficients,
)
from horologe_gpu_worker.measurement.device_sensor import DeviceLimits, DeviceReading
from horologe_gpu_worker.measurement.share_connection import Traced
from horologe_gpu_worker.repository.manifest import InvalidModel, manifest_path, read_manifest
from horologe_gpu_worker.runtimes.emulated import find_coefficients
from horologe_gpu_worker.runtimes.emulated_device import EmulatedDeviceFile


class EmulatedFigures:
    """Sensor of an emulated device, and the declared coefficients of one of its models. Close it afterwards."""

    def __init__(self, device_file: str, folder: Path) -> None:
        """Raises `InvalidModel` if the model has no table `[emulated.sharing]`, and SettingsError for the file."""
        times, place = read_manifest(folder).emulated, f"{manifest_path(folder)}: emulated.sharing"
        if times is None or times.sharing is None:
            raise InvalidModel(f"{place}: got no table, wanted the coefficients of an emulated device")
        self.gpu, self.model = find_coefficients(place, times.sharing)
        self._interference = INTERFERENCE_MODELS[times.sharing.interference]
        self._view = EmulatedDeviceFile(Path(device_file))

    def limits(self) -> DeviceLimits:
        """Return the declared limits."""
        return DeviceLimits(f"emulated {self.gpu.name}", self.gpu.max_power_w, self.gpu.max_frequency_mhz)

    def read(self) -> DeviceReading:
        """Return the power, at most the cap, and the clock now (Eq. 9 and 10)."""
        rows = self._executing()
        if not rows:
            return DeviceReading(self.gpu.idle_power_w, self.gpu.max_frequency_mhz)
        predicted = self._predict(rows)
        return DeviceReading(min(float(predicted.power_w), self.gpu.max_power_w), float(predicted.frequency_mhz))

    def trace(self, batch: int, share_percent: float) -> Traced:
        """Return the trace of a batch on a share that executes such batches, beside the others (Eq. 5 and 6)."""
        sizes = np.array([batch, share_percent], float)
        own = run_alone(self.gpu, stack_coefficients([self.model])[:, 0], *sizes)
        rows = [(1.0, *map(float, own[1:]))]
        others = self._executing()
        if (itself := next((row for row in others if row[1:] == rows[0][1:]), None)) is not None:
            others.remove(itself)
        rows += others
        predicted, gpu = self._predict(rows), self.gpu
        count = sum(row[0] for row in rows)
        delay_ms = max(gpu.scheduling_slope_ms * count + gpu.scheduling_offset_ms, 0.0) if len(rows) > 1 else 0.0
        scheduling_ms = float(own.scheduling_ms) + delay_ms * self.model.kernels
        ratio = float(predicted.frequency_mhz) / gpu.max_frequency_mhz
        executed_ms = float(predicted.gpu_ms[0] + predicted.feedback_ms[0])
        return Traced(self.model.kernels, scheduling_ms / ratio / executed_ms, cache_percent=float(own.cache_percent))

    def close(self) -> None:
        """Give the slot of the view back."""
        self._view.close()

    def _executing(self) -> list[tuple[float, ...]]:
        """Return a row of `Alone` for each share that executes, with its busy fraction as `present`."""
        now_ns = monotonic_ns()
        shares = [(activity.busy_at(now_ns), activity) for activity in self._view.neighbours()]
        return [(busy, *activity.alone[1:]) for busy, activity in shares if busy > LEAST_BUSY]

    def _predict(self, rows: list[tuple[float, ...]]) -> Prediction:
        return self._interference.predict(self.gpu, Alone(*np.array(rows).T))
