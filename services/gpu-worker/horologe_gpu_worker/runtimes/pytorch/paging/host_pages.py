"""Pages of host memory: parts of one anonymous file (memfd_create), mapped at reserved addresses."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import TYPE_CHECKING

from horologe_gpu_worker.runtimes.pytorch.paging.page_pool import OutOfPages

if TYPE_CHECKING:
    from collections.abc import Sequence

MAP_FIXED, MAP_NORESERVE, MAP_POPULATE = 0x10, 0x4000, 0x8000
PUNCH_HOLE, KEEP_SIZE = 0x02, 0x01
FAILED = ctypes.c_void_p(-1).value


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    size, number, address = ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p
    libc.mmap.argtypes = [address, size, number, number, number, ctypes.c_long]
    libc.mmap.restype = address
    libc.munmap.argtypes = [address, size]
    libc.fallocate.argtypes = [number, number, ctypes.c_long, ctypes.c_long]
    return libc


class HostBacking:
    """Source of host pages on Linux. A page uses no memory until it is written, and none after it is destroyed."""

    def __init__(self, page_bytes: int) -> None:
        self.page_bytes = page_bytes
        self._libc = _libc()
        self._file = os.memfd_create("horologe-pages", os.MFD_CLOEXEC)
        self._pages = 0
        self._holes: list[int] = []

    def create_page(self) -> int:
        if self._holes:
            return self._holes.pop()
        try:
            os.ftruncate(self._file, (self._pages + 1) * self.page_bytes)
        except OSError as error:
            raise OutOfPages(f"host memory: {error.strerror} for page {self._pages}") from error
        self._pages += 1
        return self._pages - 1

    def destroy_page(self, page: int) -> None:
        flags = PUNCH_HOLE | KEEP_SIZE
        if self._libc.fallocate(self._file, flags, page * self.page_bytes, self.page_bytes):
            raise self._error("fallocate")
        self._holes.append(page)

    def reserve_addresses(self, pages: int) -> int:
        return self._map(None, pages * self.page_bytes, 0)

    def release_addresses(self, address: int, pages: int) -> None:
        if self._libc.munmap(address, pages * self.page_bytes):
            raise self._error("munmap")

    def map_pages(self, address: int, pages: Sequence[int]) -> None:
        access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED | MAP_POPULATE
        for index, page in enumerate(pages):
            target, offset = address + index * self.page_bytes, page * self.page_bytes
            mapped = self._libc.mmap(target, self.page_bytes, access, flags, self._file, offset)
            if mapped == FAILED:
                error = self._error("mmap")
                self.unmap_pages(address, len(pages))
                raise error

    def unmap_pages(self, address: int, pages: int) -> None:
        self._map(address, pages * self.page_bytes, MAP_FIXED)  # the addresses stay reserved; reading them faults

    def _map(self, address: int | None, size: int, more: int) -> int:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE | more
        mapped = self._libc.mmap(address, size, 0, flags, -1, 0)
        if mapped == FAILED:
            raise self._error("mmap")
        return int(mapped)

    def _error(self, call: str) -> OSError:
        number = ctypes.get_errno()
        return OSError(number, f"{call}: {os.strerror(number)}")
