"""Measurements are bounded, expire, follow drift, and are restored as they were stored."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from horologe_common.clock import ms, s
from horologe_common.wire import Distributions
from horologe_profiler.core.batch_fit import Point
from horologe_profiler.core.measurements import (
    DRIFT,
    TIMES_MIN,
    MeasurementKey,
    Measurements,
    ProfilerState,
    RowTime,
    length_bound,
)
from horologe_profiler.core.profiling_rules import ProfilingRules
from horologe_profiler.core.publication import build_distributions, build_histogram

KEY = MeasurementKey("m/1", "chat", 0)


def a_memory(**rules: int) -> Measurements:
    return Measurements(ProfilingRules(**rules))


def record_times(
    memory: Measurements, key: MeasurementKey, times: list[int], from_ns: int = 0, every_ns: int = s(1), length: int = 0
) -> int:
    """Record a run of each row in sequence. Returns the time of the next."""
    for took_ns in times:
        memory.record_sample(from_ns, key)
        memory.record_row_time(key, RowTime(from_ns, length, took_ns))
        memory.check()
        from_ns += every_ns
    return from_ns


def times_of(memory: Measurements, key: MeasurementKey = KEY) -> list[int]:
    window = memory.get_window(key)
    return [row_time.took_ns for row_time in window.times] if window else []


def published(memory: Measurements, model: str = "m/1") -> Distributions:
    return build_distributions(memory, model)[0]


@given(st.integers(0, 10**9))
def test_a_length_is_in_a_range_no_wider_than_a_quarter(length: int) -> None:
    bound = length_bound(length)
    assert bound >= length
    assert length_bound(bound) == bound
    assert bound <= max(length + 1, 1.25 * length + 1)


def test_bounds_grow_by_a_quarter() -> None:
    assert sorted({length_bound(length) for length in range(24)}) == [0, 1, 2, 3, 4, 5, 7, 9, 12, 15, 19, 24]


def test_more_than_the_window_is_forgotten() -> None:
    memory = a_memory(window=8)
    record_times(memory, KEY, list(range(100, 120)))
    assert times_of(memory) == list(range(112, 120))


def test_what_is_older_than_the_window_is_forgotten_but_for_a_few() -> None:
    memory = a_memory(window_ns=s(60))
    later_ns = record_times(memory, KEY, [100] * 10)
    record_times(memory, KEY, [200], later_ns + s(120))
    assert times_of(memory) == [100] * (TIMES_MIN - 1) + [200]


@given(
    st.lists(st.integers(ms(1), ms(50)), min_size=30, max_size=60),
    st.lists(st.integers(ms(1), ms(50)), min_size=20, max_size=40),
    st.integers(-15, 15),
)
def test_after_a_step_the_published_distribution_is_the_new_one_within_a_window(
    before: list[int], after: list[int], step: int
) -> None:
    """After a step change of any size, the published times are from after the change once a window has passed."""
    memory = a_memory(window=64, window_ns=s(120))
    scale = 2.0 ** (step / 5)
    after = [max(1, round(took_ns * scale)) for took_ns in after]
    step_ns = record_times(memory, KEY, before)
    record_times(memory, KEY, after * 10, step_ns)
    part = published(memory).histograms[0]
    assert part.edges_ns[0] >= min(after)
    assert part.edges_ns[-1] <= max(after) + 1


@pytest.mark.parametrize("factor", [0.3, 0.5, 2.0, 5.0])
def test_a_clear_step_is_followed_after_a_few_runs(factor: float) -> None:
    memory = a_memory()
    step_ns = record_times(memory, KEY, [ms(10) + number * 1000 for number in range(40)])
    memory.record_batch_time(step_ns, "m/1", Point(4, 0, ms(40)))
    record_times(memory, KEY, [round(ms(10) * factor) + number * 1000 for number in range(DRIFT)], step_ns)
    part = published(memory).histograms[0]
    assert part.edges_ns[0] == round(ms(10) * factor)
    assert sum(part.counts) == DRIFT
    assert memory.fit_points("m/1") == []


def test_a_few_long_ones_are_no_drift() -> None:
    memory = a_memory()
    record_times(memory, KEY, ([10] * 9 + [1000]) * 8)
    assert len(times_of(memory)) == 80


def test_beyond_the_most_keys_the_one_sampled_the_longest_ago_goes() -> None:
    memory = a_memory(keys_max=3)
    keys = [MeasurementKey("m/1", application, 0) for application in "abc"]
    for key in (*keys, keys[0], MeasurementKey("m/1", "d", 0)):
        memory.record_sample(0, key)
    assert [key.application for key, _ in memory.windows_of_model("m/1")] == ["a", "c", "d"]
    memory.check()


def test_any_length_weighs_ranges_by_how_often_they_came_not_by_how_often_they_were_run() -> None:
    memory = a_memory()
    short, long = MeasurementKey("m/1", "chat", 10), MeasurementKey("m/1", "chat", 100)
    record_times(memory, short, [ms(1)] * 20, length=10)
    record_times(memory, long, [ms(9)] * 20, length=100)
    for _ in range(160):
        memory.record_sample(0, short)
    whole, *ranges = published(memory).histograms
    assert [part.length for part in (whole, *ranges)] == [0, 10, 100]
    assert (whole.counts[0], whole.counts[-1]) == (36, 4)
    assert [sum(part.counts) for part in ranges] == [20, 20]


def test_lengths_give_c1_and_hidden_ones_do_not() -> None:
    memory = a_memory()
    for length in (10, 50, 200):
        record_times(
            memory, MeasurementKey("long/1", "", length_bound(length)), [ms(1) + 1000 * length] * 5, length=length
        )
    record_times(memory, MeasurementKey("flat/1", "", 0), [ms(3)] * 5)
    for size in (1, 2, 4):
        memory.record_batch_time(0, "flat/1", Point(size, 0, ms(1) + ms(2) * size))
    long, flat = published(memory, "long/1"), published(memory, "flat/1")
    assert long.base_ns == pytest.approx(ms(1), rel=1e-6)
    assert long.row_ns_per_length == pytest.approx(1000, rel=1e-6)
    assert flat.base_ns == pytest.approx(ms(1), rel=1e-6)
    assert flat.row_ns_per_length == 0


@pytest.mark.parametrize("explained", [True, False])
def test_a_range_that_was_hardly_run_has_the_times_of_the_others_if_length_explains_them(explained: bool) -> None:
    memory = a_memory()
    for number, length in enumerate((10, 40, 160)):
        took_ns = ms(1) + 10_000 * length if explained else ms(1 + 5 * (number % 2))
        record_times(memory, MeasurementKey("m/1", "", length_bound(length)), [took_ns] * 5, length=length)
    bound = length_bound(80)
    memory.record_sample(0, MeasurementKey("m/1", "", bound))
    edges = [edge_ns for part in published(memory).histograms if part.length == bound for edge_ns in part.edges_ns]
    assert edges == ([pytest.approx(ms(1) + 10_000 * bound, rel=1e-3)] * len(edges) if explained else [])
    assert bool(edges) == explained


def test_too_few_times_are_not_published() -> None:
    memory = a_memory()
    record_times(memory, KEY, [100] * 4)
    assert published(memory).histograms == ()


@given(st.lists(st.tuples(st.floats(0.01, 100), st.integers(0, 10**11)), min_size=1, max_size=200))
def test_a_histogram_holds_all_it_was_given(times: list[tuple[float, int]]) -> None:
    histogram = build_histogram("", 0, times)
    assert list(histogram.edges_ns) == sorted(set(histogram.edges_ns))
    assert len(histogram.counts) == len(histogram.edges_ns) - 1 <= 32
    assert histogram.edges_ns[0] <= max(1, min(took for _, took in times))
    assert histogram.edges_ns[-1] > max(took for _, took in times)
    assert histogram.counts[0] > 0
    assert histogram.counts[-1] > 0


def test_with_equal_weights_counts_are_counts() -> None:
    histogram = build_histogram("", 0, [(1.0, took) for took in [100] * 7 + [900] * 3])
    assert (histogram.counts[0], histogram.counts[-1], sum(histogram.counts)) == (7, 3, 10)


def test_what_was_stored_comes_back_as_old_as_it_is_then() -> None:
    memory = a_memory()
    memory.set_content("m/1", "abc")
    at_ns = record_times(memory, KEY, [100 + number for number in range(30)], from_ns=s(1000))
    memory.record_batch_time(at_ns, "m/1", Point(4, 0, 999, 7))
    body = msgspec.msgpack.encode(memory.to_state(at_ns, {}))
    again = a_memory()
    again.restore(s(5), msgspec.msgpack.decode(body, type=ProfilerState), away_ns=s(60))
    again.check()
    assert published(again) == published(memory)
    assert again.set_content("m/1", "other")
    part = memory.get_window(KEY)
    assert part is not None
    again.restore(s(5), memory.to_state(at_ns, {}), away_ns=s(60))
    restored = again.get_window(KEY)
    assert restored is not None
    assert [took.at_ns - s(5) + s(60) for took in restored.times] == [took.at_ns - at_ns for took in part.times]
    assert restored.recent_samples == part.recent_samples
