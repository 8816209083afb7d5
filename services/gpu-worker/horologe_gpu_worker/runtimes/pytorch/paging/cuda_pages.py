"""Pages of device memory: CUDA's virtual memory management (cuMemCreate once, cuMemMap at LOAD)."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from horologe_gpu_worker.runtimes.pytorch.paging import cuda_driver
from horologe_gpu_worker.runtimes.pytorch.paging.page_pool import OutOfPages

if TYPE_CHECKING:
    from collections.abc import Sequence


class CudaBacking:
    """Source of pages on device number `device`, in its primary context, which PyTorch uses too.

    Raises OSError if the device cannot map memory, or `page_bytes` does not fit its granularity.
    """

    def __init__(self, driver: cuda_driver.Driver, device: int, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self._driver = driver
        self._context = cuda_driver.PrimaryContext(driver, device)
        number, supported, granularity = self._context.number, ctypes.c_int(), ctypes.c_size_t()
        driver("cuDeviceGetAttribute", ctypes.byref(supported), cuda_driver.ATTRIBUTE_VIRTUAL_MEMORY, number)
        if not supported.value:
            raise OSError(f"cuda:{device}: got a device without virtual memory management, wanted one with it")
        location = cuda_driver.MemoryLocation(cuda_driver.LOCATION_TYPE_DEVICE, number)
        self._properties = cuda_driver.AllocationProperties(cuda_driver.ALLOCATION_TYPE_PINNED, 0, location)
        self._access = cuda_driver.MemoryAccess(location, cuda_driver.ACCESS_READ_WRITE)
        self._context.enter()
        driver(
            "cuMemGetAllocationGranularity",
            ctypes.byref(granularity),
            ctypes.byref(self._properties),
            cuda_driver.GRANULARITY_MINIMUM,
        )
        if page_bytes % granularity.value:
            raise OSError(f"pages: got {page_bytes} bytes, wanted a multiple of {granularity.value} on cuda:{device}")

    def create_page(self) -> int:
        page = cuda_driver.HANDLE()
        self._context.enter()
        try:
            self._driver("cuMemCreate", ctypes.byref(page), self.page_bytes, ctypes.byref(self._properties), 0)
        except cuda_driver.CudaError as error:
            if error.code == cuda_driver.OUT_OF_MEMORY:
                raise OutOfPages(f"device memory: no room for another page of {self.page_bytes} bytes") from error
            raise
        return page.value

    def destroy_page(self, page: int) -> None:
        self._context.enter()
        self._driver("cuMemRelease", page)

    def reserve_addresses(self, pages: int) -> int:
        address = cuda_driver.DEVICE_POINTER()
        self._context.enter()
        self._driver("cuMemAddressReserve", ctypes.byref(address), pages * self.page_bytes, 0, 0, 0)
        return address.value

    def release_addresses(self, address: int, pages: int) -> None:
        self._context.enter()
        self._driver("cuMemAddressFree", address, pages * self.page_bytes)

    def map_pages(self, address: int, pages: Sequence[int]) -> None:
        self._context.enter()
        mapped = 0
        try:
            for page in pages:
                self._driver("cuMemMap", address + mapped * self.page_bytes, self.page_bytes, 0, page, 0)
                mapped += 1
            size = mapped * self.page_bytes
            self._driver("cuMemSetAccess", address, size, ctypes.byref(self._access), 1)
        except cuda_driver.CudaError:
            if mapped:
                self._driver("cuMemUnmap", address, mapped * self.page_bytes)
            raise

    def unmap_pages(self, address: int, pages: int) -> None:
        self._context.enter()
        self._driver("cuMemUnmap", address, pages * self.page_bytes)
