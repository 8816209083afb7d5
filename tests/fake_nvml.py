"""A fake NVML library: the same calls and return codes, for GPUs whose figures a test sets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

OK, NOT_SUPPORTED, NOT_FOUND, GPU_IS_LOST = 0, 3, 6, 15
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
