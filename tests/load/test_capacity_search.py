"""The search for the capacity of a server."""

from __future__ import annotations

import math
import random

import pytest

from horologe_load.capacity_search import MAX_TRIALS, PRECISION, CapacitySearch, Confirmation


def run_search(search: CapacitySearch, capacity: float) -> list[float]:
    """Offer the rates of the search to a system that carries `capacity`."""
    rates: list[float] = []
    while (rate := search.next_rate()) is not None:
        rates.append(rate)
        search.observe(rate, 1.0 if rate <= capacity else 0.5)
    return rates


@pytest.mark.parametrize("first", [20.0, 90.0, 100.0, 250.0])
def test_the_search_closes_in_on_the_capacity(first: float) -> None:
    search = CapacitySearch(first)
    rates = run_search(search, 100.0)
    assert search.carried is not None
    assert 100.0 / PRECISION <= search.carried <= 100.0
    assert len(rates) < MAX_TRIALS


def test_the_search_forgives_one_failure_at_a_rate() -> None:
    search = CapacitySearch(50.0)
    search.observe(50.0, 0.9)
    assert search.next_rate() == 50.0
    search.observe(50.0, 1.0)
    assert search.carried == 50.0
    assert run_search(search, 100.0)
    assert 100.0 / PRECISION <= (search.carried or 0) <= 100.0


def test_the_search_ends_when_nothing_is_carried() -> None:
    search = CapacitySearch(1000.0)
    assert len(run_search(search, 0.0)) <= MAX_TRIALS
    assert search.carried is None


def test_the_search_ends_when_everything_is_carried() -> None:
    search = CapacitySearch(500.0, max_trials=9)
    rates = run_search(search, math.inf)
    assert search.carried == max(rates)
    assert search.failed is None


@pytest.mark.parametrize("limit", [3.0, 141.0, 500.0, 22_000.0])
def test_the_capacity_of_a_server_with_a_slope_is_found(limit: float) -> None:
    search = CapacitySearch(500, max_trials=60, growth=1.5, precision=1.02)
    while (rate := search.next_rate()) is not None:
        search.observe(rate, 1.0 if rate <= limit else max(0.0, 1 - (rate - limit) / limit))
    # 99% in time is kept up to one per cent past the limit
    assert search.carried is not None
    assert search.failed is not None
    assert limit * 0.97 <= search.carried <= limit * 1.01 < search.failed * 1.03


def test_a_disturbance_does_not_decide() -> None:
    for seed in range(20):
        draw, search = random.Random(seed), CapacitySearch(500, max_trials=60, growth=1.5)
        while (rate := search.next_rate()) is not None:
            attained = 1.0 if rate <= 1000 else max(0.0, 2 - rate / 1000)
            search.observe(rate, attained - 0.2 if draw.random() < 0.1 else attained)
        assert (search.carried or 0) >= 850


def test_the_confirmation_retreats_until_a_rate_is_carried() -> None:
    confirmation = Confirmation(100.0)
    rates = []
    while (rate := confirmation.next_rate()) is not None:
        rates.append(rate)
        confirmation.observe(1.0 if rate < 95 else 0.9)
    assert rates[0] == 100.0
    assert confirmation.confirmed == rates[-1] < 95


def test_the_confirmation_gives_up() -> None:
    confirmation = Confirmation(100.0, max_trials=3)
    for _ in range(3):
        assert confirmation.next_rate() is not None
        confirmation.observe(0.0)
    assert confirmation.next_rate() is None
    assert confirmation.confirmed is None
