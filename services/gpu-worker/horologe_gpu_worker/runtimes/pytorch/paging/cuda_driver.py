"""CUDA driver API: the functions that pages need, through ctypes. Every return code is checked.

Signatures and numbers as in cuda.h; CUDA Driver API, "Virtual Memory Management".
"""

from __future__ import annotations

import ctypes
from typing import Any

DEVICE_POINTER = ctypes.c_uint64
HANDLE = ctypes.c_uint64
FLAGS = ctypes.c_ulonglong

OUT_OF_MEMORY = 2
ALLOCATION_TYPE_PINNED = 1
LOCATION_TYPE_DEVICE = 1
ACCESS_READ_WRITE = 3
GRANULARITY_MINIMUM = 0
ATTRIBUTE_VIRTUAL_MEMORY = 102


class CudaError(OSError):
    """A driver call failed. `code` is its CUresult; the text names call and error."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__(code, f"{call}: CUDA error {code}: {text}")
        self.code = code


class MemoryLocation(ctypes.Structure):
    """CUmemLocation."""

    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class AllocationFlags(ctypes.Structure):
    """The unnamed last member of CUmemAllocationProp."""

    _fields_ = [
        ("compressionType", ctypes.c_ubyte),
        ("gpuDirectRDMACapable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    ]


class AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("requestedHandleTypes", ctypes.c_int),
        ("location", MemoryLocation),
        ("win32HandleMetaData", ctypes.c_void_p),
        ("allocFlags", AllocationFlags),
    ]


class MemoryAccess(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = [("location", MemoryLocation), ("flags", ctypes.c_int)]


_size, _pointer, _int = ctypes.c_size_t, ctypes.POINTER, ctypes.c_int

SIGNATURES: dict[str, list[Any]] = {
    "cuInit": [ctypes.c_uint],
    "cuGetErrorString": [_int, _pointer(ctypes.c_char_p)],
    "cuDeviceGet": [_pointer(_int), _int],
    "cuDeviceGetName": [ctypes.c_char_p, _int, _int],
    "cuDeviceGetPCIBusId": [ctypes.c_char_p, _int, _int],
    "cuDeviceGetAttribute": [_pointer(_int), _int, _int],
    "cuDevicePrimaryCtxRetain": [_pointer(ctypes.c_void_p), _int],
    "cuCtxGetCurrent": [_pointer(ctypes.c_void_p)],
    "cuCtxSetCurrent": [ctypes.c_void_p],
    "cuMemGetInfo_v2": [_pointer(_size), _pointer(_size)],
    "cuMemGetAllocationGranularity": [_pointer(_size), _pointer(AllocationProperties), _int],
    "cuMemCreate": [_pointer(HANDLE), _size, _pointer(AllocationProperties), FLAGS],
    "cuMemRelease": [HANDLE],
    "cuMemAddressReserve": [_pointer(DEVICE_POINTER), _size, _size, DEVICE_POINTER, FLAGS],
    "cuMemAddressFree": [DEVICE_POINTER, _size],
    "cuMemMap": [DEVICE_POINTER, _size, _size, HANDLE, FLAGS],
    "cuMemUnmap": [DEVICE_POINTER, _size],
    "cuMemSetAccess": [DEVICE_POINTER, _size, _pointer(MemoryAccess), _size],
    "cuStreamCreate": [_pointer(ctypes.c_void_p), ctypes.c_uint],
}
"""Function -> types of its arguments. All functions return a CUresult (int)."""


class Driver:
    """Calls by name: `driver("cuMemUnmap", address, size)`. Raises `CudaError` for any code but CUDA_SUCCESS."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __call__(self, call: str, *arguments: Any) -> None:
        code = getattr(self._library, call)(*arguments)
        if code:
            raise CudaError(call, code, self._text(code))

    def _text(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorString(code, ctypes.byref(text))
        return (text.value or b"unknown error").decode()


def load_driver() -> Driver:
    """Load and initialise the driver of this machine. Raises OSError if there is none."""
    library = ctypes.CDLL("libcuda.so.1")
    for name, arguments in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = arguments, ctypes.c_int
    driver = Driver(library)
    driver("cuInit", 0)
    return driver


class PrimaryContext:
    """Primary context of a device, which PyTorch and ONNX Runtime use too. `number` is a CUdevice."""

    def __init__(self, driver: Driver, device: int) -> None:
        self._driver = driver
        self._handle = ctypes.c_void_p()
        number = ctypes.c_int()
        driver("cuDeviceGet", ctypes.byref(number), device)
        driver("cuDevicePrimaryCtxRetain", ctypes.byref(self._handle), number.value)
        self.number = number.value

    def enter(self) -> None:
        """Make the context current on the calling thread. Each lane is a thread and starts without a context."""
        current = ctypes.c_void_p()
        self._driver("cuCtxGetCurrent", ctypes.byref(current))
        if current.value != self._handle.value:
            self._driver("cuCtxSetCurrent", self._handle)


def device_name(driver: Driver, device: int) -> str:
    """Return the device's product name, such as `NVIDIA H200`."""
    number, name = ctypes.c_int(), ctypes.create_string_buffer(256)
    driver("cuDeviceGet", ctypes.byref(number), device)
    driver("cuDeviceGetName", name, len(name), number.value)
    return name.value.decode()
