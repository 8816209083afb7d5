"""Prediction cache: size limit, CLOCK eviction, time to live."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from harness.builders import a_tensor
from horologe_common.applications import Application
from horologe_common.wire import Tensor
from horologe_selector.core.predictions.cache import ENTRY_BYTES, VALUES, PredictionCache, cached_values

TTL = 1000
OUTPUTS = (a_tensor(),)


def make_cache(entries: int) -> PredictionCache:
    """Return a cache with room for `entries` entries with a one-byte key and four bytes of output."""
    return PredictionCache(entries * (ENTRY_BYTES + 5))


def test_a_stored_entry_is_fetched_until_it_expires() -> None:
    cache = make_cache(2)
    cache.store(0, b"k", OUTPUTS, [b"1234"], TTL)
    entry = cache.fetch(TTL - 1, b"k")
    assert entry is not None
    assert (entry.outputs, entry.buffers) == (OUTPUTS, (b"1234",))
    assert cache.fetch(TTL, b"k") is None
    cache.check()
    assert len(cache) == 0


def test_clock_eviction_spares_used_entries() -> None:
    cache = make_cache(3)
    for key in (b"a", b"b", b"c"):
        cache.store(0, key, OUTPUTS, [b"1234"], TTL)
    cache.fetch(1, b"a")
    cache.fetch(1, b"c")
    cache.store(1, b"d", OUTPUTS, [b"1234"], TTL)
    assert [cache.fetch(1, key) is not None for key in (b"a", b"b", b"c", b"d")] == [True, False, True, True]


def test_an_entry_larger_than_the_cache_is_not_stored() -> None:
    cache = make_cache(1)
    cache.store(0, b"k", OUTPUTS, [bytes(100)], TTL)
    assert len(cache) == 0


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 300), st.integers(0, 500))))
def test_the_size_limit_holds_and_fetched_entries_are_the_last_stored(steps: list[tuple[bool, int, int, int]]) -> None:
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


def test_peek_returns_an_expired_entry_until_it_is_evicted() -> None:
    cache = make_cache(1)
    cache.store(0, b"k", OUTPUTS, [b"1234"], TTL)
    entry = cache.peek(b"k")
    assert entry is not None
    assert entry is cache.peek(b"k")
    cache.store(2 * TTL, b"l", OUTPUTS, [b"1234"], TTL)
    assert cache.peek(b"k") is None


def test_values_are_cached_for_the_last_output_that_was_read() -> None:
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


def test_values_of_many_rows_are_not_cached() -> None:
    cache = PredictionCache(10_000)
    rows = VALUES + 1
    cache.store(0, b"k", (Tensor("label", "INT64", (rows,), 8 * rows),), [bytes(8 * rows)], TTL)
    entry = cache.peek(b"k")
    assert entry is not None
    assert cached_values(Application("a", ("m",)), entry) == (0.0,) * rows
    assert entry.values == ()
