"""A fake NVML library behind `pynvml`: the same calls and return codes, for GPUs whose figures a test sets."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pynvml

if TYPE_CHECKING:
    import pytest

OK, NOT_SUPPORTED, NOT_FOUND, GPU_IS_LOST = 0, 3, 6, 15
MIG_HANDLE = 100
"""Handles of MIG devices are this times the number of the GPU, plus the index."""


@dataclass
class FakeGpu:
    """A GPU. `lost`: it answers no call. `energy_mj`: None before Volta."""

    bus_id: str = "0000:00:00.0"
    name: bytes = b"NVIDIA H100 80GB HBM3"
    limit_mw: int = 700_000
    power_mw: int = 120_000
    energy_mj: int | None = 0
    clock_mhz: int = 1980
    max_clock_mhz: int = 1980
    persistence: int = 1
    lost: bool = False
    uuid: bytes = b"GPU-5a"
    memory_bytes: int = 80 << 30
    used_bytes: int = 8 << 30
    utilization: int | None = 25
    mig: list[tuple[bytes, int]] | None = None
    """UUID and compute slices of each MIG device. None: not supported."""


@dataclass
class FakeNvml:
    """The library. Handles are numbers of GPUs, from 1 on."""

    gpus: list[FakeGpu] = field(default_factory=lambda: [FakeGpu()])
    driver: bytes = b"580.159"

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have `pynvml` call this library."""
        monkeypatch.setattr(pynvml, "nvmlLib", self)
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})

    def nvmlInitWithFlags(self, flags: int) -> int:
        return OK

    def nvmlSystemGetDriverVersion(self, text: Any, size: Any) -> int:
        text.value = self.driver
        return OK

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return OK

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        if index.value >= len(self.gpus):
            return NOT_FOUND
        _set_handle(handle, index.value + 1)
        return OK

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus_id: Any, handle: Any) -> int:
        for number, gpu in enumerate(self.gpus, start=1):
            if gpu.bus_id.encode() == bus_id.value:
                _set_handle(handle, number)
                return OK
        return NOT_FOUND

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: Any) -> int:
        return self._write(handle, text, "name", is_text=True)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, value: Any) -> int:
        return self._write(handle, value, "limit_mw")

    def nvmlDeviceGetPowerUsage(self, handle: Any, value: Any) -> int:
        return self._write(handle, value, "power_mw")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, value: Any) -> int:
        return self._write(handle, value, "energy_mj")

    def nvmlDeviceGetClockInfo(self, handle: Any, clock: Any, value: Any) -> int:
        assert clock.value == pynvml.NVML_CLOCK_SM
        return self._write(handle, value, "clock_mhz")

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, clock: Any, value: Any) -> int:
        assert clock.value == pynvml.NVML_CLOCK_SM
        return self._write(handle, value, "max_clock_mhz")

    def nvmlDeviceGetPersistenceMode(self, handle: Any, value: Any) -> int:
        return self._write(handle, value, "persistence")

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: Any) -> int:
        if _number(handle) > MIG_HANDLE:
            text.value = self._mig(handle)[0]
            return OK
        return self._write(handle, text, "uuid", is_text=True)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, info: Any) -> int:
        gpu = self.gpus[_number(handle) - 1]
        info._obj.total, info._obj.used = gpu.memory_bytes, gpu.used_bytes
        return GPU_IS_LOST if gpu.lost else OK

    def nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> int:
        gpu = self.gpus[_number(handle) - 1]
        rates._obj.gpu = gpu.utilization or 0
        return NOT_SUPPORTED if gpu.utilization is None else OK

    def nvmlDeviceGetMigMode(self, handle: Any, mode: Any, pending: Any) -> int:
        gpu = self.gpus[_number(handle) - 1]
        mode._obj.value = bool(gpu.mig)
        return NOT_SUPPORTED if gpu.mig is None else OK

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, count: Any) -> int:
        count._obj.value = 7
        return OK

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, device: Any) -> int:
        if index.value >= len(self.gpus[_number(handle) - 1].mig or ()):
            return NOT_FOUND
        _set_handle(device, MIG_HANDLE * _number(handle) + index.value)
        return OK

    def nvmlDeviceGetAttributes_v2(self, handle: Any, attributes: Any) -> int:
        attributes._obj.computeInstanceSliceCount = self._mig(handle)[1]
        return OK

    def _mig(self, handle: Any) -> tuple[bytes, int]:
        gpu = self.gpus[_number(handle) // MIG_HANDLE - 1]
        assert gpu.mig is not None
        uuid, slices = gpu.mig[_number(handle) % MIG_HANDLE]
        return uuid, slices

    def _write(self, handle: Any, target: Any, name: str, is_text: bool = False) -> int:
        gpu = self.gpus[_number(handle) - 1]
        if gpu.lost:
            return GPU_IS_LOST
        value = getattr(gpu, name)
        if value is None:
            return NOT_SUPPORTED
        if is_text:
            target.value = value
        else:
            target._obj.value = value
        return OK


def hide_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have `pynvml` find no library, as on a machine without NVIDIA's driver."""

    def fail(library: str) -> None:
        raise OSError(f"{library}: cannot open shared object file")

    monkeypatch.setattr(pynvml, "nvmlLib", None)
    monkeypatch.setattr(pynvml, "CDLL", fail)


def _number(handle: Any) -> int:
    """Return the number that a handle, a pointer for the caller, has in this library."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _set_handle(target: Any, number: int) -> None:
    ctypes.cast(target, ctypes.POINTER(ctypes.c_void_p))[0] = number
