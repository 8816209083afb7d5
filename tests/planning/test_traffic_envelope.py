"""Traffic envelopes: of a trace, and incrementally of live traffic."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from horologe_common.clock import ms, s
from horologe_planning.envelope import (
    BIN_NS,
    LEAST_BINS,
    SlidingEnvelope,
    envelope_of,
    window_lengths,
)


def test_windows_start_at_the_service_time_and_double_to_60_s() -> None:
    windows = window_lengths(ms(200))
    assert windows[:3] == (ms(200), ms(400), ms(800))
    assert windows[-1] == s(60)
    assert all(b <= 2 * a for a, b in itertools.pairwise(windows))
    assert window_lengths(ms(101))[0] == ms(110)  # whole bins
    assert window_lengths(1)[0] == LEAST_BINS * BIN_NS
    assert window_lengths(s(90)) == (s(60),)


@pytest.mark.parametrize("service_ns", [0, -1])
def test_a_service_time_that_is_not_positive_is_an_error(service_ns: int) -> None:
    with pytest.raises(ValueError, match=f"service_ns: got {service_ns}"):
        window_lengths(service_ns)


def test_the_envelope_of_a_trace_has_the_most_arrivals_in_any_window() -> None:
    arrivals = np.array([0, ms(10), ms(20), s(5), s(5) + ms(30), s(60)])
    envelope = envelope_of(arrivals, (ms(20), ms(40), s(10)))
    assert envelope.counts == (2, 3, 5)  # windows are half-open: 0 and 20 ms are not within 20 ms
    assert envelope.rates() == (100.0, 75.0, 0.5)


def test_a_trace_shorter_than_a_window_counts_at_its_own_rate() -> None:
    arrivals = np.arange(0, s(10), ms(10))
    envelope = envelope_of(arrivals, (s(5), s(60)))
    assert envelope.rates() == pytest.approx((100.0, 100.0), rel=0.01)


@pytest.mark.parametrize(
    ("arrivals", "message"), [([], "got no arrivals"), ([2, 1], "got times that fall, wanted sorted")]
)
def test_a_trace_that_is_empty_or_unsorted_is_an_error(arrivals: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        envelope_of(np.array(arrivals, dtype=np.int64), (s(1),))


def feed(envelope: SlidingEnvelope, arrivals: list[int], end_ns: int) -> None:
    envelope.advance(0)
    for at_ns in arrivals:
        envelope.add(at_ns)
    envelope.advance(end_ns)


@settings(max_examples=60, deadline=None)
@given(
    gaps=st.lists(st.integers(0, s(3)) | st.integers(0, ms(30)), max_size=80),
    service_ns=st.integers(ms(1), s(2)),
)
def test_live_counts_equal_those_of_all_windows_that_end_with_a_bin(gaps: list[int], service_ns: int) -> None:
    arrivals = np.cumsum(gaps).tolist() if gaps else []
    windows = window_lengths(service_ns, s(8))
    live, end_ns = SlidingEnvelope(windows), (arrivals[-1] if arrivals else 0) + 3 * BIN_NS
    feed(live, arrivals, end_ns)
    expected = []
    for window in windows:
        ends = range(BIN_NS, end_ns // BIN_NS * BIN_NS + 1, BIN_NS)
        times = np.array(arrivals, dtype=np.int64)
        counts = [np.searchsorted(times, end) - np.searchsorted(times, end - window) for end in ends]
        expected.append(max(counts, default=0) * 1e9 / window)
    assert live.pop_rates() == pytest.approx(tuple(expected))


@settings(max_examples=40, deadline=None)
@given(gaps=st.lists(st.integers(0, ms(400)), min_size=1, max_size=80))
def test_live_traffic_never_exceeds_its_own_envelope(gaps: list[int]) -> None:
    arrivals = np.cumsum(gaps)
    windows = window_lengths(ms(100))
    sample, live = envelope_of(arrivals, windows), SlidingEnvelope(windows)
    feed(live, arrivals.tolist(), int(arrivals[-1]) + s(1))
    assert all(rate <= most + 1e-9 for rate, most in zip(live.pop_rates(), sample.rates(), strict=True))


def test_maxima_are_reported_once() -> None:
    envelope = SlidingEnvelope((ms(100), s(1)))
    feed(envelope, [ms(5)] * 10, ms(300))
    assert envelope.pop_rates() == (100.0, 10.0)
    assert envelope.pop_rates() == (0.0, 10.0)  # the burst is still within the last second
    envelope.advance(s(2))
    assert envelope.pop_rates()[1] == 10.0
    assert envelope.pop_rates() == (0.0, 0.0)


def test_a_long_silence_ends_every_window() -> None:
    envelope = SlidingEnvelope((ms(100), s(60)))
    feed(envelope, [ms(5)] * 10, s(1_000_000))
    envelope.pop_rates()
    envelope.add(s(1_000_000))
    envelope.advance(s(1_000_001))
    assert envelope.pop_rates() == pytest.approx((10.0, 1 / 60))
    assert envelope.observed_ns == s(1_000_001)


def test_the_highest_recent_rate_uses_whole_windows_of_the_last_30_s() -> None:
    envelope = SlidingEnvelope(window_lengths(ms(100)))
    rates = [90 if second <= 40 else 2 if second < 95 else 10 for second in range(100)]
    feed(envelope, [s(second) for second, rate in enumerate(rates) for _ in range(rate)], s(100))
    assert envelope.max_rate(s(5), s(30)) == 10.0
    envelope.advance(s(131))
    assert envelope.max_rate(s(5), s(30)) == 0.0
