"""Device bench: runs models on shares of one device at the same time, and measures times, power and clock."""

from __future__ import annotations

from time import sleep
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from horologe_common.interference.measured_runs import (
    MeasuredDevice,
    MeasuredModel,
    MeasuredRun,
    MeasuredTimes,
    ShareLoad,
)
from horologe_common.service.log import logger
from horologe_common.status import HorologeError
from horologe_gpu_worker.measurement.cache_counters import CountersFailed, count_cache_use, interpolate_cache_use
from horologe_gpu_worker.measurement.device_sensor import SensorWindow
from horologe_gpu_worker.measurement.share_connection import (
    Begin,
    CommandDone,
    Measure,
    Measured,
    MeasuredRates,
    Rates,
    Ready,
    ShareConnection,
    ShareJob,
    Stop,
    Trace,
    Traced,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from horologe_gpu_worker.measurement.device_sensor import DeviceSensor
    from horologe_gpu_worker.measurement.share_connection import Command, Wanted
    from horologe_gpu_worker.settings import WorkerSettings

IDLE_S = 2.0
"""Seconds for which the power of the idle device is measured. NVML's power is the mean of the last second."""
SETTLED = 0.5
"""Part of the length of a run that passes before it, until power and clock are steady."""
TOLERANCE = 1.0
"""Percent by which a share may differ from the wanted size."""
DEFAULT_TRANSFER_BYTES_PER_MS = 10e6
"""For models whose inputs are not copied."""

log = logger("measurement")


class InvalidShare(HorologeError):
    """A share of another size than wanted."""


class BenchSettings(NamedTuple):
    """Parameters of a measurement."""

    folders: Mapping[str, Path]
    """Model -> `<repository>/<name>/<version>`."""
    worker: WorkerSettings
    """Device and mechanism of all shares."""
    seconds: float = 2.0
    """Length of a run."""


class DeviceBench:
    """Runs shares in processes of their own. Processes stay between runs of the same models on the same shares.

    Methods raise ShareFailed, InvalidShare, SensorFailed or DeviceLost. Close the bench afterwards.
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
        source, counted = "declared" if self._settings.worker.emulated_device else "estimated", dict[int, float]()
        if self._settings.worker.cuda is not None:
            self.close()  # counters need the device for themselves
            try:
                source, counted = "ncu", self._count_cache_use(model, ready.batch_sizes)
            except CountersFailed as error:
                log.warning("no L2 counters: estimated from the bytes of weights and tensors", reason=str(error))
        return MeasuredModel(model, ready.batch_sizes, ready.load_bytes, ready.feedback_bytes, source, counted)

    def run(self, loads: Sequence[ShareLoad]) -> MeasuredRun:
        """Run all loads at the same time. Return their times, and the power and clock of the device."""
        try:
            self._open(loads)
            return self._run(loads, self._copy_rates().memory_bytes_per_ms)
        except HorologeError:
            self.close()  # replies that are still to come would be taken for those of the next run
            self._sensor.read()  # raises DeviceLost if that is why the processes failed
            raise

    def _run(self, loads: Sequence[ShareLoad], memory_bytes_per_ms: float) -> MeasuredRun:
        self._ask_all([Begin(load.batch) for load in loads], CommandDone)
        sleep(SETTLED * self._settings.seconds)
        with SensorWindow(self._sensor) as window:
            measured = self._ask_all([Measure(self._settings.seconds)] * len(loads), Measured)
        # One after another, while the neighbours run.
        traced = [share.ask(Trace(), Traced) for _, share, _ in self._shares]
        self._ask_all([Stop()] * len(loads), CommandDone)
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
        connections, settings = list[ShareConnection](), self._settings
        try:
            for load in loads:
                share = msgspec.structs.replace(settings.worker, share_percent=load.share_percent)
                connection = ShareConnection(ShareJob(str(settings.folders[load.model]), share))
                connection.start()
                connections.append(connection)
            ready = [connection.wait_reply(Ready) for connection in connections]
            for load, reply in zip(loads, ready, strict=True):
                if abs(reply.percent - load.share_percent) > TOLERANCE:
                    raise InvalidShare(f"share: got {reply.percent:g}%, wanted {load.share_percent:g}% of the device")
        except HorologeError:
            for connection in connections:
                connection.close()
            raise
        self._shares = list(zip(loads, connections, ready, strict=True))

    def _ask_all(self, commands: Sequence[Command], kind: type[Wanted]) -> list[Wanted]:
        """Send a command to each share. Return their replies, of this kind."""
        for (_, share, _), command in zip(self._shares, commands, strict=True):
            share.send(command)
        return [share.wait_reply(kind) for _, share, _ in self._shares]

    def _count_cache_use(self, model: str, batches: Sequence[int]) -> dict[int, float]:
        """Return the L2 utilisation times active time of each batch size. Raises CountersFailed."""
        whole = msgspec.structs.replace(self._settings.worker, share_mechanism="whole")
        job, ends = ShareJob(str(self._settings.folders[model]), whole), (min(batches), max(batches))
        return interpolate_cache_use([(batch, count_cache_use(job, batch)) for batch in ends], batches)

    def _copy_rates(self) -> MeasuredRates:
        """Return the rates of copies, measured once by the first share."""
        if self._rates is None:
            [(_, share, _), *_] = self._shares
            self._rates = share.ask(Rates(), MeasuredRates)
        return self._rates


def _share_times(measured: Measured, traced: Traced, memory_bytes_per_ms: float) -> MeasuredTimes:
    """Combine times and trace of a share.

    The gaps of the trace are a part of its own time, because tracing makes batches longer.
    """
    scheduling_ms = traced.gaps * measured.gpu_ms
    cache_percent = traced.cache_percent
    if cache_percent is None:
        cache_percent = 100 * traced.moved_bytes / memory_bytes_per_ms / (measured.gpu_ms - scheduling_ms)
    return MeasuredTimes(
        measured.batches,
        measured.load_ms,
        measured.gpu_ms,
        measured.feedback_ms,
        measured.deviation_ms,
        traced.kernels,
        scheduling_ms,
        cache_percent,
    )
