"""Measured runs from which the coefficients of a GPU type and of a model are fitted (iGniter section 3.1).

A model needs 11 runs: nine alone (three batch sizes at three shares, L2 utilisation at three of them), and one alone
and one beside a copy of itself at one batch size and share. A GPU type needs runs of one to five copies of a model.
"""

from __future__ import annotations

from math import isfinite

import msgspec


class ProfileError(ValueError):
    """A profile with an absurd run, or without a run that a coefficient needs."""


class SoloRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model that ran alone."""

    batch: int
    share_percent: float
    gpu_ms: float
    """Latency of the GPU execution phase, without transfers."""
    power_w: float
    """0: the device has no power sensor."""
    frequency_mhz: float
    cache_percent: float | None = None
    """L2 utilisation, where measured."""


class CacheContentionRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model alone, and beside a copy of itself at the same batch size and share. Determines alpha_cache."""

    alone_active_ms: float
    shared_active_ms: float
    shared_frequency_mhz: float
    cache_percent: float
    """L2 utilisation of the copy when alone."""


class ModelProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All runs of a model on a GPU type, with the values read once from a trace of its kernels."""

    model: str
    kernels: int
    scheduling_delay_ms: float
    load_bytes: float
    feedback_bytes: float
    solo: tuple[SoloRun, ...]
    contention: tuple[CacheContentionRun, ...] = ()

    def validate(self) -> None:
        """Raise ProfileError that names the first absurd run and its value."""
        if self.kernels < 1:
            raise ProfileError(f"{self.model}: kernels: got {self.kernels}, wanted at least 1")
        for field in ("scheduling_delay_ms", "load_bytes", "feedback_bytes"):
            _check(f"{self.model}: {field}", getattr(self, field), zero=True)
        for run in self.solo:
            place = f"{self.model}: run at batch {run.batch}, share {run.share_percent:g}%"
            for field in ("batch", "share_percent", "gpu_ms", "power_w", "frequency_mhz"):
                _check(f"{place}: {field}", getattr(run, field), zero=field == "power_w")
            if run.share_percent > 100:
                raise ProfileError(f"{place}: share_percent: got {run.share_percent:g}, wanted at most 100")
            if run.cache_percent is not None:
                _check(f"{place}: cache_percent", run.cache_percent, zero=True)
            if run.gpu_ms <= self.scheduling_delay_ms:
                wanted = f"more than the scheduling delay of {self.scheduling_delay_ms:g} ms"
                raise ProfileError(f"{place}: gpu_ms: got {run.gpu_ms:g}, wanted {wanted}")
        for paired in self.contention:
            for field in CacheContentionRun.__struct_fields__:
                _check(f"{self.model}: run beside a copy: {field}", getattr(paired, field))


class CopiesRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Several copies of one model on a GPU, at the same batch size and share."""

    copies: int
    power_w: float
    frequency_mhz: float
    scheduling_ms_per_kernel: float


class GpuProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All runs of a GPU type, with its limits from NVML."""

    name: str
    max_power_w: float
    max_frequency_mhz: float
    idle_power_w: float
    pcie_bytes_per_ms: float
    runs: tuple[CopiesRun, ...]
    share_unit_percent: float = 2.5
    price_per_hour: float = 1.0

    def validate(self) -> None:
        """Raise ProfileError that names the first absurd value."""
        limits = ("max_power_w", "max_frequency_mhz", "pcie_bytes_per_ms", "share_unit_percent", "price_per_hour")
        for field in limits:
            _check(f"{self.name}: {field}", getattr(self, field))
        _check(f"{self.name}: idle_power_w", self.idle_power_w, zero=True)
        for run in self.runs:
            for field in CopiesRun.__struct_fields__:
                zero = field in ("scheduling_ms_per_kernel", "power_w")
                _check(f"{self.name}: run of {run.copies} copies: {field}", getattr(run, field), zero=zero)
            if run.frequency_mhz > 1.01 * self.max_frequency_mhz:
                wanted = f"at most the maximum of {self.max_frequency_mhz:g}"
                got = f"got {run.frequency_mhz:g}"
                raise ProfileError(f"{self.name}: run of {run.copies} copies: frequency_mhz: {got}, wanted {wanted}")


class PairRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Two models on one GPU, with the measured latency of each: load, GPU execution and feedback."""

    models: tuple[str, str]
    batch: tuple[int, int]
    share_percent: tuple[float, float]
    latency_ms: tuple[float, float]


def _check(field: str, value: float, *, zero: bool = False) -> None:
    """Raise ProfileError unless the value is finite and positive, or zero where that is allowed."""
    if not isfinite(value) or value < 0 or (value == 0 and not zero):
        raise ProfileError(f"{field}: got {value:g}, wanted a finite number {'of at least' if zero else 'above'} 0")
