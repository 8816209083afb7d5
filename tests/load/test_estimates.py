"""Confidence intervals of percentiles and shares of requests that wait in one queue."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from bench.known_server import simulate_latencies
from horologe_load.arrivals import poisson, spread
from horologe_load.estimates import Estimate, estimate_quantile, estimate_share

SLOTS, DELAY_NS = 4, 20_000_000
RATE = 0.8 * SLOTS / DELAY_NS * 1e9


def test_intervals_cover_the_truth_although_latencies_are_correlated() -> None:
    long = np.sort(simulate_latencies(poisson(RATE, 5000, 1), SLOTS, DELAY_NS))
    limit_ns = 40_000_000
    truths = float(long[int(0.9 * len(long))]), float(np.mean(long <= limit_ns))
    covered = np.zeros(2)
    for seed in range(100):
        latencies = simulate_latencies(poisson(RATE, 30, 1000 + seed), SLOTS, DELAY_NS)
        for number, estimate in enumerate((estimate_quantile(latencies, 0.9), estimate_share(latencies <= limit_ns))):
            assert estimate.low is not None
            assert estimate.high is not None
            assert estimate.low <= estimate.value <= estimate.high
            covered[number] += estimate.low <= truths[number] <= estimate.high
    assert (covered >= 88).all()


def test_a_bound_that_needs_more_requests_is_unknown() -> None:
    values = np.arange(1, 101)
    assert estimate_quantile(values, 0.99).high is None
    assert estimate_quantile(values, 0.99).low is not None
    assert estimate_quantile(values, 0.5).high is not None
    assert estimate_quantile(values[:1], 0.5) == Estimate(1.0, None, None)


def test_a_share_of_all_requests_has_a_lower_bound() -> None:
    estimate = estimate_share(np.ones(1000, bool))
    assert estimate.value == 1.0
    assert estimate.high == pytest.approx(1.0)
    assert estimate.low is not None
    assert 0.99 < estimate.low < 1.0


def test_no_requests_have_no_estimate() -> None:
    with pytest.raises(ValueError, match="at least one"):
        estimate_share(np.zeros(0, bool))
    with pytest.raises(ValueError, match="at least one"):
        estimate_quantile(np.zeros(0, np.int64), 0.5)


def test_spread_arrivals_have_an_exact_number() -> None:
    times = spread(321.0, 10, seed=3)
    assert len(times) == 3210
    assert times == sorted(times)
    assert 0 <= times[0] <= times[-1] < 10**10
