"""Models with weights in pages: tensors over a reserved address range, and the layout of the weights in it."""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from horologe_gpu_worker.runtime import OpenModel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from horologe_gpu_worker.runtimes.pytorch.paging.page_pool import PagePool

    MadeUpInputs = Callable[[int], Mapping[str, NDArray[Any]]]

ALIGNMENT = 256
"""Bytes: the alignment of cudaMalloc, which kernels may rely on for a tensor's first byte."""
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


_live_capsules: list[Any] = []
"""DLPack capsules that must stay alive. A consumer reads `deleter` (null here) when it frees its tensor, at the latest
at the end of the process. A capsule takes a few bytes per range.
"""


def tensor_at(address: int, size: int, cuda: int | None) -> Any:
    """Return a uint8 tensor [size] over `size` bytes at `address` on the host (`cuda` None) or a CUDA device.

    Uses DLPack. With `__cuda_array_interface__` PyTorch would ask the driver for the pointer's device, which fails
    while nothing is mapped there. Nothing is freed with the tensor.
    """
    shape = (ctypes.c_int64 * 1)(size)
    managed = _DLManagedTensor()
    tensor = managed.dl_tensor
    tensor.data, tensor.ndim, tensor.shape = address, 1, shape
    tensor.device_type, tensor.device_id = (CPU, 0) if cuda is None else (CUDA, cuda)
    tensor.code, tensor.bits, tensor.lanes = UNSIGNED, BITS, 1
    _live_capsules.append((managed, shape))
    new_capsule = ctypes.pythonapi.PyCapsule_New
    new_capsule.argtypes, new_capsule.restype = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p], ctypes.py_object
    return from_dlpack(new_capsule(ctypes.addressof(managed), b"dltensor", None))


class TensorLayout(NamedTuple):
    """Layout of one tensor: its first element begins at byte `begin`."""

    begin: int
    dtype: Any
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class WeightLayout(NamedTuple):
    """Layout of tensors in a range of `size` bytes. Tensors that share storage share their bytes."""

    size: int
    tensors: tuple[TensorLayout, ...]
    storages: tuple[tuple[int, Any], ...]
    """Offset and content of every storage."""


def lay_out_weights(tensors: Iterable[Any]) -> WeightLayout:
    """Lay out storages one after another, each aligned. Tied weights are stored once."""
    end = 0
    begins: dict[int, int] = {}
    places: list[TensorLayout] = []
    storages: list[tuple[int, Any]] = []
    for tensor in tensors:
        storage = tensor.untyped_storage()
        key = storage.data_ptr() or -1 - len(places)  # empty storages have no address
        if key not in begins:
            begins[key] = end
            storages.append((end, storage))
            end += -(-storage.nbytes() // ALIGNMENT) * ALIGNMENT
        begin = begins[key] + tensor.storage_offset() * tensor.element_size()
        places.append(TensorLayout(begin, tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())))
    return WeightLayout(end, tuple(places), tuple(storages))


def tensor_views(base: Any, layout: WeightLayout) -> list[Any]:
    """Return the tensors of a layout as views of `base`: uint8, at least `layout.size` bytes, at the start of its
    storage.
    """
    storage = base.untyped_storage()
    return [
        torch.empty(0, dtype=spot.dtype, device=base.device).set_(
            storage, spot.begin // spot.dtype.itemsize, spot.shape, spot.strides
        )
        for spot in layout.tensors
    ]


def copy_weights(layout: WeightLayout) -> NDArray[np.uint8]:
    """Copy all weights into one piece of host memory, laid out as in the pages, so that a LOAD is one copy.

    The memory is aligned to system pages, so that it can be pinned separately.
    """
    memory = np.frombuffer(mmap.mmap(-1, max(1, layout.size)), np.uint8)
    whole = torch.from_numpy(memory)
    for begin, storage in layout.storages:
        source = torch.empty(0, dtype=torch.uint8).set_(storage, 0, (storage.nbytes(),), (1,))
        whole[begin : begin + storage.nbytes()].copy_(source)
    return memory


class PagedModel(OpenModel):
    """A model whose weights are in pages between `load` and `close`. Can be loaded any number of times.

    `tensors` are views into its addresses, valid while `loaded` is True. Subclasses: `HostModel`, `CudaModel`.
    """

    def __init__(self, layout: WeightLayout, blob: Any, pool: PagePool, cuda: int | None = None) -> None:
        """`blob`: the weights as a uint8 tensor on the host, laid out as in the pages."""
        page_bytes = pool.backing.page_bytes
        self._pool = pool
        self._range = pool.reserve_range(-(-layout.size // page_bytes))
        self._retired = False
        self.loaded = False
        self.size = layout.size
        self.base = tensor_at(self._range.address, self._range.pages * page_bytes, cuda)
        self.blob = blob[: self.size]
        self.tensors: Sequence[Any] = tensor_views(self.base, layout)

    def load(self) -> None:
        """Map pages and copy the weights. Raises `OutOfPages`."""
        self.map_pages()
        self._copy_weights()

    def map_pages(self) -> None:
        """Map pages. Their content is undefined. Raises `OutOfPages`."""
        self._pool.map_pages(self._range)
        self.loaded = True

    def _copy_weights(self) -> None:
        """Copy `blob` to the start of `base`."""
        raise NotImplementedError

    def warm(self, inputs: MadeUpInputs) -> None:
        """Prepare for `run`, after the first `load`: later runs do no first-time work. By default nothing.

        `inputs` returns made-up inputs of a batch size. Raises `WarmUpFailed` if the program fails on them.
        """

    def close(self) -> None:
        """Unmap the pages, and release the addresses if `retire` was called."""
        self._pool.unmap_pages(self._range)
        self.loaded = False
        if self._retired:
            self._pool.release_range(self._range)

    def retire(self) -> None:
        """Release the addresses, at once or, if the model is loaded, at `close`. Call when the file has changed."""
        self._retired = True
        if not self.loaded:
            self._pool.release_range(self._range)

    def weights_changed(self) -> bool:
        """Return True if the weights differ from the file."""
        return not torch.equal(self.base[: self.size].cpu(), self.blob)

    def contains_address(self, address: int) -> bool:
        """Return True if the address is within the weights."""
        begin = self._range.address
        return begin <= address < begin + self._range.pages * self._pool.backing.page_bytes
