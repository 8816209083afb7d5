"""Physical pages and address ranges, on an emulated CUDA driver and on real host memory."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.cuda import GRANULARITY, FakeCuda
from horologe_gpu_worker.execution.workspace import Arena
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_driver import AllocationProperties, CudaError, Driver
from horologe_gpu_worker.runtimes.pytorch.paging.cuda_pages import CudaBacking
from horologe_gpu_worker.runtimes.pytorch.paging.host_pages import HostBacking
from horologe_gpu_worker.runtimes.pytorch.paging.page_pool import AddressRange, OutOfPages, PagePool

PAGE = 2 * GRANULARITY
HOST_PAGE = 64 << 10


def a_pool(library: FakeCuda, total: int = 4) -> PagePool:
    return PagePool(CudaBacking(Driver(library), 0, PAGE), total)


def read(where: AddressRange, page_bytes: int, page: int) -> bytes:
    return ctypes.string_at(where.address + page * page_bytes, 4)


def write(where: AddressRange, page_bytes: int, page: int, content: bytes) -> None:
    ctypes.memmove(where.address + page * page_bytes, content, len(content))


def test_the_driver_is_called_with_structures_of_its_sizes() -> None:
    assert ctypes.sizeof(AllocationProperties) == 32  # 4 + 4 + 8 + 8 + 8, as cuda.h lays it out
    assert AllocationProperties.allocFlags.offset == 24


def test_a_model_has_the_same_addresses_after_unload_and_load() -> None:
    library = FakeCuda()
    pool = a_pool(library)
    pool.fill()
    assert len(library.pages) == 4
    first, second = pool.reserve_range(3), pool.reserve_range(2)
    address = first.address
    pool.map_pages(first)
    library.check()
    pool.unmap_pages(first)
    assert not library.mapped
    pool.map_pages(second)
    pool.unmap_pages(second)
    pool.map_pages(first)
    assert (first.address, sorted(library.mapped)) == (address, [address + page * PAGE for page in range(3)])
    assert len(library.pages) == 4
    pool.check()
    library.check()
    pool.close()
    assert not library.pages
    assert not library.ranges


def test_pages_beyond_the_total_go_back_to_the_system() -> None:
    library = FakeCuda()
    pool = a_pool(library, total=2)
    pool.fill()
    resident, measured = pool.reserve_range(2), pool.reserve_range(3)
    pool.map_pages(resident)
    pool.map_pages(measured)
    assert len(library.pages) == 5
    pool.unmap_pages(measured)
    pool.check()
    assert len(library.pages) == 2
    pool.unmap_pages(resident)
    pool.check()
    assert len(library.pages) == 2


def test_a_full_device_changes_nothing_and_says_so() -> None:
    library = FakeCuda(room=3 * PAGE)
    pool = a_pool(library, total=2)
    large, small = pool.reserve_range(4), pool.reserve_range(2)
    with pytest.raises(OutOfPages, match="no room for another page"):
        pool.map_pages(large)
    pool.check()
    assert not library.mapped
    pool.map_pages(small)
    pool.check()


@pytest.mark.parametrize("call", ["cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemAddressReserve", "cuMemCreate"])
def test_what_the_driver_refuses_is_raised_by_name_and_the_books_still_balance(call: str) -> None:
    library = FakeCuda()
    pool = a_pool(library)
    where = pool.reserve_range(2)
    if call == "cuMemUnmap":
        pool.map_pages(where)
    library.fail.add(call)
    with pytest.raises(CudaError, match=rf"{call}: CUDA error 1: invalid argument"):
        pool.unmap_pages(where) if call == "cuMemUnmap" else pool.reserve_range(
            1
        ) if "Reserve" in call else pool.map_pages(where)
    pool.check()
    library.fail.clear()
    library.check()
    pool.unmap_pages(where)
    pool.map_pages(where)
    pool.check()
    library.check()


def test_a_page_size_that_the_device_does_not_have_is_named() -> None:
    with pytest.raises(OSError, match=f"pages: got 3 bytes, wanted a multiple of {GRANULARITY}"):
        CudaBacking(Driver(FakeCuda()), 0, 3)


steps = st.lists(
    st.tuples(st.sampled_from(["range", "map", "unmap", "release"]), st.integers(0, 5), st.integers(1, 4)), max_size=40
)


@given(steps, st.integers(0, 6), st.integers(3, 9))
def test_no_page_is_lost_or_mapped_twice(plan: list[tuple[str, int, int]], total: int, room: int) -> None:
    library = FakeCuda(room=room * PAGE)
    pool = a_pool(library, total)
    ranges: list[AddressRange] = []
    addresses: dict[int, int] = {}
    for step, number, pages in plan:
        if step == "range":
            ranges.append(pool.reserve_range(pages))
            addresses[id(ranges[-1])] = ranges[-1].address
        elif ranges:
            where = ranges[number % len(ranges)]
            if step == "map" and not where.mapped:
                try:
                    pool.map_pages(where)
                except OutOfPages:
                    assert not where.mapped
            elif step == "unmap":
                pool.unmap_pages(where)
            elif step == "release":
                pool.release_range(where)
                ranges.remove(where)
        pool.check()
        library.check()
        assert all(where.address == addresses[id(where)] for where in ranges)
        assert sum(len(where.mapped) for where in ranges) == len(library.mapped)
    pool.close()
    assert (library.pages, library.ranges, library.mapped) == ({}, {}, {})


def test_host_pages_keep_to_their_range_and_give_memory_back() -> None:
    pool = PagePool(HostBacking(HOST_PAGE), 3)
    first, second = pool.reserve_range(2), pool.reserve_range(2)
    pool.map_pages(first)
    for page, content in enumerate((b"zero", b"one!")):
        write(first, HOST_PAGE, page, content)
    pool.map_pages(second)
    write(second, HOST_PAGE, 1, b"else")
    assert [read(first, HOST_PAGE, page) for page in range(2)] == [b"zero", b"one!"]
    pool.unmap_pages(first)
    address = first.address
    pool.map_pages(first)
    write(first, HOST_PAGE, 1, b"anew")
    assert (first.address, read(first, HOST_PAGE, 1), read(second, HOST_PAGE, 1)) == (address, b"anew", b"else")
    pool.check()
    pool.close()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 3000)), max_size=60))
def test_an_arena_hands_out_pieces_that_do_not_overlap(plan: list[tuple[bool, int]]) -> None:
    arena = Arena(8192)
    held: dict[int, Any] = {}
    for take, size in plan:
        if take:
            begin = arena.allocate(size)
            if begin is not None:
                assert begin % 256 == 0
                assert all(begin >= at + length or begin + size <= at for at, length in held.items())
                held[begin] = size
        elif held:
            begin = list(held)[size % len(held)]
            del held[begin]
            arena.free(begin)
        arena.check()
        assert len(arena) == len(held)
    for begin in held:
        arena.free(begin)
    arena.check()
    assert arena.allocate(8192) == 0
