"""Physical pages of equal size, mapped into a model's address range at LOAD and taken out at UNLOAD.

A range is reserved once per model, so its weights have the same addresses whenever they are resident: what has been
captured over them (a CUDA graph) stays valid. Pages are interchangeable, since a range makes one contiguous piece of
whichever it gets: memory cannot fragment, and a tensor may be larger than a page (Clockwork section 5.2 wants free
pages to be all that the controller has to know).
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence


class OutOfPages(Exception):
    """The device has no memory for another page; the text says what was asked for."""


class PageBacking(Protocol):
    """Where pages come from (host.py, cuda.py). Every method raises `OSError` with what the system says."""

    page_bytes: int

    def create_page(self) -> int:
        """A physical page; returns its handle. Raises `OutOfPages`."""

    def destroy_page(self, page: int) -> None:
        """Give a page that is mapped nowhere back to the system."""

    def reserve_addresses(self, pages: int) -> int:
        """The address of a fresh range of `pages` pages with nothing in it."""

    def release_addresses(self, address: int, pages: int) -> None:
        """Forget a range that has nothing in it."""

    def map_pages(self, address: int, pages: Sequence[int]) -> None:
        """Put pages into a range from its beginning, ready to be read and written. All or none."""

    def unmap_pages(self, address: int, pages: int) -> None:
        """Take all pages out of a range of `pages` pages."""


class AddressRange:
    """The addresses of one model's weights: [address, address + pages * page_bytes)."""

    def __init__(self, address: int, pages: int) -> None:
        self.address = address
        self.pages = pages
        self.mapped: tuple[int, ...] = ()
        """The physical pages in it; none or all of them."""


class PagePool:
    """Law: every page made is free or in exactly one range; a range is empty or full; none is free beyond `total`.

    How many pages models may have is accounted for elsewhere (`pages.PageCache`). A model that is measured while all
    pages are taken gets pages beyond `total`, which go back to the system afterwards, so measuring fails no LOAD.
    """

    def __init__(self, backing: PageBacking, total: int) -> None:
        self.backing = backing
        self.total = total
        self._free: list[int] = []
        self._page_count = 0
        self._ranges: dict[int, AddressRange] = {}
        self._lock = Lock()

    def fill(self) -> None:
        """Make all pages now, so that no LOAD has to. Raises `OutOfPages`."""
        with self._lock:
            while self._page_count < self.total:
                self._free.append(self._create_page())

    def reserve_range(self, pages: int) -> AddressRange:
        """Reserve addresses for `pages` pages (at least 1)."""
        with self._lock:
            found = AddressRange(self.backing.reserve_addresses(max(1, pages)), max(1, pages))
            self._ranges[found.address] = found
            return found

    def map_pages(self, where: AddressRange) -> None:
        """Fill the range with pages. Raises `OutOfPages`, and then nothing has changed."""
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
        """Empty the range; its pages are free. Does nothing to an empty one."""
        with self._lock:
            if where.mapped:
                self.backing.unmap_pages(where.address, where.pages)
                self._free.extend(where.mapped)
                where.mapped = ()
                self._trim()

    def release_range(self, where: AddressRange) -> None:
        """Give up the addresses for good."""
        self.unmap_pages(where)
        with self._lock:
            if self._ranges.pop(where.address, None):
                self.backing.release_addresses(where.address, where.pages)

    def close(self) -> None:
        """Give everything back to the system."""
        for where in list(self._ranges.values()):
            self.release_range(where)
        with self._lock:
            while self._free:
                self._destroy_page(self._free.pop())

    def check(self) -> None:
        """Raise AssertionError where the law is broken."""
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
