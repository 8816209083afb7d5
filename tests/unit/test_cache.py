"""The prediction cache: bounded, CLOCK, TTL."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from builders import a_tensor
from horologe_common.applications import Application
from horologe_common.wire import Tensor
from horologe_selector.core.predictions.cache import ENTRY_BYTES, VALUES, PredictionCache, cached_values

TTL = 1000
OUTPUTS = (a_tensor(),)


def a_cache(entries: int) -> PredictionCache:
    """Room for so many entries with a one-byte key and four bytes of output."""
    return PredictionCache(entries * (ENTRY_BYTES + 5))


def test_what_was_stored_is_fetched_until_it_expires() -> None:
    cache = a_cache(2)
    cache.store(0, b"k", OUTPUTS, [b"1234"], TTL)
    entry = cache.fetch(TTL - 1, b"k")
    assert entry is not None
    assert (entry.outputs, entry.buffers) == (OUTPUTS, (b"1234",))
    assert cache.fetch(TTL, b"k") is None
    cache.check()
    assert len(cache) == 0


def test_the_clock_spares_what_was_used() -> None:
    cache = a_cache(3)
    for key in (b"a", b"b", b"c"):
        cache.store(0, key, OUTPUTS, [b"1234"], TTL)
    cache.fetch(1, b"a")
    cache.fetch(1, b"c")
    cache.store(1, b"d", OUTPUTS, [b"1234"], TTL)
    assert [cache.fetch(1, key) is not None for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]


def test_too_large_for_the_whole_cache_is_not_kept() -> None:
    cache = a_cache(1)
    cache.store(0, b"k", OUTPUTS, [bytes(100)], TTL)
    assert len(cache) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 300), st.integers(0, 500))))
def test_the_bound_holds_and_only_what_was_stored_comes_back(steps: list[tuple[bool, int, int, int]]) -> None:
    cache, now_ns = PredictionCache(3 * ENTRY_BYTES), 0
    last: dict[bytes, bytes] = {}
    for store, number, size, wait_ns in steps:
        now_ns += wait_ns
        key = bytes([number])
        if store:
            last[key] = bytes([number]) * size
            cache.store(now_ns, key, OUTPUTS, [last[key]], TTL)
        elif entry := cache.fetch(now_ns, key):
            assert entry.buffers == (last[key],)
        cache.check()


def test_an_expired_entry_is_recalled_until_it_goes() -> None:
    cache = a_cache(1)
    cache.store(0, b"k", OUTPUTS, [b"1234"], TTL)
    entry = cache.peek(b"k")
    assert entry is not None
    assert entry is cache.peek(b"k")
    cache.store(2 * TTL, b"l", OUTPUTS, [b"1234"], TTL)
    assert cache.peek(b"k") is None


def test_what_was_predicted_is_worked_out_once_for_each_way_to_read_it() -> None:
    cache = PredictionCache(10_000)
    outputs = Tensor("label", "INT64", (2,), 16), Tensor("size", "INT64", (2,), 16)
    cache.store(0, b"k", outputs, [struct.pack("<2q", 1, 2), struct.pack("<2q", 30, 40)], TTL)
    entry = cache.peek(b"k")
    assert entry is not None
    label, size = (Application("a", ("m",), output=output) for output in ("", "size"))
    first = cached_values(label, entry)
    assert first == (1.0, 2.0)
    assert cached_values(label, entry) is first
    assert cached_values(size, entry) == (30.0, 40.0)
    assert cached_values(label, entry) == (1.0, 2.0)


def test_values_of_many_rows_take_no_room_that_is_not_counted() -> None:
    cache = PredictionCache(10_000)
    rows = VALUES + 1
    cache.store(0, b"k", (Tensor("label", "INT64", (rows,), 8 * rows),), [bytes(8 * rows)], TTL)
    entry = cache.peek(b"k")
    assert entry is not None
    assert cached_values(Application("a", ("m",)), entry) == (0.0,) * rows
    assert entry.values == ()
