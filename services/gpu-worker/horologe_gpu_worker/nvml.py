"""NVIDIA's management library (NVML), through ctypes: power, clocks, modes and MIG devices of a GPU.

The library comes with the driver. No Python package is needed.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

LIBRARY = "libnvidia-ml.so.1"
CLOCK_SM = 1
NOT_SUPPORTED, NOT_FOUND = 3, 6
LOST = (15, 16)
"""NVML_ERROR_GPU_IS_LOST and NVML_ERROR_RESET_REQUIRED: the GPU answers no more."""
TEXT_BYTES = 96

_uint, _handle, _pointer = ctypes.c_uint, ctypes.c_void_p, ctypes.POINTER


class MemoryInfo(ctypes.Structure):
    """nvmlMemory_t, in bytes."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class MigAttributes(ctypes.Structure):
    """nvmlDeviceAttributes_t of a MIG device."""

    _fields_ = [
        *((name, _uint) for name in (
            "multiprocessorCount", "sharedCopyEngineCount", "sharedDecoderCount", "sharedEncoderCount",
            "sharedJpegCount", "sharedOfaCount", "gpuInstanceSliceCount", "computeInstanceSliceCount",
        )),
        ("memorySizeMB", ctypes.c_ulonglong),
    ]  # fmt: skip


class MigDevice(NamedTuple):
    """A slice of a GPU (Multi-Instance GPU). `percent`: its compute slices, 1 of 7 for `1g` of an H100."""

    uuid: str
    percent: float


SIGNATURES: dict[str, list[Any]] = {
    "nvmlInit_v2": [],
    "nvmlSystemGetDriverVersion": [ctypes.c_char_p, _uint],
    "nvmlDeviceGetCount_v2": [_pointer(_uint)],
    "nvmlDeviceGetHandleByIndex_v2": [_uint, _pointer(_handle)],
    "nvmlDeviceGetHandleByPciBusId_v2": [ctypes.c_char_p, _pointer(_handle)],
    "nvmlDeviceGetName": [_handle, ctypes.c_char_p, _uint],
    "nvmlDeviceGetEnforcedPowerLimit": [_handle, _pointer(_uint)],
    "nvmlDeviceGetPowerUsage": [_handle, _pointer(_uint)],
    "nvmlDeviceGetTotalEnergyConsumption": [_handle, _pointer(ctypes.c_ulonglong)],
    "nvmlDeviceGetClockInfo": [_handle, _uint, _pointer(_uint)],
    "nvmlDeviceGetMaxClockInfo": [_handle, _uint, _pointer(_uint)],
    "nvmlDeviceGetPersistenceMode": [_handle, _pointer(_uint)],
    "nvmlDeviceGetUUID": [_handle, ctypes.c_char_p, _uint],
    "nvmlDeviceGetMemoryInfo": [_handle, _pointer(MemoryInfo)],
    "nvmlDeviceGetMigMode": [_handle, _pointer(_uint), _pointer(_uint)],
    "nvmlDeviceGetMaxMigDeviceCount": [_handle, _pointer(_uint)],
    "nvmlDeviceGetMigDeviceHandleByIndex": [_handle, _uint, _pointer(_handle)],
    "nvmlDeviceGetAttributes_v2": [_handle, _pointer(MigAttributes)],
}
"""Function -> types of its arguments. All functions return an nvmlReturn_t (int)."""


