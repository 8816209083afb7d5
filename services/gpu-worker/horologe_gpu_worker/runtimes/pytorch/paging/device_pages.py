"""Pages of a CUDA device: one pool for all runtimes of the process.

Memory that ONNX Runtime or the process of a Python model allocates itself takes the place of pages. So
`worker.pages_bytes` is what all models together take, and one count of pages decides which models fit.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from horologe_common.status import ModelFailed
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import load_driver
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_pages import CudaBacking
from horologe_gpu_worker.runtimes.pytorch.paging.page_pool import OutOfPages, PagePool

if TYPE_CHECKING:
    from horologe_gpu_worker.settings import WorkerSettings

PAGE_BYTES = 16 << 20


@cache
def device_pool(device: int, pages: int, page_bytes: int = PAGE_BYTES) -> PagePool:
    """Return the pool of a CUDA device, created in advance. Raises OSError or `OutOfPages`."""
    pool = PagePool(CudaBacking(load_driver(), device, page_bytes), pages)
    pool.fill()
    return pool


def _pool_of(settings: WorkerSettings) -> PagePool | None:
    if settings.cuda is None:
        return None
    try:
        return device_pool(settings.cuda, settings.pages)
    except (OSError, OutOfPages) as error:
        raise ModelFailed(f"{error}; worker.pages_bytes may be more than the device has") from error


class HeldPages:
    """Pages in whose place a model has memory of its own, until `put_back`. None on the CPU.

    Raises `ModelFailed` if the device has no room for the pool.
    """

    def __init__(self, settings: WorkerSettings, pages: float, on_gpu: bool = True) -> None:
        self._pool = _pool_of(settings) if on_gpu else None
        self._count = self._pool.set_aside(int(pages)) if self._pool else 0

    def put_back(self) -> None:
        """Give the pages back, once. Call after the model's memory is free."""
        count, self._count = self._count, 0
        if self._pool is not None and count:
            self._pool.put_back(count)
