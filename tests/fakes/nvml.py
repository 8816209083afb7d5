"""A fake NVML library: the same calls and return codes, for GPUs whose figures a test sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OK, NOT_SUPPORTED, NOT_FOUND, GPU_IS_LOST = 0, 3, 6, 15
MIG_HANDLE = 100
"""Handles of MIG devices are this times the number of the GPU, plus the index."""
TEXTS = {NOT_SUPPORTED: b"Not Supported", NOT_FOUND: b"Not Found", GPU_IS_LOST: b"GPU is lost"}


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
    mig: list[tuple[bytes, int]] | None = None
    """UUID and compute slices of each MIG device. None: not supported."""


@dataclass
class FakeNvml:
    """The library. Handles are numbers of GPUs, from 1 on."""

    gpus: list[FakeGpu] = field(default_factory=lambda: [FakeGpu()])
    driver: bytes = b"580.159"

    def nvmlInit_v2(self) -> int:
        return OK

    def nvmlErrorString(self, code: int) -> bytes:
        return TEXTS.get(code, b"Unknown Error")

    def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:
        text.value = self.driver
        return OK

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self.gpus)
        return OK

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        if index >= len(self.gpus):
            return NOT_FOUND
        handle._obj.value = index + 1
        return OK

    def nvmlDeviceGetHandleByPciBusId_v2(self, bus_id: bytes, handle: Any) -> int:
        for number, gpu in enumerate(self.gpus, start=1):
            if gpu.bus_id.encode() == bus_id:
                handle._obj.value = number
                return OK
        return NOT_FOUND

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: int) -> int:
        return self._write(handle, text, "name", is_text=True)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, value: Any) -> int:
        return self._write(handle, value, "limit_mw")

    def nvmlDeviceGetPowerUsage(self, handle: Any, value: Any) -> int:
        return self._write(handle, value, "power_mw")

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, value: Any) -> int:
        return self._write(handle, value, "energy_mj")

    def nvmlDeviceGetClockInfo(self, handle: Any, clock: int, value: Any) -> int:
        assert clock == 1  # NVML_CLOCK_SM
        return self._write(handle, value, "clock_mhz")

    def nvmlDeviceGetMaxClockInfo(self, handle: Any, clock: int, value: Any) -> int:
        assert clock == 1
        return self._write(handle, value, "max_clock_mhz")

    def nvmlDeviceGetPersistenceMode(self, handle: Any, value: Any) -> int:
        return self._write(handle, value, "persistence")

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: int) -> int:
        if handle.value > MIG_HANDLE:
            text.value = self._mig(handle)[0]
            return OK
        return self._write(handle, text, "uuid", is_text=True)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, info: Any) -> int:
        gpu = self.gpus[handle.value - 1]
        info._obj.total = gpu.memory_bytes
        return GPU_IS_LOST if gpu.lost else OK

    def nvmlDeviceGetMigMode(self, handle: Any, mode: Any, pending: Any) -> int:
        gpu = self.gpus[handle.value - 1]
        mode._obj.value = bool(gpu.mig)
        return NOT_SUPPORTED if gpu.mig is None else OK

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, count: Any) -> int:
        count._obj.value = 7
        return OK

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int, device: Any) -> int:
        if index >= len(self.gpus[handle.value - 1].mig or ()):
            return NOT_FOUND
        device._obj.value = MIG_HANDLE * handle.value + index
        return OK

    def nvmlDeviceGetAttributes_v2(self, handle: Any, attributes: Any) -> int:
        attributes._obj.computeInstanceSliceCount = self._mig(handle)[1]
        return OK

    def _mig(self, handle: Any) -> tuple[bytes, int]:
        gpu = self.gpus[handle.value // MIG_HANDLE - 1]
        assert gpu.mig is not None
        uuid, slices = gpu.mig[handle.value % MIG_HANDLE]
        return uuid, slices

    def _write(self, handle: Any, target: Any, name: str, is_text: bool = False) -> int:
        gpu = self.gpus[handle.value - 1]
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