class NvmlError(OSError):
    """A call that failed. `code` is NVML's."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(f"{call}: NVML error {code}: {text}")
        self.code = code


class GpuLost(NvmlError):
    """The GPU has fallen off the bus or needs a reset."""


class Nvml:
    """NVML calls that return their result. `library` is the loaded library."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.call("nvmlInit_v2")

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Raises GpuLost, or NvmlError for any other code but NVML_SUCCESS."""
        code = getattr(self._library, name)(*arguments)
        if code:
            raise (GpuLost if code in LOST else NvmlError)(name, code, self._library.nvmlErrorString(code).decode())

    def number(self, name: str, *arguments: Any, kind: Any = _uint) -> int:
        """Return the unsigned integer that a function writes to its last argument."""
        value = kind()
        self.call(name, *arguments, ctypes.byref(value))
        return int(value.value)

    def text(self, name: str, *arguments: Any) -> str:
        """Return the text that a function writes."""
        buffer = ctypes.create_string_buffer(TEXT_BYTES)
        self.call(name, *arguments, buffer, TEXT_BYTES)
        return buffer.value.decode()

    def gpu(self, index: int = 0, pci_bus_id: str = "") -> NvmlGpu:
        """Return a GPU by its PCI bus id, or by its number in NVML's order, which CUDA's order need not equal."""
        handle = _handle()
        if pci_bus_id:
            self.call("nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id.encode(), ctypes.byref(handle))
        else:
            self.call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        return NvmlGpu(self, handle)

    def gpus(self) -> Iterator[NvmlGpu]:
        """Iterate over the GPUs of this machine."""
        for index in range(self.number("nvmlDeviceGetCount_v2")):
            yield self.gpu(index)


class NvmlGpu(NamedTuple):
    """A GPU. Every property asks NVML and raises GpuLost or NvmlError."""

    nvml: Nvml
    handle: Any

    @property
    def name(self) -> str:
        """Product name, such as `NVIDIA H100 80GB HBM3`."""
        return self.nvml.text("nvmlDeviceGetName", self.handle)

    @property
    def uuid(self) -> str:
        """Identifier that CUDA_VISIBLE_DEVICES accepts: `GPU-...` or `MIG-...`."""
        return self.nvml.text("nvmlDeviceGetUUID", self.handle)

    @property
    def memory_bytes(self) -> int:
        """Size of the device memory."""
        info = MemoryInfo()
        self.nvml.call("nvmlDeviceGetMemoryInfo", self.handle, ctypes.byref(info))
        return int(info.total)

    def mig_devices(self) -> list[MigDevice]:
        """Return the MIG devices; none if MIG is off or not supported."""
        mode, pending = _uint(), _uint()
        try:
            self.nvml.call("nvmlDeviceGetMigMode", self.handle, ctypes.byref(mode), ctypes.byref(pending))
        except NvmlError as error:
            if error.code == NOT_SUPPORTED:
                return []
            raise
        most = self.nvml.number("nvmlDeviceGetMaxMigDeviceCount", self.handle) if mode.value else 0
        found = (self._mig_device(index, most) for index in range(most))
        return [device for device in found if device is not None]

    def _mig_device(self, index: int, most: int) -> MigDevice | None:
        handle, attributes = _handle(), MigAttributes()
        try:
            self.nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", self.handle, index, ctypes.byref(handle))
        except NvmlError as error:
            if error.code == NOT_FOUND:  # fewer than possible
                return None
            raise
        self.nvml.call("nvmlDeviceGetAttributes_v2", handle, ctypes.byref(attributes))
        percent = round(100 * attributes.computeInstanceSliceCount / most, 1)
        return MigDevice(NvmlGpu(self.nvml, handle).uuid, percent)

    @property
    def power_cap_w(self) -> float:
        """Power limit that the driver enforces."""
        return self.nvml.number("nvmlDeviceGetEnforcedPowerLimit", self.handle) / 1000

    @property
    def power_w(self) -> float:
        """Power now. From Ampere on, the mean of the last second."""
        return self.nvml.number("nvmlDeviceGetPowerUsage", self.handle) / 1000

    @property
    def energy_j(self) -> float | None:
        """Energy since the driver was loaded; None before Volta."""
        try:
            call = "nvmlDeviceGetTotalEnergyConsumption"
            return self.nvml.number(call, self.handle, kind=ctypes.c_ulonglong) / 1000
        except NvmlError as error:
            if error.code == NOT_SUPPORTED:
                return None
            raise

    @property
    def frequency_mhz(self) -> float:
        """Clock of the multiprocessors now."""
        return float(self.nvml.number("nvmlDeviceGetClockInfo", self.handle, CLOCK_SM))

    @property
    def max_frequency_mhz(self) -> float:
        """Highest clock of the multiprocessors."""
        return float(self.nvml.number("nvmlDeviceGetMaxClockInfo", self.handle, CLOCK_SM))

    @property
    def persistence(self) -> bool:
        """True if the driver stays loaded while no program uses the GPU."""
        return bool(self.nvml.number("nvmlDeviceGetPersistenceMode", self.handle))


def load_nvml() -> Nvml:
    """Load and initialise NVML. Raises OSError if there is no library, NvmlError if it finds no driver."""
    library = ctypes.CDLL(LIBRARY)
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    library.nvmlErrorString.argtypes, library.nvmlErrorString.restype = [ctypes.c_int], ctypes.c_char_p
    return Nvml(library)
