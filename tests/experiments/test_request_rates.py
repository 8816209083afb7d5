"""Rates of real services that the experiments replay."""

from __future__ import annotations

import numpy as np
import pytest

from horologe_experiments.traces.request_rates import NASA_DAYS, busiest, read_azure_hour, read_nasa_day, rescale


def test_nasa_days_have_their_totals_and_peaks() -> None:
    days = {day: read_nasa_day(day) for day in NASA_DAYS}
    assert {day: (int(counts.sum()), int(counts.max())) for day, counts in days.items()} == {
        1: (64715, 99),
        3: (89582, 178),
        13: (134204, 409),
    }
    with pytest.raises(ValueError, match="wanted one of 1, 3, 13"):
        read_nasa_day(2)


def test_an_azure_hour_has_sixty_minutes() -> None:
    hour = read_azure_hour(300)
    assert hour.shape == (60,)
    assert hour.mean() == pytest.approx(6329, rel=0.1)


def test_rescaled_rates_have_the_wanted_maximum_and_keep_their_proportions() -> None:
    rates = rescale(np.array([1.0, 3.0, 4.0, 8.0]), 2, 300)
    assert rates.tolist() == [100.0, 300.0]
    with pytest.raises(ValueError, match="wanted a divisor of 4"):
        rescale(np.ones(4), 3, 300)


def test_the_busiest_stretch_has_the_largest_sum() -> None:
    assert busiest(np.array([9.0, 1, 1, 5, 6, 2]), 2).tolist() == [5, 6]
