"""Tensors over addresses that nobody but us has allocated, and where a model's weights lie in its range."""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

ALIGNMENT = 256
"""What cudaMalloc aligns to, and so what kernels may expect of a tensor's first byte."""
CPU, CUDA = 1, 2
"""DLDeviceType."""
UNSIGNED, BITS = 1, 8
"""DLDataType of uint8."""


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _DLManagedTensor(ctypes.Structure):
    _fields_ = [
        ("dl_tensor", _DLTensor),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


_kept: list[Any] = []
"""A consumer reads `deleter` (null here) when it lets go of its tensor, at the end of the process at the latest:
these few bytes per range must not be gone by then."""


def tensor_at(address: int, size: int, cuda: int | None) -> Any:
    """A uint8 tensor [size] over `size` bytes at `address` on the host (None) or a CUDA device.

    By DLPack: the other way, `__cuda_array_interface__`, has PyTorch ask the driver which device the pointer belongs
    to, which fails while nothing is mapped there. Nothing is freed with the tensor.
    """
    shape = (ctypes.c_int64 * 1)(size)
    managed = _DLManagedTensor()
    tensor = managed.dl_tensor
    tensor.data, tensor.ndim, tensor.shape = address, 1, shape
    tensor.device_type, tensor.device_id = (CPU, 0) if cuda is None else (CUDA, cuda)
    tensor.code, tensor.bits, tensor.lanes = UNSIGNED, BITS, 1
    _kept.append((managed, shape))
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.argtypes, new_capsule.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
    return from_dlpack(new_capsule(ctypes.addressof(managed), b"dltensor", None))


class Spot(NamedTuple):
    """Where one tensor lies: its first element begins at byte `begin`."""

    begin: int
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Layout(NamedTuple):
    """Tensors in a range of `size` bytes. Those that share storage share their bytes."""

    size: int
    spots: tuple[Spot, ...]
    storages: tuple[tuple[int, Any], ...]
    """First byte and content of every storage."""


def lay_out(tensors: Iterable[Any]) -> Layout:
    """Storages one after another, each aligned; tied weights once."""
    at = 0
    begins: dict[int, int] = {}
    spots: list[Spot] = []
    storages: list[tuple[int, Any]] = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        key = storage.data_ptr() or -1 - len(spots)  # empty ones have no address
        if key not in begins:
            begins[key] = at
            storages.append((at, storage))
            at += -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT
        begin = begins[key] + tensor.storage_offset() * tensor.element_size()
        spots.append(Spot(begin, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())))
    return Layout(at, tuple(spots), tuple(storages))


def views(base: Any, layout: Layout) -> list[Any]:
    """The tensors of a layout over `base`: uint8, at least `layout.size`, and itself at the start of its storage."""
    storage = base.untyped_storage()
    return [
        torch.empty(0, dtype=spot.dtype, device=base.device).set_(
            storage, spot.begin // spot.dtype.itemsize, spot.shape, spot.strides
        )
        for spot in layout.spots
    ]


def blob(layout: Layout) -> NDArray[np.uint8]:
    """All weights in one piece of host memory, laid out as in the pages, so that a LOAD is one copy.

    It begins and ends with a page of the system's, so that it can be pinned by itself.
    """
    memory = np.frombuffer(mmap.mmap(-1, max(1, layout.size)), np.uint8)
    whole = torch.from_numpy(memory)
    for begin, storage in layout.storages:
        source = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
        whole[begin : begin + storage.nbytes()].copy_(source)
    return memory
