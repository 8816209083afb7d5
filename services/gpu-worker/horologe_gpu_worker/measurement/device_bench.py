"""Device bench: runs models on shares of one device at the same time, and measures times, power and clock."""

from __future__ import annotations

from time import sleep
from typing import TYPE_CHECKING, NamedTuple

from horologe_common.interference.measured_runs import MeasuredDevice, MeasuredModel, MeasuredRun, ShareLoad, ShareTimes
from horologe_common.status import HorologeError
from horologe_gpu_worker.measurement.device_sensor import SensorWindow
from horologe_gpu_worker.measurement.share_connection import ShareConnection
from horologe_gpu_worker.measurement.share_limits import SHARE_LIMITS
from horologe_gpu_worker.measurement.share_messages import (
    Begin,
    Measure,
    Measured,
    MeasuredRates,
    Rates,
    Ready,
    Running,
    ShareJob,
    Stop,
    Stopped,
    Trace,
    Traced,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from horologe_gpu_worker.measurement.device_sensor import DeviceSensor

IDLE_S = 2.0
"""Seconds for which the power of the idle device is measured. NVML's power is the mean of the last second."""
SETTLED = 0.5
"""Part of the length of a run that passes before it, until power and clock are steady."""
DEFAULT_TRANSFER_BYTES_PER_MS = 10e6
"""For models whose inputs are not copied."""


class BenchSettings(NamedTuple):
    """What is measured, and how."""

    folders: Mapping[str, Path]
    """Model -> `<repository>/<name>/<version>`."""
    device: str = "cpu"
    mechanism: str = "cpu"
    """Key of `SHARE_LIMITS`."""
    seconds: float = 2.0
    """Length of a run."""
    emulated_device: str = ""


class DeviceBench:
    """Runs shares in processes of their own. Processes stay between runs of the same models on the same shares.

    Methods raise ShareFailed, InvalidShares, SensorFailed or DeviceLost. Close the bench afterwards.
    """

    def __init__(self, settings: BenchSettings, sensor: DeviceSensor) -> None:
        self._settings = settings
        self._sensor = sensor
        self._shares: list[tuple[ShareLoad, ShareConnection, Ready]] = []
        self._rates: MeasuredRates | None = None

    def measure_device(self, model: str) -> MeasuredDevice:
        """Return the limits, the power while `model` is open and idle, and the transfer rate."""
        self._open([ShareLoad(model, 1, 100.0)])
        limits = self._sensor.limits()
        with SensorWindow(self._sensor) as window:
            sleep(IDLE_S if limits.max_power_w else 0.0)
        transfer = self._copy_rates().transfer_bytes_per_ms or DEFAULT_TRANSFER_BYTES_PER_MS
        return MeasuredDevice(
            limits.name, limits.max_power_w, limits.max_frequency_mhz, window.mean().power_w, transfer, limits.driver
        )

    def describe_model(self, model: str) -> MeasuredModel:
        """Return the figures of a model that are the same in all runs."""
        self._open([ShareLoad(model, 1, 100.0)])
        [(_, _, ready)] = self._shares
        return MeasuredModel(model, ready.batch_sizes, ready.load_bytes, ready.feedback_bytes)

    def run(self, loads: Sequence[ShareLoad]) -> MeasuredRun:
        """Run all loads at the same time. Return their times, and the power and clock of the device."""
        self._open(loads)
        memory_bytes_per_ms = self._copy_rates().memory_bytes_per_ms
        shares = [share for _, share, _ in self._shares]
        try:
            for share, load in zip(shares, loads, strict=True):
                share.send(Begin(load.batch))
            for share in shares:
                share.wait_reply(Running)
            sleep(SETTLED * self._settings.seconds)
            with SensorWindow(self._sensor) as window:
                for share in shares:
                    share.send(Measure(self._settings.seconds))
                measured = [share.wait_reply(Measured) for share in shares]
            traced = [self._trace(share) for share in shares]  # one after another, while the neighbours run
            for share in shares:
                share.send(Stop())
            for share in shares:
                share.wait_reply(Stopped)
        except HorologeError:
            self.close()  # replies that are still to come would be taken for those of the next run
            raise
        reading = window.mean()
        times = (_share_times(*replies, memory_bytes_per_ms) for replies in zip(measured, traced, strict=True))
        return MeasuredRun(tuple(loads), tuple(times), reading.power_w, reading.frequency_mhz)

    def close(self) -> None:
        """End all processes."""
        for _, share, _ in self._shares:
            share.close()
        self._shares = []

    def _open(self, loads: Sequence[ShareLoad]) -> None:
        """Start the processes of these models and shares, unless they run already, and no others."""
        wanted = [(load.model, load.share_percent) for load in loads]
        if wanted == [(load.model, load.share_percent) for load, _, _ in self._shares]:
            return
        self.close()
        settings = self._settings
        limits = SHARE_LIMITS[settings.mechanism]([load.share_percent for load in loads])
        connections = []
        try:
            for load, limit in zip(loads, limits, strict=True):
                job = ShareJob(
                    str(settings.folders[load.model]), settings.device, load.share_percent,
                    settings.emulated_device, limit.cpus, limit.needs_mps,
                )  # fmt: skip
                connections.append(ShareConnection(job, limit.environment))
                connections[-1].start()
            ready = [connection.wait_reply(Ready) for connection in connections]
        except HorologeError:
            for connection in connections:
                connection.close()
            raise
        self._shares = list(zip(loads, connections, ready, strict=True))

    def _trace(self, share: ShareConnection) -> Traced:
        share.send(Trace())
        return share.wait_reply(Traced)

    def _copy_rates(self) -> MeasuredRates:
        """Return the rates of copies, measured once by the first share."""
        if self._rates is None:
            [(_, share, _), *_] = self._shares
            share.send(Rates())
            self._rates = share.wait_reply(MeasuredRates)
        return self._rates


def _share_times(measured: Measured, traced: Traced, memory_bytes_per_ms: float) -> ShareTimes:
    """Combine times and trace of a share.

    The gaps of the trace are a part of its own time, because tracing makes batches longer.
    """
    scheduling_ms = traced.gaps * measured.gpu_ms
    cache_percent = traced.cache_percent
    if cache_percent is None:
        cache_percent = 100 * traced.moved_bytes / memory_bytes_per_ms / (measured.gpu_ms - scheduling_ms)
    return ShareTimes(
        measured.batches, measured.load_ms, measured.gpu_ms, measured.feedback_ms, measured.deviation_ms,
        traced.kernels, scheduling_ms, cache_percent,
    )  # fmt: skip
