"""Messages between a measurement and its share processes, as JSON."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from horologe_gpu_worker.settings import WorkerSettings


class ShareJob(msgspec.Struct, frozen=True, tag=True):
    """First message to a share process: the model that it opens, and the settings that name its share of the device."""

    folder: str
    """`<repository>/<name>/<version>`."""
    settings: WorkerSettings


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is open."""

    percent: float
    """Share of the device that the process has."""
    batch_sizes: tuple[int, ...]
    load_bytes: float
    feedback_bytes: float
    """Per row."""


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Run batches until Stop. Answered by Running after the first batch."""

    batch: int


class Running(msgspec.Struct, frozen=True, tag=True):
    """The first batch has ended."""


class Measure(msgspec.Struct, frozen=True, tag=True):
    """Time the batches of some seconds. Answered by Measured; batches continue."""

    seconds: float


class Measured(msgspec.Struct, frozen=True, tag=True):
    """Mean times of the batches in ms, and the standard deviation of `gpu_ms`."""

    batches: int
    load_ms: float
    gpu_ms: float
    feedback_ms: float
    deviation_ms: float


class Trace(msgspec.Struct, frozen=True, tag=True):
    """Trace some of the batches. Answered by Traced; batches continue."""


class Traced(msgspec.Struct, frozen=True, tag=True):
    """Mean figures of a batch."""

    kernels: int
    gaps: float
    """Part of the time from the first to the last kernel in which no kernel ran."""
    moved_bytes: float = 0.0
    """Bytes that the kernels read and write."""
    cache_percent: float | None = None
    """L2 utilisation that the model declares."""


class Rates(msgspec.Struct, frozen=True, tag=True):
    """Measure the rates of copies on the idle device. Answered by MeasuredRates."""


class MeasuredRates(msgspec.Struct, frozen=True, tag=True):
    """Bytes per ms from host to device, and within the device's memory. 0: not measured."""

    transfer_bytes_per_ms: float
    memory_bytes_per_ms: float


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Run no more batches. Answered by Stopped."""


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """No batch runs."""


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The model cannot be opened or run. The process ends."""

    reason: str


Command: TypeAlias = Begin | Measure | Trace | Rates | Stop
Reply: TypeAlias = Ready | Running | Measured | Traced | MeasuredRates | Stopped | Failed
