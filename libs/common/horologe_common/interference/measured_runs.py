"""Runs of models on shares of one device, as measured (iGniter section 3.1). Times are milliseconds per batch."""

from __future__ import annotations

import msgspec


class ShareLoad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model that runs batches of one size on a share, one after another."""

    model: str
    batch: int
    share_percent: float


class MeasuredTimes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Mean times of the batches of one share."""

    batches: int
    load_ms: float
    """Inputs to the device."""
    gpu_ms: float
    """GPU execution phase: scheduling delay and active time (Eq. 4)."""
    feedback_ms: float
    """Outputs to the host."""
    deviation_ms: float
    """Standard deviation of `gpu_ms` between batches."""
    kernels: int
    scheduling_ms: float
    """Part of `gpu_ms` in which no kernel of the batch ran, from a trace."""
    cache_percent: float
    """L2 utilisation, if it is not counted: see `MeasuredModel`."""


class MeasuredRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shares that ran at the same time. `times` has the order of `loads`."""

    loads: tuple[ShareLoad, ...]
    times: tuple[MeasuredTimes, ...]
    power_w: float
    """Mean power of the device. 0: it has no power sensor."""
    frequency_mhz: float


class MeasuredModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Figures of a model that are the same in all runs."""

    model: str
    batch_sizes: tuple[int, ...]
    load_bytes: float
    feedback_bytes: float
    """Per row. 0: inputs and outputs are not copied."""
    cache_source: str = ""
    """Source of the L2 utilisation: `ncu`, `declared`, or `estimated` from the bytes that kernels move."""
    cache_percent_ms: dict[int, float] = {}
    """Batch size -> L2 utilisation times active time, in percent times ms. Empty: that of each run counts."""


class MeasuredDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a device, and its power and transfer rate when it is idle."""

    name: str
    max_power_w: float
    """0: the device has no power sensor."""
    max_frequency_mhz: float
    idle_power_w: float
    pcie_bytes_per_ms: float
    driver: str = ""
