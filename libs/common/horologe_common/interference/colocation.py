"""Execution times of emulated shares of a device: each share is slowed by the activity of the others (Eq. 1 to 11).

The paper's models describe neighbours that execute without a pause. Here a neighbour counts by the part of the recent
time in which it has executed. The noise is that of the measurements: a constant error of the prediction, and jitter.
"""

from __future__ import annotations

from math import exp
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from horologe_common.clock import ms
from horologe_common.interference.prediction import INTERFERENCE_MODELS, Alone, run_alone, stack_coefficients

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from horologe_common.interference.coefficients import GpuCoefficients, ModelCoefficients

BUSY_NS = ms(100)
"""Time constant of a share's busy fraction: several batches (up to 25 ms in iGniter's workloads), and a tenth of the
second after which a violation is detected."""
LEAST_BUSY = 0.001
"""A neighbour that is less busy is left out."""
DRAWS = 1024
"""Random numbers drawn at a time."""


class LastExecution(NamedTuple):
    """The last execution of a share, and what it does to its neighbours while it executes."""

    begin_ns: int = 0
    end_ns: int = 0
    busy: float = 0.0
    """Busy fraction of the share at `begin_ns`, 0 to 1."""
    alone: tuple[float, ...] = (0.0,) * len(Alone._fields)
    """The fields of `Alone`."""

    def busy_at(self, now_ns: int, constant_ns: int = BUSY_NS) -> float:
        """Return the busy fraction: the exponentially weighted mean of executing (1) and idle (0)."""
        if now_ns <= self.begin_ns:
            return self.busy
        executed_ns = min(now_ns, self.end_ns) - self.begin_ns
        busy = 1 - (1 - self.busy) * exp(-executed_ns / constant_ns)
        return busy * exp(-max(0, now_ns - self.end_ns) / constant_ns)


class DeviceActivity(Protocol):
    """The activity of the shares of a device, as one of the shares sees it. One thread per share publishes."""

    def own(self) -> LastExecution:
        """Return the activity that this share has published last."""

    def neighbours(self) -> Iterable[LastExecution]:
        """Return the activity of each other share."""

    def publish(self, activity: LastExecution) -> None:
        """Replace the activity of this share."""


class SharedDevice:
    """A device whose shares are in one process. `join` returns the view of a new share."""

    def __init__(self) -> None:
        self.activities: list[LastExecution | None] = []
        """By number of the share; None for a share that has left."""

    def join(self) -> LocalShare:
        """Add a share."""
        self.activities.append(LastExecution())
        return LocalShare(self, len(self.activities) - 1)


class LocalShare:
    """One share's view of a `SharedDevice`."""

    def __init__(self, device: SharedDevice, number: int) -> None:
        self._device = device
        self._number = number

    def own(self) -> LastExecution:
        return self._device.activities[self._number] or LastExecution()

    def neighbours(self) -> Iterable[LastExecution]:
        return [other for at, other in enumerate(self._device.activities) if at != self._number and other is not None]

    def publish(self, activity: LastExecution) -> None:
        self._device.activities[self._number] = activity

    def leave(self) -> None:
        """Remove the share."""
        self._device.activities[self._number] = None


class ExecutionNoise:
    """Factors on predicted times, by seed, each lognormal with median 1.

    The first is constant: measured over predicted latency, with the model's `relative_error` as standard deviation. The
    second differs for each execution, with its `jitter`.
    """

    def __init__(self, coefficients: ModelCoefficients, seed: Sequence[int]) -> None:
        self._rng = np.random.default_rng(seed)
        self._jitter = coefficients.jitter
        self._left: list[float] = []
        self.error = float(np.exp(coefficients.relative_error * self._rng.standard_normal()))
        """The constant factor."""

    def next_factor(self) -> float:
        """Return the factor of the next execution."""
        if not self._jitter:
            return self.error
        if not self._left:
            self._left = (self.error * self._rng.lognormal(0.0, self._jitter, DRAWS)).tolist()
        return self._left.pop()


class CoLocatedModel:
    """Times of one model on a share of a device. `time_factor` multiplies all times, for slow machines."""

    def __init__(
        self,
        gpu: GpuCoefficients,
        coefficients: ModelCoefficients,
        interference: str,
        share_percent: float,
        activity: DeviceActivity,
        noise: ExecutionNoise | None = None,
        time_factor: float = 1.0,
    ) -> None:
        self._gpu = gpu
        self._stacked = stack_coefficients([coefficients])[:, 0]
        self._model = INTERFERENCE_MODELS[interference]
        self._share = share_percent
        self._activity = activity
        self._noise = noise
        self._ns_per_ms = ms(1) * time_factor
        self._constant_ns = round(BUSY_NS * time_factor)
        self._rows: dict[int, tuple[float, ...]] = {}
        """Fields of `Alone` by batch size."""
        self._solo: dict[int, tuple[float, float, float]] = {}
        """Loading, execution and feedback alone in ms, by batch size."""
        self._stretch = 1.0, 1.0
        """Loading and feedback beside the neighbours over those alone, at the last EXEC."""

    def solo_ns(self, batch: int) -> int:
        """Return the time of an EXEC alone, without noise (t_gpu of Eq. 4)."""
        return self._ns(self._predict_alone(batch)[1])

    def input_ns(self, rows: int) -> int:
        """Return the time of an INPUT (data loading of Eq. 3), which overlaps the EXEC before."""
        return self._ns(self._predict_alone(rows)[0] * self._stretch[0])

    def output_ns(self, rows: int) -> int:
        """Return the time of an OUTPUT (result feedback of Eq. 3)."""
        return self._ns(self._predict_alone(rows)[2] * self._stretch[1])

    def begin_exec(self, now_ns: int, batch: int) -> int:
        """Return the time of an EXEC that begins at `now_ns`, and publish it as the activity of the share."""
        load_ms, gpu_ms, feedback_ms = self._predict_alone(batch)
        busy_others = ((other.busy_at(now_ns, self._constant_ns), other.alone) for other in self._activity.neighbours())
        rows = [self._rows[batch], *((busy, *alone[1:]) for busy, alone in busy_others if busy > LEAST_BUSY)]
        self._stretch = 1.0, 1.0
        if len(rows) > 1:
            beside = self._model.predict(self._gpu, Alone(*np.array(rows).T))
            gpu_ms = float(beside.gpu_ms[0])
            self._stretch = (
                float(beside.load_ms[0]) / load_ms if load_ms else 1.0,
                float(beside.feedback_ms[0]) / feedback_ms if feedback_ms else 1.0,
            )
        took_ns = self._ns(gpu_ms * (self._noise.next_factor() if self._noise else 1.0))
        busy = self._activity.own().busy_at(now_ns, self._constant_ns)
        self._activity.publish(LastExecution(now_ns, now_ns + took_ns, busy, rows[0]))
        return took_ns

    def _predict_alone(self, batch: int) -> tuple[float, float, float]:
        """Return loading, execution and feedback in ms alone."""
        if batch not in self._solo:
            alone = run_alone(self._gpu, self._stacked, np.full((), float(batch)), np.full((), self._share))
            row = self._rows[batch] = tuple(float(value) for value in alone)
            predicted = self._model.predict(self._gpu, Alone(*np.array([row]).T))
            parts = predicted.load_ms, predicted.gpu_ms, predicted.feedback_ms
            self._solo[batch] = tuple(float(part[0]) for part in parts)  # type: ignore[assignment]
        return self._solo[batch]

    def _ns(self, time_ms: float) -> int:
        return round(time_ms * self._ns_per_ms)
