"""Page pool: physical pages of equal size, mapped into a model's address range at LOAD and unmapped at UNLOAD.

A range is reserved once per model, so its weights have the same addresses whenever they are resident, and a CUDA graph
captured over them stays valid. Pages are interchangeable: any free pages make a contiguous range. So memory cannot
fragment, a tensor may exceed a page, and the number of free pages is all that the controller must know (Clockwork
section 5.2).
"""

from __future__ import annotations

from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class OutOfPages(Exception):
    """The device has no memory for another page. The text says what was requested."""


class PageBacking(Protocol):
    """Source of pages: host_pages.py or cuda_pages.py. Every method raises `OSError` with the system's error."""

    page_bytes: int

    def create_page(self) -> int:
        """Create a physical page and return its handle. Raises `OutOfPages`."""

    def destroy_page(self, page: int) -> None:
        """Destroy a page that is not mapped."""

    def reserve_addresses(self, pages: int) -> int:
        """Reserve an empty range of `pages` pages and return its address."""

    def release_addresses(self, address: int, pages: int) -> None:
        """Release an empty range."""

    def map_pages(self, address: int, pages: Sequence[int]) -> None:
        """Map pages from the start of a range, readable and writable. Maps all of them or none."""

    def unmap_pages(self, address: int, pages: int) -> None:
        """Unmap all pages of a range of `pages` pages."""


class AddressRange:
    """Addresses of one model's weights: [address, address + pages * page_bytes)."""

    def __init__(self, address: int, pages: int) -> None:
        self.address = address
        self.pages = pages
        self.mapped: tuple[int, ...] = ()
        """Physical pages mapped into the range; none or all of them."""


class PagePool:
    """Pages of a device. `total`: without those that are set aside.

    Invariants: every page is free or in exactly one range; a range is empty or full; no page beyond `total` is free.
    `residency.PageCache` accounts for the pages that models may use. A model that is measured while all pages are in
    use gets pages beyond `total`, which are destroyed afterwards, so measuring fails no LOAD.
    """

    def __init__(self, backing: PageBacking, total: int) -> None:
        self.backing = backing
        self.total = total
        self._free: list[int] = []
        self._page_count = 0
        self._ranges: dict[int, AddressRange] = {}
        self._lock = Lock()

    def fill(self) -> None:
        """Create all pages in advance, so that no LOAD has to. Raises `OutOfPages`."""
        with self._lock:
            while self._page_count < self.total:
                self._free.append(self._create_page())

    def set_aside(self, pages: int) -> int:
        """Destroy up to `pages` free pages, so that memory outside of the pool can take their place. Return their
        number, for `put_back`.
        """
        with self._lock:
            count = min(pages, len(self._free))
            for _ in range(count):
                self._destroy_page(self._free.pop())
            self.total -= count
            return count

    def put_back(self, count: int) -> None:
        """Create pages in place of those that `set_aside` destroyed. A page for which no memory is free is created by
        the LOAD that needs it.
        """
        with self._lock:
            self.total += count
        with suppress(OutOfPages):
            self.fill()

    def reserve_range(self, pages: int) -> AddressRange:
        """Reserve addresses for `pages` pages (at least 1)."""
        with self._lock:
            reserved = AddressRange(self.backing.reserve_addresses(max(1, pages)), max(1, pages))
            self._ranges[reserved.address] = reserved
            return reserved

    def map_pages(self, where: AddressRange) -> None:
        """Map pages into the range. Raises `OutOfPages`; then nothing has changed."""
        with self._lock:
            assert not where.mapped, "the range is mapped already"
            pages = [self._free.pop() for _ in range(min(where.pages, len(self._free)))]
            try:
                while len(pages) < where.pages:
                    pages.append(self._create_page())
                self.backing.map_pages(where.address, pages)
            except BaseException:
                self._free.extend(pages)
                self._trim()
                raise
            where.mapped = tuple(pages)

    def unmap_pages(self, where: AddressRange) -> None:
        """Unmap and free the pages of the range. Does nothing if it is empty."""
        with self._lock:
            if where.mapped:
                self.backing.unmap_pages(where.address, where.pages)
                self._free.extend(where.mapped)
                where.mapped = ()
                self._trim()

    def release_range(self, where: AddressRange) -> None:
        """Unmap the range and release its addresses."""
        self.unmap_pages(where)
        with self._lock:
            if self._ranges.pop(where.address, None):
                self.backing.release_addresses(where.address, where.pages)

    def close(self) -> None:
        """Release all ranges and destroy all pages."""
        for where in list(self._ranges.values()):
            self.release_range(where)
        with self._lock:
            while self._free:
                self._destroy_page(self._free.pop())

    def check(self) -> None:
        mapped = [page for where in self._ranges.values() for page in where.mapped]
        assert len(self._free) + len(mapped) == self._page_count
        assert len({*self._free, *mapped}) == self._page_count
        assert not self._free or self._page_count <= self.total
        assert all(len(where.mapped) in (0, where.pages) for where in self._ranges.values())

    def _create_page(self) -> int:
        page = self.backing.create_page()
        self._page_count += 1
        return page

    def _destroy_page(self, page: int) -> None:
        self.backing.destroy_page(page)
        self._page_count -= 1

    def _trim(self) -> None:
        while self._free and self._page_count > self.total:
            self._destroy_page(self._free.pop())
